//! What others got wrong (docs/lessons.md), on every store: thousands of leases that expire beside many
//! live ones, batched renewals that become a call per lease, watchers that do not read, and grants that
//! nobody took.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{path::Path, sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use lease::{
    Acquire, Acquired, Authority, Departure, EventKind, EventQuery, Holder, Key, Lease, LeaseRef,
    Notice, Renew, Renewal, Renewals, Revision, Ttl, Want, Watching,
};
use leasehold_clock::System;
use leasehold_store::{
    conformance::{RealTime, waiting},
    embedded::{self, Embedded},
    postgres::Postgres,
    redis::Redis,
};
use leasehold_testkit::{Postgres as PostgresServer, redis::Redis as RedisServer};

/// Long enough for a busy machine; reached only by a test that fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many keys one request may name, about.
const BATCH: usize = 250;

/// Takes `count` keys of a kind, in batches.
async fn take(store: &dyn Authority, kind: &str, count: usize, ttl: Ttl) -> Vec<Lease> {
    let keys: Vec<Key> = (0..count)
        .map(|number| Key::new(kind, &format!("{number:05}")).unwrap())
        .collect();
    let mut taken = Vec::with_capacity(count);
    for keys in keys.chunks(BATCH) {
        let request = Acquire::of(Want::All(keys.to_vec()), holder(), ttl);
        match store.acquire(request).await.unwrap() {
            Acquired::Granted { leases, .. } => taken.extend(leases),
            Acquired::Refused(refusal) => panic!("{refusal:?}"),
        }
    }
    taken
}

fn holder() -> Holder {
    Holder::new("ann", "1").unwrap()
}

async fn postgres(server: &PostgresServer) -> Postgres {
    Postgres::open(server.url().parse().unwrap()).await.unwrap()
}

async fn redis(server: &RedisServer) -> Redis {
    Redis::open_url(&server.url()).await.unwrap()
}

async fn embedded(dir: &Path) -> Embedded {
    let options = embedded::Options::at(dir);
    Embedded::open(options, Arc::new(System)).await.unwrap()
}

