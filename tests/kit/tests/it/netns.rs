//! Two namespaces: a real connection between them, and what a cut does to it.

use std::io::Write;
use std::time::Duration;

use leasehold_testkit::{Child, Error, Namespaces, wait};

const SOON: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_millis(500);

/// Namespaces, or a test failure that says what the machine lacks: nothing is skipped in silence.
async fn namespaces() -> Namespaces {
    match Namespaces::create().await {
        Ok(namespaces) => namespaces,
        Err(error) => panic!("{error}"),
    }
}

/// A server in `b` that answers each line, and a client in `a` that sends what it is told.
async fn conversation(namespaces: &Namespaces) -> (Child, Child) {
    let address = namespaces.b().address().to_string();
    let server = r#"
        use strict; use IO::Socket::INET; $| = 1;
        my $server = IO::Socket::INET->new(LocalAddr => $ARGV[0], LocalPort => 7, Listen => 5, ReuseAddr => 1) or die $!;
        print "listening\n";
        while (my $client = $server->accept) { while (my $line = <$client>) { print "got $line"; print $client "echo $line"; } }
    "#;
    let client = r#"
        use strict; use IO::Socket::INET; $| = 1;
        my $peer = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => 7) or die $!;
        print "connected\n";
        while (my $line = <STDIN>) { print $peer $line; my $answer = <$peer>; print $answer; }
    "#;
    let mut server = namespaces
        .b()
        .program("perl")
        .args(["-e", server, &address])
        .spawn();
    server.wait_for_line("listening", SOON).await;
    let mut client = namespaces
        .a()
        .program("perl")
        .args(["-e", client, &address])
        .with_stdin()
        .spawn();
    client.wait_for_line("connected", SOON).await;
    (server, client)
}

#[tokio::test]
async fn a_cut_is_silent_and_heals() {
    let namespaces = namespaces().await;
    let (_server, mut client) = conversation(&namespaces).await;
    let mut stdin = client.take_stdin().unwrap();
    writeln!(stdin, "one").unwrap();
    client.wait_for_line("echo one", SOON).await;

    namespaces.cut().await.unwrap();
    writeln!(stdin, "two").unwrap();
    let silent = client.try_wait_for_line(0, "echo two", SILENCE).await;
    assert!(matches!(silent, Err(Error::Timeout { .. })), "{silent:?}");

    namespaces.heal().await.unwrap();
    client.wait_for_line("echo two", SOON).await;
}

#[tokio::test]
async fn one_direction_can_be_cut_alone() {
    let namespaces = namespaces().await;
    let (mut server, mut client) = conversation(&namespaces).await;
    let mut stdin = client.take_stdin().unwrap();

    namespaces.cut_b_to_a().await.unwrap();
    writeln!(stdin, "one").unwrap();
    server.wait_for_line("got one", SOON).await;
    let silent = client.try_wait_for_line(0, "echo one", SILENCE).await;
    assert!(matches!(silent, Err(Error::Timeout { .. })), "{silent:?}");
    namespaces.heal().await.unwrap();
    client.wait_for_line("echo one", SOON).await;

    namespaces.cut_a_to_b().await.unwrap();
    writeln!(stdin, "two").unwrap();
    let silent = server.try_wait_for_line(0, "got two", SILENCE).await;
    assert!(matches!(silent, Err(Error::Timeout { .. })), "{silent:?}");
    namespaces.heal().await.unwrap();
    client.wait_for_line("echo two", SOON).await;
}

#[tokio::test]
async fn several_pairs_live_side_by_side() {
    let first = namespaces().await;
    let second = namespaces().await;
    let (_server, mut client) = conversation(&first).await;
    second.cut().await.unwrap();
    let mut stdin = client.take_stdin().unwrap();
    writeln!(stdin, "one").unwrap();
    client.wait_for_line("echo one", SOON).await;
}

#[tokio::test]
async fn a_delay_works_or_says_why_not() {
    let namespaces = namespaces().await;
    let (_server, mut client) = conversation(&namespaces).await;
    let mut stdin = client.take_stdin().unwrap();
    match namespaces.delay(Duration::from_millis(300)).await {
        Ok(()) => {
            let start = tokio::time::Instant::now();
            writeln!(stdin, "one").unwrap();
            client.wait_for_line("echo one", SOON).await;
            let took = start.elapsed();
            assert!(took >= Duration::from_millis(600), "{took:?}");
        }
        Err(Error::Unsupported { what, why }) => {
            eprintln!("this kernel cannot {what}: {why}");
            // What cannot be delayed must not be broken either.
            writeln!(stdin, "one").unwrap();
            client.wait_for_line("echo one", SOON).await;
        }
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn nothing_is_left_after_drop() {
    let namespaces = namespaces().await;
    let (server, client) = conversation(&namespaces).await;
    let pids = [server.pid(), client.pid()];
    drop((server, client, namespaces));
    wait::until(SOON, "all processes are gone", async || {
        pids.iter()
            .all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
    })
    .await;
}
