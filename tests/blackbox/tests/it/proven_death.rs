//! L15: a holder that is killed is dead to the server at once, and not before its work has ended.

use std::{fs, sync::Arc, time::Duration};

use lease::{Acquire, Acquired, Authority, Key, Ttl};
use leasehold_client::{Client, Options, Remote, new_holder};
use leasehold_testkit::{Dir, Proxy, wait};
use tokio::time::Instant;

use crate::cli_support::{SOON, Server, boot_ms, escaping_writer, read_log, writing};

/// The server's default.
const LINGER: Duration = Duration::from_millis(250);
/// What a busy machine may add: less than is left of any lease here.
const SLACK: Duration = Duration::from_secs(5);
/// How long a guardian lets a program that does not listen go on after its supervisor.
const ORPHAN_GRACE: Duration = Duration::from_secs(5);

fn token(server: &Server) -> String {
    let file = server.data().join("admin.token");
    let token = fs::read_to_string(file).expect("the server made a credential");
    token.trim().to_owned()
}

fn remote(server: &Server) -> Arc<Remote> {
    let options = Options::new(format!("http://{}", server.address)).token(token(server));
    Arc::new(Remote::new(Client::new(options).expect("a client")))
}

async fn holder_streams(server: &Server) -> u64 {
    let url = format!("http://{}/metrics", server.address);
    let Ok(answer) = reqwest::get(url).await else {
        return 0;
    };
    let text = answer.text().await.unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("leasehold_holder_streams "))
        .and_then(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

async fn streaming(server: &Server, count: u64) {
    wait::until(SOON, "the holders' streams are up", async || {
        holder_streams(server).await == count
    })
    .await;
}

/// Waits for a key, and tells when it was granted, on the clock of deadlines.
async fn next(remote: &Remote, key: &str) -> u64 {
    let key: Key = key.parse().expect("a key");
    let holder = new_holder("next").expect("a holder");
    let ttl = Ttl::from_millis(30_000).expect("a ttl");
    let mut request = Acquire::one(key, holder, ttl);
    request.wait_ms = 20_000;
    let answer = remote.acquire(request).await.expect("an answer");
    assert!(matches!(answer, Acquired::Granted { .. }), "{answer:?}");
    boot_ms()
}

/// Whether the key has been asked for by somebody who waits.
async fn is_awaited(server: &Server) -> bool {
    let url = format!("http://{}/metrics", server.address);
    let text = match reqwest::get(url).await {
        Ok(answer) => answer.text().await.unwrap_or_default(),
        Err(_) => return false,
    };
    text.lines().any(|line| line == "leasehold_waiters 1")
}

#[tokio::test]
async fn l15_a_killed_run_frees_its_key_within_the_linger() {
    const TIMES: usize = 20;
    let server = Server::start().await;
    let remote = remote(&server);
    let mut took = Vec::new();
    for number in 0..TIMES {
        let key = format!("job:{number}");
        let words = ["run", "--ttl", "30s", &key, "--", "sleep", "1000"];
        let mut run = server.cli(&words).spawn();
        streaming(&server, 1).await;
        wait::until(SOON, "the key is held", async || {
            let key = key.parse().expect("a key");
            remote.lease(key).await.is_ok_and(|lease| lease.is_some())
        })
        .await;
        let waiting = tokio::spawn({
            let (remote, key) = (remote.clone(), key.clone());
            async move { next(&remote, &key).await }
        });
        wait::until(SOON, "the next one waits", async || {
            is_awaited(&server).await
        })
        .await;
        let killed = boot_ms();
        run.kill9_alone();
        let granted = waiting.await.expect("it waits to its end");
        took.push(Duration::from_millis(granted - killed));
        streaming(&server, 0).await;
    }
    took.sort();
    println!(
        "from SIGKILL to the next holder, of {TIMES}: p50 {:?}, p95 {:?}, slowest {:?}",
        took[TIMES / 2],
        took[TIMES * 95 / 100 - 1],
        took[TIMES - 1]
    );
    assert!(took[0] + Duration::from_millis(5) >= LINGER, "{took:?}");
    assert!(took[TIMES - 1] <= LINGER + SLACK, "{took:?}");
}

/// The program does not listen to SIGTERM, and does its work in a grandchild that got away; the server
/// was restarted meanwhile, so the guardian was handed a second connection.
#[tokio::test]
async fn l15_the_key_is_not_free_before_the_program_is_gone() {
    let mut server = Server::start().await;
    let dir = Dir::new("log");
    let log = dir.join("log");
    let words = ["run", "--ttl", "30s", "job:x", "--"];
    let mut run = server.cli(&words).args(escaping_writer(&log)).spawn();
    let own = writing(&log).await;
    streaming(&server, 1).await;

    server.child.kill9();
    server.restart().await;
    streaming(&server, 1).await;
    // L15: neither the end of the server nor the time without it is a death.
    tokio::time::sleep(LINGER * 2).await;
    let remote = remote(&server);
    let key: Key = "job:x".parse().expect("a key");
    let held = remote.lease(key).await.expect("an answer");
    assert_eq!(held.map(|lease| lease.token.get()), Some(own));

    let began = Instant::now();
    run.kill9_alone();
    let granted_ms = next(&remote, "job:x").await;
    let took = began.elapsed();
    let last_ms = read_log(&log).last().expect("it wrote").at_ms;
    println!(
        "granted {took:?} after the kill, {} ms after the program's last sign",
        granted_ms - last_ms
    );
    assert!(
        last_ms <= granted_ms,
        "it ran {} ms too long",
        last_ms - granted_ms
    );
    assert!(took <= ORPHAN_GRACE + LINGER + SLACK, "{took:?}");
    // And it is gone for good.
    tokio::time::sleep(LINGER).await;
    assert_eq!(read_log(&log).last().expect("it wrote").at_ms, last_ms);
}

#[tokio::test]
async fn l15_a_proxy_that_cuts_connections_ends_no_lease() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.address).await;
    let dir = Dir::new("log");
    let log = dir.join("log");
    let words = ["run", "--ttl", "30s", "job:x", "--"];
    let program = crate::cli_support::writer(&log);
    let mut run = server.cli_at(proxy.addr(), &words).args(program).spawn();
    let own = writing(&log).await;
    streaming(&server, 1).await;
    proxy.cut();
    // Longer than the linger, and nobody can come back.
    streaming(&server, 0).await;
    tokio::time::sleep(LINGER * 3).await;
    let key: Key = "job:x".parse().expect("a key");
    let lease = remote(&server).lease(key).await.expect("an answer");
    assert_eq!(lease.map(|lease| lease.token.get()), Some(own));
    proxy.pass();
    streaming(&server, 1).await;
    assert!(run.is_running(), "{}", run.tail());
    run.kill9();
}

