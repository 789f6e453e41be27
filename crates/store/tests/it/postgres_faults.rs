//! Three replicas under load while the database is restarted, killed, frozen and slow, and replicas
//! come and go: never two holders, tokens only grow, no acknowledged grant is lost, every failure is
//! typed, and everybody recovers without help.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use lease::{
    Acquire, Acquired, Authority, Error, Event, EventKind, EventQuery, Holder, Key, LeaseId,
    LeaseRef, Renew, Renewal, Renewals, Revision, Ttl,
    history::{Extent, Verifier},
};
use leasehold_store::postgres::{Options, Postgres};
use leasehold_testkit::{Postgres as Server, Proxy, wait};
use tokio::task::JoinSet;

const KEYS: u64 = 5;
const WORKERS: usize = 12;
const PATIENCE: Duration = Duration::from_secs(30);

/// What the workers saw.
#[derive(Default)]
struct Seen {
    granted: Mutex<HashSet<LeaseId>>,
    failures: Mutex<Vec<Error>>,
    rounds: AtomicU64,
    over: AtomicBool,
}

/// A replica that may be replaced while it is used.
type Replica = Arc<Mutex<Arc<Postgres>>>;

fn current(replica: &Replica) -> Arc<Postgres> {
    replica.lock().expect("not poisoned").clone()
}

async fn open(url: &str) -> Arc<Postgres> {
    let mut options: Options = url.parse().expect("a well-formed URL");
    options.statement_timeout = Duration::from_millis(1_500);
    let opened = wait::until_some(PATIENCE, "the store opens", async || {
        Postgres::open(options.clone()).await.ok()
    });
    Arc::new(opened.await)
}

/// Takes a key, keeps it a while, gives it back, and again, through one replica.
async fn work(number: usize, replica: Replica, seen: Arc<Seen>) {
    let mut round = 0_u64;
    while !seen.over.load(Ordering::Relaxed) {
        round += 1;
        let mut request = asking(number, round);
        request.wait_ms = if round.is_multiple_of(3) { 300 } else { 0 };
        if let Err(error) = one_round(&current(&replica), request, &seen).await {
            assert!(
                matches!(error, Error::Unavailable(_) | Error::Unknown(_)),
                "not a failure of the way: {error:?}"
            );
            seen.failures.lock().expect("not poisoned").push(error);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn asking(number: usize, round: u64) -> Acquire {
    let holder = Holder::new(&format!("worker-{number}"), &round.to_string());
    let key = Key::new("camera", &format!("k{}", (number as u64 + round) % KEYS));
    let ttl = Ttl::from_millis(1_000);
    Acquire::one(
        key.expect("a well-formed key"),
        holder.expect("a well-formed holder"),
        ttl.expect("in range"),
    )
}

async fn one_round(store: &Postgres, request: Acquire, seen: &Seen) -> Result<(), Error> {
    let Acquired::Granted { leases, .. } = store.acquire(request).await? else {
        seen.rounds.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    };
    let lease = &leases[0];
    seen.granted.lock().expect("not poisoned").insert(lease.id);
    let renew = Renew {
        holder: lease.holder.clone(),
        leases: Renewals::These(vec![Renewal::of(lease)]),
    };
    store.renew(renew).await?;
    store.release(LeaseRef::from(lease)).await?;
    seen.rounds.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

async fn history(store: &Postgres) -> Vec<Event> {
    let mut events = Vec::new();
    let mut after = Revision::ZERO;
    loop {
        let query = EventQuery {
            after,
            limit: 1_000,
            ..EventQuery::default()
        };
        let page = store.events(query).await.expect("the history is answered");
        events.extend(page.events);
        if !page.more {
            return events;
        }
        after = events
            .last()
            .expect("a page with more is not empty")
            .revision;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicas_survive_a_restarted_killed_frozen_and_slow_database_heavy() {
    let mut server = Server::start().await;
    let proxy = Proxy::start(server.addr()).await;
    let direct = server.url();
    let slow = format!("postgres://postgres@{}/postgres", proxy.addr());
    let mut replicas: Vec<Replica> = Vec::new();
    for url in [&direct, &direct, &slow] {
        replicas.push(Arc::new(Mutex::new(open(url).await)));
    }
    let seen = Arc::new(Seen::default());
    let mut workers = JoinSet::new();
    for number in 0..WORKERS {
        workers.spawn(work(number, replicas[number % 3].clone(), seen.clone()));
    }
    let progress = async |what: &str| {
        let before = seen.rounds.load(Ordering::Relaxed);
        wait::until(PATIENCE, what, async || {
            seen.rounds.load(Ordering::Relaxed) > before + 3 * WORKERS as u64
        })
        .await;
    };
    progress("work before any fault").await;
    server.restart().await;
    progress("work after a restart of the database").await;
    server.kill9();
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.restart().await;
    progress("work after a crash of the database").await;
    server.pause();
    tokio::time::sleep(Duration::from_secs(4)).await;
    server.resume();
    progress("work after the database was frozen").await;
    proxy.delay(Duration::from_millis(150));
    progress("work while one replica is slow").await;
    proxy.blackhole();
    tokio::time::sleep(Duration::from_secs(3)).await;
    proxy.cut();
    tokio::time::sleep(Duration::from_millis(500)).await;
    proxy.pass();
    progress("work after one replica was cut off").await;
    let next = open(&direct).await;
    *replicas[0].lock().expect("not poisoned") = next;
    progress("work after a replica was replaced").await;
    seen.over.store(true, Ordering::Relaxed);
    workers.join_all().await;

    let store = current(&replicas[1]);
    let events = history(&store).await;
    let mut verifier = Verifier::new(Extent::After(Revision::ZERO));
    for event in &events {
        verifier.see(event);
    }
    let (count, faults) = verifier.finish();
    assert!(faults.is_empty(), "in {count} events: {faults:?}");
    for pair in events.windows(2) {
        assert_eq!(
            pair[0].revision.next(),
            pair[1].revision,
            "no revision is missing"
        );
    }
    let reported: HashSet<LeaseId> = events
        .iter()
        .filter(|event| event.kind == EventKind::LeaseAcquired)
        .filter_map(|event| event.lease.as_ref().map(|lease| lease.id))
        .collect();
    let granted = seen.granted.lock().expect("not poisoned").clone();
    let lost: Vec<_> = granted.difference(&reported).collect();
    assert!(lost.is_empty(), "acknowledged grants were lost: {lost:?}");
    let failures = seen.failures.lock().expect("not poisoned").len();
    println!(
        "{} rounds, {} grants, {failures} typed failures, {count} events",
        seen.rounds.load(Ordering::Relaxed),
        granted.len()
    );
    assert!(failures > 0, "the faults were felt");
}
