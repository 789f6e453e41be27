//! The outage policy `continue` (L13): before it goes on, a holder asks the others whether they reach
//! the authority.

use std::path::Path;

use leasehold_testkit::{Child, Dir, Proxy, port, wait};

use crate::cli_support::{SOON, Server, boot_ms, plain, read_log, run, silent, writer, writing};

const TTL_MS: u64 = 5_000;

/// A program that writes until it is asked to end: whether it goes on shows whether it was asked.
fn polite_writer(log: &Path) -> Vec<String> {
    let words = writer(log).into_iter();
    words
        .map(|word| word.replace("'IGNORE'", "'DEFAULT'"))
        .collect()
}

/// A server, and two holders behind networks of their own: the first one asks the second.
struct Case {
    server: Server,
    dir: Dir,
    ways: [Proxy; 2],
    asker: Child,
    _other: Child,
}

impl Case {
    async fn start() -> Self {
        let server = Server::start().await;
        let ways = [
            Proxy::start(server.address).await,
            Proxy::start(server.address).await,
        ];
        let dir = Dir::new("run-peers");
        let address = format!("127.0.0.1:{}", port::free());
        // Its key is withheld while it is cut off, so that it is still there to answer afterwards.
        let other = [
            "run",
            "--ttl",
            "5s",
            "--on-outage",
            "hold:1m",
            "--peer-listen",
            &address,
        ];
        let other = server
            .cli_at(ways[1].addr(), &other)
            .args(["job:other", "--", "sleep", "600"])
            .spawn();
        wait::until(SOON, "the other one answers", async || {
            tokio::net::TcpStream::connect(&address).await.is_ok()
        })
        .await;
        let asker = [
            "run",
            "--ttl",
            "5s",
            "--on-outage",
            "continue:1m",
            "--peer",
            &address,
        ];
        let asker = server
            .cli_at(ways[0].addr(), &asker)
            .args(["--log", "leasehold=debug,error", "job:x", "--"])
            .args(polite_writer(&dir.join("log")))
            .spawn();
        writing(&dir.join("log")).await;
        Self {
            server,
            dir,
            ways,
            asker,
            _other: other,
        }
    }

    fn last_ms(&self) -> u64 {
        let last = read_log(&self.dir.join("log")).last().copied();
        last.map_or(0, |line| line.at_ms)
    }
}

#[tokio::test]
async fn l13_continue_stops_at_the_deadline_when_another_holder_reaches_the_server() {
    let mut case = Case::start().await;
    case.ways[0].blackhole();
    let cut_ms = boot_ms();
    assert_eq!(
        case.asker.wait(SOON).await.code(),
        Some(79),
        "{}",
        case.asker.tail()
    );
    let last_ms = silent(&case.dir.join("log"), SOON).await.at_ms;
    // One renewal may have been under way when the network went.
    assert!(
        last_ms < cut_ms + TTL_MS,
        "{} ms after the cut",
        last_ms - cut_ms
    );
}

#[tokio::test]
async fn l13_continue_goes_on_while_nobody_reaches_the_server_and_stops_when_somebody_does() {
    let mut case = Case::start().await;
    let before = case.server.json(&["lease", "get", "job:x", "--json"]).await;
    for way in &case.ways {
        way.blackhole();
    }
    let cut_ms = boot_ms();
    wait::until(SOON, "it writes past its ttl", async || {
        case.last_ms() > cut_ms + 2 * TTL_MS
    })
    .await;
    // Availability first: the authority gave the key away as usual, under a larger token, and whoever
    // checks tokens takes only the newer one.
    let next = case
        .server
        .json(&["lease", "acquire", "job:x", "--json"])
        .await;
    assert!(next["token"].as_u64() > before["token"].as_u64(), "{next}");
    let verified = case.server.run(&["lease", "verify"]).await;
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);

    // The other one reaches the server again: now this holder is the one cut off.
    case.ways[1].pass();
    assert_eq!(
        case.asker.wait(SOON).await.code(),
        Some(79),
        "{}",
        case.asker.tail()
    );
    let last_ms = silent(&case.dir.join("log"), SOON).await.at_ms;
    assert!(last_ms < cut_ms + 60_000, "before the end of its grace");
}

#[tokio::test]
async fn l13_continue_stops_at_once_when_the_server_says_that_the_lease_is_gone() {
    let mut case = Case::start().await;
    for way in &case.ways {
        way.blackhole();
    }
    let cut_ms = boot_ms();
    wait::until(SOON, "it writes past its ttl", async || {
        case.last_ms() > cut_ms + 2 * TTL_MS
    })
    .await;
    case.server
        .json(&["lease", "acquire", "job:x", "--json"])
        .await;
    // A definite answer stops it, whatever the policy.
    case.ways[0].pass();
    assert_eq!(
        case.asker.wait(SOON).await.code(),
        Some(79),
        "{}",
        case.asker.tail()
    );
    assert!(case.asker.tail().contains("lost"), "{}", case.asker.tail());
}

#[tokio::test]
async fn l13_continue_asks_nothing_of_its_program_while_all_is_well() {
    let server = Server::start().await;
    let script = "trap 'echo asked; exit 3' TERM; sleep 6 & wait $!; echo unasked";
    let words = [
        "run",
        "--ttl",
        "3s",
        "--on-outage",
        "continue:1m",
        "job:x",
        "--",
        "sh",
        "-c",
        script,
    ];
    let ran = server.run(&words).await;
    assert_eq!(
        (ran.code, ran.stdout.trim()),
        (0, "unasked"),
        "{}",
        ran.stderr
    );
}

#[tokio::test]
async fn a_peer_that_is_no_address_and_a_taken_address_are_clear_errors() {
    let wrong = ["run", "--peer", "somewhere", "job:x", "--", "true"];
    let ran = run(&wrong, &[]).await;
    assert_eq!(ran.code, 78, "{}", ran.stderr);
    assert!(ran.stderr.contains("HOST:PORT"), "{}", ran.stderr);
    let server = Server::start().await;
    let taken = server.address.to_string();
    let mut refused = plain(&["run", "--peer-listen", &taken, "job:x", "--", "true"]).spawn();
    refused
        .wait_for_line(&format!("--peer-listen {taken}"), SOON)
        .await;
    assert!(!refused.wait(SOON).await.success());
}
