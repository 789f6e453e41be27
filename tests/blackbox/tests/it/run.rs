//! `leasehold run`: the program's own code, its signals, its environment, and its lease.

use std::time::Duration;

use leasehold_testkit::Dir;
use nix::sys::signal::Signal;

use crate::cli_support::{SOON, Server, boot_ms, read_log, silent, writer, writing};

#[tokio::test]
async fn passes_the_programs_code_and_signal_on() {
    let server = Server::start().await;
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)] {
        let ran = server
            .run(&["run", "job:code", "--", "sh", "-c", script])
            .await;
        assert_eq!(ran.code, code, "{script}: {}", ran.stderr);
    }
    let ran = server
        .run(&["run", "job:code", "--", "/no/such/program"])
        .await;
    assert_eq!(ran.code, 127, "{}", ran.stderr);
    assert!(ran.stderr.contains("/no/such/program"), "{}", ran.stderr);
}

#[tokio::test]
async fn the_program_knows_its_token_and_its_key() {
    let server = Server::start().await;
    let script = "echo $LEASEHOLD_KEY $LEASEHOLD_FENCE; cat; echo err >&2";
    let first = server
        .run(&["run", "job:env", "--", "sh", "-c", script])
        .await;
    let second = server
        .run(&["run", "job:env", "--", "sh", "-c", script])
        .await;
    let token = |stdout: &str| -> u64 {
        let (key, token) = stdout.trim().split_once(' ').expect("two words");
        assert_eq!(key, "job:env");
        token.parse().expect("a number")
    };
    assert!(
        token(&first.stdout) < token(&second.stdout),
        "tokens grow (L3)"
    );
    assert_eq!(first.stderr, "err\n", "nothing of our own in between");
}

#[tokio::test]
async fn somebody_elses_key_is_left_alone() {
    let server = Server::start().await;
    server
        .json(&[
            "lease", "acquire", "job:busy", "--holder", "other", "--json",
        ])
        .await;
    let ran = server.run(&["run", "job:busy", "--", "echo", "ran"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (75, ""));
    assert!(
        ran.stderr.contains("job:busy is held by other"),
        "{}",
        ran.stderr
    );
    let before = boot_ms();
    let ran = server
        .run(&["run", "--wait", "300ms", "job:busy", "--", "echo", "ran"])
        .await;
    assert_eq!((ran.code, ran.stdout.as_str()), (75, ""));
    assert!(boot_ms() - before >= 300, "it waited");
}

#[tokio::test]
async fn signals_reach_the_program_and_its_answer_comes_back() {
    let server = Server::start().await;
    let script = "trap 'echo bye; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut run = server
        .cli(&["run", "job:signal", "--", "sh", "-c", script])
        .spawn();
    run.wait_for_line("ready", SOON).await;
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(SOON).await.code(), Some(9));
    assert!(run.lines().contains(&"bye".to_owned()));
    assert_eq!(
        server.run(&["lease", "get", "job:signal"]).await.code,
        66,
        "released"
    );
}

#[tokio::test]
async fn a_signal_ends_the_wait_for_the_key() {
    let server = Server::start().await;
    server
        .json(&["lease", "acquire", "job:wait", "--json"])
        .await;
    let mut run = server
        .cli(&["run", "--wait", "1m", "job:wait", "--", "echo", "ran"])
        .spawn();
    let pending = || async {
        let leases = server
            .run(&["lease", "ls", "--status", "pending", "--json"])
            .await;
        !leases.stdout.is_empty()
    };
    leasehold_testkit::wait::until(SOON, "it waits in the queue", async || pending().await).await;
    run.signal(Signal::SIGINT);
    assert_eq!(run.wait(SOON).await.code(), Some(130));
    leasehold_testkit::wait::until(SOON, "its place is given up", async || !pending().await).await;
}

#[tokio::test]
async fn the_key_is_free_at_once_when_the_program_ends() {
    let server = Server::start().await;
    let mut first = server
        .cli(&[
            "run",
            "--ttl",
            "5m",
            "job:next",
            "--",
            "sh",
            "-c",
            "echo up; sleep 60",
        ])
        .spawn();
    first.wait_for_line("up", SOON).await;
    let mut second = server
        .cli(&[
            "run", "--ttl", "5m", "--wait", "1m", "job:next", "--", "echo", "mine",
        ])
        .spawn();
    first.signal(Signal::SIGTERM);
    assert_eq!(first.wait(SOON).await.code(), Some(143));
    let ended = boot_ms();
    second.wait_for_line("mine", SOON).await;
    assert!(
        boot_ms() - ended < 5_000,
        "far less than the ttl of 5 minutes"
    );
    assert!(second.wait(SOON).await.success());
}