#[tokio::test]
async fn l15_pollers_and_workers_over_http_have_a_stream_and_leave_with_it() {
    let server = Server::start().await;
    let remote = remote(&server);
    let url = format!("http://{}", server.address);
    let config = server.dir.join("poll.yaml");
    let targets = server.dir.join("targets.yaml");
    fs::write(&targets, "[{id: t}]").expect("a file");
    let text = format!(
        "poll:\n  targets_file: {}\n  url: {url}/healthz\n",
        targets.display()
    );
    fs::write(&config, text).expect("a file");
    let config = config.display().to_string();
    let mut poll = server.cli(&["poll", "--config", &config]).spawn();
    let key: Key = "poll:t".parse().expect("a key");
    wait::until(SOON, "the target is owned", async || {
        remote.lease(key.clone()).await.is_ok_and(|it| it.is_some())
    })
    .await;
    // Two keepers, one holder, one stream.
    streaming(&server, 1).await;
    let began = Instant::now();
    poll.kill9();
    wait::until(SOON, "the target is free", async || {
        remote.lease(key.clone()).await.is_ok_and(|it| it.is_none())
    })
    .await;
    assert!(began.elapsed() < LINGER + SLACK, "{:?}", began.elapsed());

    let mut worker = server.cli(&["worker", "--name", "w"]).spawn();
    worker.wait_for_line("takes sessions", SOON).await;
    streaming(&server, 1).await;
    let key: Key = "worker:w".parse().expect("a key");
    let announced = remote.lease(key.clone()).await.expect("an answer");
    assert!(announced.is_some());
    let began = Instant::now();
    worker.kill9();
    wait::until(SOON, "the worker's presence is gone", async || {
        remote.lease(key.clone()).await.is_ok_and(|it| it.is_none())
    })
    .await;
    assert!(began.elapsed() < LINGER + SLACK, "{:?}", began.elapsed());
}
