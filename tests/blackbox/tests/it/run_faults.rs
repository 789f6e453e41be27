//! The program never runs a moment past its holder's deadline, whatever happens to the network, the
//! server, the client and the guardian. The program itself writes down when it ran.

use std::time::Duration;

use leasehold_testkit::{Child, Dir, Proxy, wait};
use nix::sys::signal::Signal;

use crate::cli_support::{
    SOON, Server, boot_ms, escaping_writer, read_log, silent, writer, writing,
};

/// Short enough for a test, long enough for a busy machine.
const TTL: &str = "5s";
const TTL_MS: u64 = 5_000;
/// A tenth of the ttl: how much earlier than the authority the holder stops (L10).
const MARGIN_MS: u64 = 500;

/// Everything of one case: a server, a proxy before it, and a program that runs.
struct Case {
    server: Server,
    proxy: Proxy,
    dir: Dir,
    run: Child,
}

impl Case {
    /// Starts the program and lets its lease be renewed at least twice.
    async fn start(program: fn(&std::path::Path) -> Vec<String>, arguments: &[&str]) -> Self {
        let server = Server::start().await;
        let proxy = Proxy::start(server.address).await;
        let dir = Dir::new("log");
        let mut words = vec!["run", "--log", "leasehold=debug,error", "--ttl", TTL];
        words.extend(arguments);
        words.extend(["job:x", "--"]);
        let program = program(&dir.join("log"));
        let mut run = server.cli_at(proxy.addr(), &words).args(program).spawn();
        writing(&dir.join("log")).await;
        for _ in 0..2 {
            let position = run.position();
            run.wait_for_line_from(position, "stops_at_boot_ms", SOON)
                .await;
        }
        Self {
            server,
            proxy,
            dir,
            run,
        }
    }

    /// The holder's own deadline, as the client last told it.
    fn deadline_ms(&self) -> u64 {
        let lines = self.run.lines();
        let reported = lines.iter().rev().find_map(|line| {
            let (_, after) = line.split_once("stops_at_boot_ms=")?;
            after.split_whitespace().next()?.parse().ok()
        });
        reported.expect("the client tells its deadline")
    }

    /// The last moment at which the program ran, once it has fallen silent.
    async fn last_ms(&self) -> u64 {
        silent(&self.dir.join("log"), SOON).await.at_ms
    }

    /// The program fell silent before the deadline, and not long before it was asked to stop.
    async fn assert_stopped_in_time(&self) {
        let last_ms = self.last_ms().await;
        let deadline_ms = self.deadline_ms();
        println!(
            "stopped {} ms before the deadline",
            deadline_ms.saturating_sub(last_ms)
        );
        assert!(
            last_ms < deadline_ms,
            "{} ms too late",
            last_ms - deadline_ms
        );
        assert!(
            last_ms + TTL_MS / 2 > deadline_ms,
            "{} ms too early",
            deadline_ms - last_ms
        );
    }

    /// When the authority lets others have the key, on the machine's clock of deadlines.
    async fn expires_at_boot_ms(&self) -> u64 {
        let lease = self.server.json(&["lease", "get", "job:x", "--json"]).await;
        let lease: leasehold_api::Lease = serde_json::from_value(lease).expect("a lease");
        let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970");
        let unix_ms = u64::try_from(now.as_millis()).expect("fits");
        let offset = unix_ms - boot_ms();
        lease.expires_at.0.get() - offset
    }
}

#[tokio::test]
async fn l10_a_silent_partition_stops_the_program_in_time() {
    let mut case = Case::start(writer, &[]).await;
    case.proxy.blackhole();
    // An answer that was on its way may have been swallowed: the authority then knows better.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let expires_ms = case.expires_at_boot_ms().await;
    assert_eq!(
        case.run.wait(SOON).await.code(),
        Some(79),
        "{}",
        case.run.tail()
    );
    case.assert_stopped_in_time().await;
    let last_ms = case.last_ms().await;
    assert!(
        last_ms + MARGIN_MS <= expires_ms,
        "the authority saw it end first"
    );
}

#[tokio::test]
async fn l10_a_cut_connection_stops_the_program_in_time() {
    let mut case = Case::start(writer, &[]).await;
    case.proxy.cut();
    assert_eq!(
        case.run.wait(SOON).await.code(),
        Some(79),
        "{}",
        case.run.tail()
    );
    case.assert_stopped_in_time().await;
}

#[tokio::test]
async fn l11_a_short_partition_is_survived() {
    let case = Case::start(writer, &[]).await;
    case.proxy.blackhole();
    tokio::time::sleep(Duration::from_millis(TTL_MS / 4)).await;
    case.proxy.pass();
    let log = case.dir.join("log");
    let until = boot_ms() + TTL_MS * 2;
    wait::until(SOON, "it still writes two ttls later", async || {
        read_log(&log).last().is_some_and(|line| line.at_ms > until)
    })
    .await;
    let mut tokens: Vec<u64> = read_log(&log).iter().map(|line| line.token).collect();
    tokens.dedup();
    assert_eq!(tokens.len(), 1, "under the same token");
}