#[tokio::test]
async fn what_the_program_left_behind_ends_before_the_key_is_free() {
    let server = Server::start().await;
    let dir = Dir::new("log");
    let log = dir.join("log");
    // Waits until the writer in the background is at work, then leaves it behind.
    let script = "f=$1; shift; setsid \"$@\" & while [ ! -s $f ]; do sleep 0.01; done; exit 3";
    let path = log.display().to_string();
    let mut arguments = vec!["run", "job:left", "--", "sh", "-c", script, "sh", &path];
    let writer = writer(&log);
    arguments.extend(writer.iter().map(String::as_str));
    let ran = server.run(&arguments).await;
    let ended = boot_ms();
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    let last = silent(&log, SOON).await;
    assert!(last.at_ms <= ended, "nothing runs after `run` has left");
}

#[tokio::test]
async fn l17_a_revocation_stops_the_program_at_once() {
    let server = Server::start().await;
    let dir = Dir::new("log");
    let log = dir.join("log");
    let mut run = server
        .cli(&["run", "--ttl", "1m", "job:revoked", "--"])
        .args(writer(&log))
        .spawn();
    writing(&log).await;
    let before = boot_ms();
    let revoked = server
        .run(&["lease", "revoke", "job:revoked", "--reason", "told so"])
        .await;
    assert_eq!(revoked.code, 0, "{}", revoked.stderr);
    assert_eq!(run.wait(SOON).await.code(), Some(79));
    assert!(
        boot_ms() - before < 5_000,
        "far less than the ttl of a minute"
    );
    assert!(
        run.tail().contains("it was revoked: told so"),
        "{}",
        run.tail()
    );
    let ended = boot_ms();
    assert!(silent(&log, SOON).await.at_ms <= ended);
}

#[tokio::test]
async fn l1_two_competing_runs_never_overlap_and_tokens_grow() {
    const RUNS: usize = 6;
    let server = Server::start().await;
    let dir = Dir::new("log");
    let log = dir.join("log");
    let mut children = Vec::new();
    for _ in 0..RUNS {
        let writer = writer(&log);
        // Each ends after a while, half of them by being killed with their client.
        let program = server
            .cli(&[
                "run", "--ttl", "5s", "--wait", "1m", "job:race", "--", "timeout", "-s", "KILL",
                "1",
            ])
            .args(writer);
        children.push(program.spawn());
    }
    for (index, child) in children.iter_mut().enumerate() {
        if index % 2 == 0 {
            child.wait(SOON).await;
        }
    }
    for child in &mut children {
        child.wait(SOON).await;
    }
    let wrote = read_log(&log);
    let mut tokens: Vec<u64> = wrote.iter().map(|line| line.token).collect();
    assert!(
        tokens.is_sorted(),
        "each token's lines come before the next one's"
    );
    tokens.dedup();
    assert_eq!(
        tokens.len(),
        RUNS,
        "each ran once, under a token of its own"
    );
    assert!(
        wrote.is_sorted_by_key(|line| line.at_ms),
        "and their times do not overlap"
    );
    let verified = server.run(&["lease", "verify"]).await;
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
}

#[tokio::test]
async fn renewals_come_as_often_as_asked() {
    let server = Server::start().await;
    let arguments = [
        "run",
        "--log",
        "leasehold=debug,error",
        "--ttl",
        "1m",
        "--renew-every",
        "100ms",
    ];
    let mut run = server
        .cli(&arguments)
        .args(["job:pace", "--", "sleep", "60"])
        .spawn();
    let start = boot_ms();
    for _ in 0..3 {
        let position = run.position();
        run.wait_for_line_from(position, "renewed", SOON).await;
    }
    assert!(
        boot_ms() - start < 10_000,
        "far less than a third of a minute"
    );
    let refused = server
        .run(&[
            "run",
            "--ttl",
            "3s",
            "--renew-every",
            "2s",
            "job:pace",
            "--",
            "true",
        ])
        .await;
    assert_eq!(refused.code, 78, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("Worst-case failover"),
        "{}",
        refused.stderr
    );
}

#[tokio::test]
async fn a_server_that_comes_a_little_later_is_waited_for() {
    let mut server = Server::start().await;
    server.child.kill9();
    let mut run = server
        .cli(&["run", "--wait", "20s", "job:late", "--", "echo", "ran"])
        .spawn();
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.restart().await;
    run.wait_for_line("ran", SOON).await;
    assert!(run.wait(SOON).await.success());
}