/// The expiry of many is not capped, nor held up by those that live: each is announced when it lapses.
async fn many_expire_beside_many(store: &dyn Authority) {
    const LIVE: usize = 5_000;
    const DYING: usize = 4_000;
    /// Far beyond what it takes, and below what a cap of 1,000 a second would make of it.
    const LATE_MS: u64 = 3_500;
    let live = take(store, "live", LIVE, Ttl::from_secs(3_600).unwrap()).await;
    // They lapse within as short a time as it took to take them.
    let dying = take(store, "dying", DYING, Ttl::from_secs(5).unwrap()).await;
    let last = dying.iter().map(|lease| lease.expires_at).max().unwrap();
    let (mut after, mut expired) = (Revision::ZERO, 0);
    let mut latest = 0;
    let all = async {
        while expired < DYING {
            let page = store.events(EventQuery {
                after,
                kind: Some("dying".into()),
                limit: 1_000,
                ..EventQuery::default()
            });
            let page = page.await.unwrap();
            for event in &page.events {
                after = event.revision;
                if event.kind != EventKind::LeaseExpired {
                    continue;
                }
                let lapsed = event.lease.as_ref().unwrap().expires_at;
                assert!(event.at >= lapsed, "early: {event:?}");
                latest = latest.max(event.at.since(lapsed));
                expired += 1;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let within = tokio::time::timeout(PATIENCE, all).await;
    assert!(within.is_ok(), "{expired} of {DYING} expired after {last}");
    assert!(latest <= LATE_MS, "one was {latest} ms late");
    println!("{DYING} beside {LIVE}: the last was {latest} ms late");
    let tokens = live.iter().map(|lease| (lease.key.clone(), lease.token));
    let verdicts = store.check(tokens.take(1_000).collect()).await.unwrap();
    assert!(verdicts.iter().all(|it| *it == lease::Verdict::Current));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_l12_thousands_expire_on_time_beside_many_live_ones_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    many_expire_beside_many(&embedded(dir.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_l12_thousands_expire_on_time_beside_many_live_ones_on_postgres() {
    let server = PostgresServer::start().await;
    many_expire_beside_many(&postgres(&server).await).await;
}

/// Plans are made once per connection, here for empty tables: that must not make a search for one lease a
/// walk over all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_found_without_a_look_at_the_others_on_postgres() {
    const COUNT: usize = 2_000;
    let server = PostgresServer::options()
        .fsync(false)
        .set("autovacuum", "off")
        .start()
        .await;
    let url = format!("{}?leasehold_allow=fsync_off", server.url());
    let store = Postgres::open(url.parse().unwrap()).await.unwrap();
    for lease in take(&store, "job", COUNT, Ttl::from_secs(3_600).unwrap()).await {
        if lease.key.id().ends_with("00") {
            let one = Renewals::These(vec![Renewal::of(&lease)]);
            let request = Renew {
                holder: holder(),
                leases: one,
            };
            assert!(store.renew(request).await.unwrap()[0].outcome.is_ok());
            assert!(store.release(LeaseRef::from(&lease)).await.unwrap());
        }
    }
    drop(store);
    // What a connection read is counted when it ends.
    let all = async {
        while server
            .psql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
            .await
            .trim()
            != "1"
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, all).await.unwrap();
    let read = server
        .psql(
            "SELECT sum(coalesce(idx_tup_fetch, 0) + seq_tup_read) FROM pg_stat_user_tables \
             WHERE relname = 'leases'",
        )
        .await;
    let read: usize = read.trim().parse().unwrap();
    assert!(read >= COUNT / 100, "only {read} rows were counted");
    assert!(read < 10 * COUNT, "{read} rows read for {COUNT} leases");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_l12_thousands_expire_on_time_beside_many_live_ones_on_redis() {
    let server = RedisServer::start().await;
    many_expire_beside_many(&redis(&server).await).await;
}

/// How often a batch is renewed, and how many leases it has.
const RENEWALS: u64 = 200;
const LEASES: usize = 100;

/// Renews everything that the holder has, often: what the store was asked meanwhile is compared with it.
async fn renew_often(store: &dyn Authority) {
    for _ in 0..RENEWALS {
        let request = Renew {
            holder: holder(),
            leases: Renewals::All,
        };
        let renewed = store.renew(request).await.unwrap();
        assert_eq!(renewed.len(), LEASES);
        assert!(renewed.iter().all(|renewed| renewed.outcome.is_ok()));
    }
}

/// One each, and what the store does by itself meanwhile; two each would be more than this.
fn assert_one_each(asked: u64) {
    assert!(asked >= RENEWALS, "only {asked} were counted");
    assert!(
        asked < 2 * RENEWALS,
        "{asked} round trips for {RENEWALS} renewals of {LEASES} leases"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l9_a_batched_renewal_is_one_round_trip_on_postgres() {
    let server = PostgresServer::options()
        .fsync(false)
        .set("shared_preload_libraries", "pg_stat_statements")
        .start()
        .await;
    server.psql("CREATE EXTENSION pg_stat_statements").await;
    let url = format!("{}?leasehold_allow=fsync_off", server.url());
    let store = Postgres::open(url.parse().unwrap()).await.unwrap();
    take(&store, "job", LEASES, Ttl::from_secs(3_600).unwrap()).await;
    server.psql("SELECT pg_stat_statements_reset()").await;
    renew_often(&store).await;
    let calls = server
        .psql("SELECT sum(calls) FROM pg_stat_statements WHERE toplevel")
        .await;
    assert_one_each(calls.trim().parse().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l9_a_batched_renewal_is_one_round_trip_on_redis() {
    let server = RedisServer::start().await;
    let store = redis(&server).await;
    take(&store, "job", LEASES, Ttl::from_secs(3_600).unwrap()).await;
    server.cli(&["CONFIG", "RESETSTAT"]).await;
    renew_often(&store).await;
    // What a script calls is counted apart from the script.
    let stats = server.cli(&["INFO", "commandstats"]).await;
    let calls = stats.lines().filter_map(|line| {
        let (name, fields) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let calls = fields.strip_prefix("calls=")?.split(',').next()?;
        name.starts_with("eval")
            .then(|| calls.parse::<u64>().unwrap())
    });
    assert_one_each(calls.sum());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l9_a_batched_renewal_writes_nothing_to_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = embedded(dir.path()).await;
    take(&store, "job", LEASES, Ttl::from_secs(3_600).unwrap()).await;
    let files = || -> Vec<_> {
        let mut files: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let metadata = entry.metadata().unwrap();
                let written = metadata.modified().unwrap();
                (entry.file_name(), metadata.len(), written)
            })
            .collect();
        files.sort();
        files
    };
    let before = files();
    assert!(!before.is_empty());
    renew_often(&store).await;
    assert_eq!(files(), before);
}

/// A watcher that does not read costs the others nothing, and learns later what it missed: every change in
/// order, or a snapshot in its place, and never a silent gap.
async fn a_slow_watcher_misses_nothing_silently(store: &dyn Authority) {
    /// More changes than any store keeps ready for one watcher.
    const ROUNDS: usize = 20;
    let mut slow = store.watch(Watching::everything()).await.unwrap();
    let first = slow.next();
    // It is under way before the first change.
    let opened = take(store, "begin", 1, Ttl::from_secs(3_600).unwrap()).await;
    let mut last = tokio::time::timeout(PATIENCE, first).await.unwrap();
    while let Some(Ok(Notice::Progress(_))) = last {
        last = tokio::time::timeout(PATIENCE, slow.next()).await.unwrap();
    }
    let mut seen = last.unwrap().unwrap().revision();
    for _ in 0..ROUNDS {
        take(store, "job", BATCH, Ttl::from_secs(3_600).unwrap()).await;
        store.depart(Departure::Left(holder())).await.unwrap();
    }
    drop(opened);
    let page = store.events(EventQuery {
        limit: 1,
        ..EventQuery::default()
    });
    let newest = page.await.unwrap().newest;
    assert!(newest.get() - seen.get() >= (2 * ROUNDS * BATCH) as u64);
    let (mut events, mut snapshots) = (0, 0);
    while seen < newest {
        let notice = tokio::time::timeout(PATIENCE, slow.next()).await;
        match notice.expect("it goes on").unwrap().unwrap() {
            Notice::Event(event) => {
                assert_eq!(event.revision, seen.next(), "a silent gap");
                seen = event.revision;
                events += 1;
            }
            Notice::Snapshot(snapshot) => {
                assert!(snapshot.revision >= seen, "back in time");
                seen = snapshot.revision;
                snapshots += 1;
            }
            Notice::Progress(revision) => assert!(revision <= seen, "a silent gap"),
        }
    }
    assert!(snapshots > 0 || events >= 2 * ROUNDS * BATCH);
    println!("{events} events and {snapshots} snapshots");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_l20_a_slow_watcher_misses_nothing_silently_on_postgres() {
    let server = PostgresServer::start().await;
    a_slow_watcher_misses_nothing_silently(&postgres(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_l20_a_slow_watcher_misses_nothing_silently_on_redis() {
    let server = RedisServer::start().await;
    a_slow_watcher_misses_nothing_silently(&redis(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l6_a_grant_that_nobody_took_goes_back_on_postgres() {
    let server = PostgresServer::shared().await;
    let store = Postgres::open(server.url().parse().unwrap()).await.unwrap();
    waiting::l6_a_grant_that_nobody_took_goes_back(&RealTime::new(Arc::new(store))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l6_a_grant_that_nobody_took_goes_back_on_redis() {
    let server = RedisServer::start().await;
    let store = redis(&server).await;
    waiting::l6_a_grant_that_nobody_took_goes_back(&RealTime::new(Arc::new(store))).await;
}