#[tokio::test]
async fn l10_a_paused_client_does_not_keep_the_program_alive() {
    let mut case = Case::start(escaping_writer, &[]).await;
    case.run.signal(Signal::SIGSTOP);
    case.assert_stopped_in_time().await;
    // Another holder gets the key while the client sleeps, and nothing overlaps.
    let log = case.dir.join("log");
    let next = [
        "run", "--wait", "20s", "job:x", "--", "timeout", "-s", "KILL", "0.2",
    ];
    let mut next = case.server.cli(&next).args(writer(&log)).spawn();
    assert_eq!(next.wait(SOON).await.code(), Some(137));
    let wrote = read_log(&log);
    assert!(
        wrote.is_sorted_by_key(|line| line.token),
        "tokens grow and never mix"
    );
    assert!(wrote.is_sorted_by_key(|line| line.at_ms));
    case.run.signal(Signal::SIGCONT);
    assert_eq!(
        case.run.wait(SOON).await.code(),
        Some(79),
        "{}",
        case.run.tail()
    );
}

#[tokio::test]
async fn l10_a_killed_client_takes_its_program_with_it() {
    let mut case = Case::start(escaping_writer, &[]).await;
    let deadline_ms = case.deadline_ms();
    case.run.kill9_alone();
    let last_ms = case.last_ms().await;
    // A renewal may have gone out between the last look and the kill; it only adds time.
    assert!(
        last_ms < deadline_ms + TTL_MS / 3,
        "stopped with its client"
    );
}

#[tokio::test]
async fn l10_a_killed_server_stops_the_program_in_time() {
    let mut case = Case::start(escaping_writer, &[]).await;
    case.server.child.kill9();
    assert_eq!(
        case.run.wait(SOON).await.code(),
        Some(79),
        "{}",
        case.run.tail()
    );
    case.assert_stopped_in_time().await;
}

#[tokio::test]
async fn l14_a_server_that_restarts_in_time_is_not_noticed() {
    let mut case = Case::start(writer, &[]).await;
    case.server.child.kill9();
    case.server.restart().await;
    let log = case.dir.join("log");
    let until = boot_ms() + TTL_MS * 2;
    wait::until(SOON, "it still writes two ttls later", async || {
        read_log(&log).last().is_some_and(|line| line.at_ms > until)
    })
    .await;
    case.run.signal(Signal::SIGKILL);
}

#[tokio::test]
async fn l10_grandchildren_in_sessions_of_their_own_end_in_time() {
    let mut case = Case::start(escaping_writer, &[]).await;
    case.proxy.blackhole();
    assert_eq!(
        case.run.wait(SOON).await.code(),
        Some(79),
        "{}",
        case.run.tail()
    );
    case.assert_stopped_in_time().await;
}

#[tokio::test]
async fn l13_hold_goes_on_through_an_outage_and_keeps_the_key() {
    let case = Case::start(writer, &["--on-outage", "hold:1m"]).await;
    case.proxy.blackhole();
    let log = case.dir.join("log");
    let until = boot_ms() + TTL_MS * 2;
    wait::until(SOON, "it writes past its ttl", async || {
        read_log(&log).last().is_some_and(|line| line.at_ms > until)
    })
    .await;
    let ran = case.server.run(&["run", "job:x", "--", "true"]).await;
    assert_eq!(ran.code, 75, "withheld from everyone else: {}", ran.stderr);
    case.proxy.pass();
}

#[tokio::test]
async fn a_killed_guardian_ends_the_whole_tree() {
    let mut case = Case::start(escaping_writer, &[]).await;
    let guardian = child_of(case.run.pid()).expect("the guardian runs");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(guardian), Signal::SIGKILL).expect("killed");
    let killed_ms = boot_ms();
    assert_eq!(
        case.run.wait(SOON).await.code(),
        Some(125),
        "{}",
        case.run.tail()
    );
    let last_ms = case.last_ms().await;
    assert!(
        last_ms < killed_ms + 4_000,
        "{} ms later",
        last_ms - killed_ms
    );
    assert_eq!(
        case.server.run(&["lease", "get", "job:x"]).await.code,
        66,
        "released"
    );
}

fn child_of(parent: u32) -> Option<i32> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok();
    let of_main = children.and_then(|list| list.split_whitespace().next()?.parse().ok());
    // The thread that started it is one of the runtime's, perhaps not the first.
    of_main.or_else(|| {
        let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).ok()?;
        tasks.flatten().find_map(|task| {
            let list = std::fs::read_to_string(task.path().join("children")).ok()?;
            list.split_whitespace().next()?.parse().ok()
        })
    })
}
