//! Processes that are killed in the middle of everything.
//!
//! The child is this very test executable, told by its environment to be one: it drives a store with
//! 64 clients and prints every operation that was acknowledged. Whatever it printed must be true after
//! its death.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{
    collections::{BTreeMap, HashSet},
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lease::{Acquire, Acquired, Authority, EventKind, Holder, Key, LeaseRef, Ttl};
use leasehold_clock::System;
use leasehold_store::embedded::{Embedded, OpenError, Options};
use leasehold_testkit::length;

use crate::embedded_kit::{events, granted};

/// Names the folder of a child, and its round.
const DIR: &str = "LEASEHOLD_TEST_DIR";
const ROUND: &str = "LEASEHOLD_TEST_ROUND";
const CLIENTS: usize = 64;
/// Kills in an ordinary run and in a soak.
const ROUNDS: (usize, usize) = (10, 100);

/// What a child said before it died.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Said {
    Granted(Key, u64),
    Released(Key, u64),
}

/// The whole history is needed to check what was said.
fn options(dir: &Path) -> Options {
    let mut options = Options::at(dir);
    options.history.max_events = u64::MAX >> 2;
    // Kills are to meet slots that move on.
    options.recent_keys = 32;
    options
}

async fn open(dir: &Path) -> Result<Embedded, OpenError> {
    Embedded::open(options(dir), Arc::new(System)).await
}

/// 64 clients that take and give back keys they share, until they are stopped.
async fn load(store: &Embedded, round: &str, stop: Arc<AtomicBool>, say: fn(&Said)) {
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let (store, stop) = (store.clone(), stop.clone());
        let holder = Holder::new(&format!("client-{client}"), round).unwrap();
        clients.spawn(async move {
            let mut turn = client;
            while !stop.load(Ordering::Relaxed) {
                turn += 1;
                let key = Key::new("job", &(turn % 40).to_string()).unwrap();
                let request =
                    Acquire::one(key.clone(), holder.clone(), Ttl::from_secs(3600).unwrap());
                let Acquired::Granted { leases, .. } = store.acquire(request).await.unwrap() else {
                    continue;
                };
                let token = leases[0].token.get();
                say(&Said::Granted(key.clone(), token));
                if turn % 5 != 0 && store.release(LeaseRef::from(&leases[0])).await.unwrap() {
                    say(&Said::Released(key, token));
                }
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
}

fn print(said: &Said) {
    match said {
        Said::Granted(key, token) => println!("said G {key} {token}"),
        Said::Released(key, token) => println!("said R {key} {token}"),
    }
}

fn parse(line: &str) -> Option<Said> {
    let mut words = line.strip_prefix("said ")?.split(' ');
    let (what, key, token) = (words.next()?, words.next()?, words.next()?);
    let (key, token) = (key.parse().ok()?, token.parse().ok()?);
    match what {
        "G" => Some(Said::Granted(key, token)),
        "R" => Some(Said::Released(key, token)),
        _ => None,
    }
}

/// The child's life. On its own it is a short load on a folder of its own, which must go through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_clients_share_forty_keys() {
    let own = tempfile::tempdir().unwrap();
    let (dir, child) = match std::env::var_os(DIR) {
        Some(dir) => (dir.into(), true),
        None => (own.path().to_owned(), false),
    };
    let round = std::env::var(ROUND).unwrap_or_else(|_| "0".into());
    let store = open(&dir).await.unwrap();
    // Earlier rounds' leases would leave nothing to take.
    for client in 0..CLIENTS {
        let holder = Holder::new(&format!("client-{client}"), &round).unwrap();
        let _ = store
            .depart(lease::Departure::Succeeded(holder))
            .await
            .unwrap();
    }
    println!("said ready");
    let stop = Arc::new(AtomicBool::new(false));
    let time = if child { 60_000 } else { 200 };
    let timer = stop.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(time)).await;
        timer.store(true, Ordering::Relaxed);
    });
    load(&store, &round, stop, if child { print } else { |_| () }).await;
    assert!(events(&store).await.len() > CLIENTS);
    store.close().await.unwrap();
}

fn start(dir: &Path, round: usize) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "embedded_crash::sixty_four_clients_share_forty_keys",
            "--nocapture",
        ])
        .env(DIR, dir)
        .env(ROUND, format!("r{round}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while line != "said ready\n" {
        line.clear();
        assert_ne!(
            lines.read_line(&mut line).unwrap(),
            0,
            "the child ended early"
        );
        // The harness prints the test's name without a line end.
        if line.ends_with("said ready\n") {
            break;
        }
    }
    (child, lines)
}

/// Kills a child after it has said `count` things, and returns all that it said.
fn kill_after(
    mut child: Child,
    mut lines: BufReader<std::process::ChildStdout>,
    count: usize,
) -> Vec<Said> {
    let (mut said, mut line) = (Vec::new(), String::new());
    // A line that the kill cut in two was never said.
    while lines.read_line(&mut line).unwrap() > 0 && line.ends_with('\n') {
        said.extend(parse(line.trim_end()));
        line.clear();
        if said.len() == count {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    said
}

#[tokio::test]
async fn l14_a_killed_process_keeps_its_folder_to_itself_and_loses_nothing_it_said() {
    let dir = tempfile::tempdir().unwrap();
    let (child, lines) = start(dir.path(), 0);
    let pid = child.id();
    match open(dir.path()).await {
        Err(error @ OpenError::InUse { .. }) => {
            assert!(
                error.to_string().contains(&format!("process {pid}")),
                "{error}"
            );
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("two processes on one folder"),
    }
    let said = kill_after(child, lines, 500);
    let store = open(dir.path()).await.unwrap();
    check(&store, &said).await;
    let history = events(&store).await;
    let last = history.last().unwrap();
    assert_eq!(last.kind, EventKind::AuthorityResumed);
    assert!(
        last.detail
            .as_ref()
            .unwrap()
            .contains("\"after\":\"crash\"")
    );
    let now = store.now().await.unwrap();
    let query = lease::LeaseQuery {
        limit: 100,
        ..lease::LeaseQuery::default()
    };
    for lease in store.leases(query).await.unwrap().items {
        assert!(
            lease.expires_at.since(now) > 3_590_000,
            "the full ttl: {lease:?}"
        );
    }
}

#[tokio::test]
async fn heavy_kills_under_load_lose_nothing_acknowledged_and_repeat_no_token() {
    let dir = tempfile::tempdir().unwrap();
    let mut said = Vec::new();
    let rounds = length::pick(ROUNDS.0, ROUNDS.1);
    for round in 0..rounds {
        let (child, lines) = start(dir.path(), round);
        // A different point of the load each time.
        said.extend(kill_after(child, lines, 50 + (round * 37) % 400));
    }
    let store = open(dir.path()).await.unwrap();
    check(&store, &said).await;
    println!("{rounds} kills, {} acknowledged operations", said.len());
    // Each key goes on above the highest of its own tokens that anybody was given.
    let mut highest = BTreeMap::new();
    for said in &said {
        let (Said::Granted(key, token) | Said::Released(key, token)) = said;
        let last = highest.entry(key.clone()).or_insert(*token);
        *last = (*last).max(*token);
    }
    assert!(highest.len() > 20, "only {} keys were had", highest.len());
    let fresh = Holder::new("fresh", "1").unwrap();
    for (key, last) in highest {
        let request = Acquire {
            force: Some("to see its token".into()),
            ..Acquire::one(key, fresh.clone(), Ttl::from_secs(60).unwrap())
        };
        let lease = granted(store.acquire(request).await.unwrap());
        assert!(lease.token.get() > last, "{lease:?} after {last}");
    }
}

/// Everything that was said is in the history, and the history itself is sound.
async fn check(store: &Embedded, said: &[Said]) {
    let history = events(store).await;
    let every = lease::history::Extent::After(lease::Revision::ZERO);
    let mut verifier = lease::history::Verifier::new(every);
    let mut happened = HashSet::new();
    for event in &history {
        verifier.see(event);
        let Some(lease) = &event.lease else { continue };
        let token = lease.token.get();
        match event.kind {
            EventKind::LeaseAcquired => {
                assert!(
                    happened.insert(Said::Granted(event.key.clone(), token)),
                    "a token was granted twice: {event:?}"
                );
            }
            EventKind::LeaseReleased => {
                happened.insert(Said::Released(event.key.clone(), token));
            }
            _ => {}
        }
    }
    assert_eq!(verifier.finish().1, []);
    for said in said {
        assert!(happened.contains(said), "acknowledged and lost: {said:?}");
    }
}
