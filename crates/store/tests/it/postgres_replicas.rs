//! Several replicas on one database: one truth, and none is special.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use lease::{
    Acquire, Acquired, Authority, Error, EventKind, EventQuery, Holder, Key, Lease, LeaseQuery,
    LeaseRef, Notice, Renew, Renewals, Status, Transaction, Ttl, Write,
};
use leasehold_store::postgres::{Options, Postgres};
use leasehold_testkit::{Postgres as Server, length, wait};
use tokio::task::JoinSet;

/// How many rounds the race has in an ordinary run and in a soak; `LEASEHOLD_RACE_ROUNDS` decides for
/// it alone.
const RACE_ROUNDS: (u32, u32) = (40, 1_000);
const PATIENCE: Duration = Duration::from_secs(20);

fn options(url: &str) -> Options {
    url.parse().expect("a well-formed URL")
}

async fn replicas(url: &str, count: usize) -> Vec<Arc<Postgres>> {
    let mut opening = JoinSet::new();
    for _ in 0..count {
        opening.spawn(Postgres::open(options(url)));
    }
    let opened = opening.join_all().await;
    opened
        .into_iter()
        .map(|store| Arc::new(store.expect("the store opens")))
        .collect()
}

fn key(id: &str) -> Key {
    Key::new("camera", id).expect("a well-formed key")
}

fn ask(id: &str, holder: &str, ttl_ms: u64) -> Acquire {
    let holder = Holder::new(holder, "1").expect("a well-formed holder");
    Acquire::one(key(id), holder, Ttl::from_millis(ttl_ms).expect("in range"))
}

fn patient(request: Acquire) -> Acquire {
    Acquire {
        wait_ms: 60_000,
        ..request
    }
}

async fn take(store: &Postgres, request: Acquire) -> Lease {
    match store.acquire(request).await.expect("answered") {
        Acquired::Granted { mut leases, .. } => leases.remove(0),
        Acquired::Refused(refusal) => panic!("a grant was expected, not {refusal:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicas_that_start_together_migrate_once() {
    let database = Server::shared().await;
    let stores = replicas(&database.url(), 6).await;
    let steps = database
        .psql("SELECT count(*), count(DISTINCT step) FROM leasehold_migrations")
        .await;
    let (all, different) = steps.split_once('|').expect("two numbers");
    assert_eq!(all, different, "each step once");
    let lease = take(&stores[0], ask("a", "ann", 60_000)).await;
    for store in &stores {
        assert_eq!(store.lease(key("a")).await.unwrap(), Some(lease.clone()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn l1_a_hundred_race_on_three_replicas_and_one_is_granted_heavy() {
    let database = Server::shared().await;
    let stores = replicas(&database.url(), 3).await;
    let rounds = length::pick_or("LEASEHOLD_RACE_ROUNDS", RACE_ROUNDS.0, RACE_ROUNDS.1);
    let mut last_token = None;
    for round in 0..rounds {
        let mut racing = JoinSet::new();
        for racer in 0..100 {
            let store = stores[racer % 3].clone();
            let request = ask("raced", &format!("racer-{racer}"), 60_000);
            racing.spawn(async move { store.acquire(request).await });
        }
        let mut winners = Vec::new();
        while let Some(answer) = racing.join_next().await {
            if let Acquired::Granted { leases, .. } = answer.unwrap().expect("answered") {
                winners.extend(leases);
            }
        }
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        assert!(last_token < Some(winners[0].token), "tokens only grow");
        last_token = Some(winners[0].token);
        let store = &stores[round as usize % 3];
        assert!(store.release(LeaseRef::from(&winners[0])).await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn l6_waiters_on_different_replicas_are_served_in_their_order() {
    let database = Server::shared().await;
    let stores = replicas(&database.url(), 3).await;
    let mut lease = take(&stores[0], ask("a", "first", 60_000)).await;
    let mut queue = Vec::new();
    for (place, store) in stores.iter().enumerate() {
        let waiting = store.clone();
        let request = patient(ask("a", &format!("waiter-{place}"), 60_000));
        queue.push(tokio::spawn(async move { waiting.acquire(request).await }));
        wait::until(PATIENCE, "a waiter is pending", async || {
            pending(&stores[0]).await == place + 1
        })
        .await;
    }
    for (place, waiting) in queue.into_iter().enumerate() {
        // The replica that releases is never the one whose waiter is next.
        let releasing = &stores[(place + 1) % 3];
        assert!(releasing.release(LeaseRef::from(&lease)).await.unwrap());
        let answer = tokio::time::timeout(PATIENCE, waiting).await;
        let Acquired::Granted { mut leases, .. } = answer.unwrap().unwrap().unwrap() else {
            panic!("the next in line is served")
        };
        lease = leases.remove(0);
        assert_eq!(lease.holder.name.as_str(), format!("waiter-{place}"));
        assert_eq!(pending(&stores[0]).await, 2 - place);
    }
}

async fn pending(store: &Postgres) -> usize {
    let query = LeaseQuery {
        status: Some(Status::Pending),
        limit: 100,
        ..LeaseQuery::default()
    };
    store.leases(query).await.expect("answered").items.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn l6_a_waiter_whose_replica_died_is_passed_over() {
    let database = Server::shared().await;
    let stores = replicas(&database.url(), 2).await;
    let lease = take(&stores[0], ask("a", "first", 60_000)).await;
    // A replica that queued a waiter and was killed: its row stays, its stamp grows old.
    let request = serde_json::to_string(&patient(ask("a", "ghost", 60_000))).unwrap();
    let options: Options = database.url().parse().unwrap();
    let entry_point = options.entry_point();
    database
        .psql(&format!(
            "SELECT {entry_point}('ghost', true, false, 'live', '[{{\"acquire\":{request}}}]', '{{}}', '{{}}'); \
             UPDATE lease_replicas SET seen_ms = seen_ms - 11000 WHERE replica = 'ghost'"
        ))
        .await;
    let waiting = stores[1].clone();
    let waiter =
        tokio::spawn(async move { waiting.acquire(patient(ask("a", "alive", 60_000))).await });
    wait::until(PATIENCE, "both are pending", async || {
        pending(&stores[0]).await == 2
    })
    .await;
    assert!(stores[0].release(LeaseRef::from(&lease)).await.unwrap());
    let answer = tokio::time::timeout(PATIENCE, waiter).await.unwrap();
    let Acquired::Granted { leases, .. } = answer.unwrap().unwrap() else {
        panic!("the living waiter is served")
    };
    assert_eq!(leases[0].holder.name.as_str(), "alive");
    // Nor did it have the key for a while, until somebody noticed.
    let page = stores[0].events(EventQuery {
        limit: 100,
        ..EventQuery::default()
    });
    let events = page.await.unwrap().events;
    let owners: Vec<_> = events
        .iter()
        .filter(|event| event.kind == EventKind::LeaseAcquired && event.key == key("a"))
        .filter_map(|event| Some(event.lease.as_ref()?.holder.name.as_str()))
        .collect();
    assert_eq!(owners, ["first", "alive"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn l12_expiry_is_punctual_and_its_leadership_moves_to_another_replica() {
    let database = Server::shared().await;
    let mut stores = replicas(&database.url(), 3).await;
    let leadership = Key::new("leadership", "expiry").unwrap();
    wait::until(PATIENCE, "somebody leads", async || {
        stores[0].lease(leadership.clone()).await.unwrap().is_some()
    })
    .await;
    for round in 0..3 {
        let lease = take(&stores[0], ask(&format!("short-{round}"), "ann", 300)).await;
        let event = wait::until_some(PATIENCE, "it expires by itself", async || {
            let query = EventQuery {
                key: Some(lease.key.clone()),
                event: Some(EventKind::LeaseExpired),
                limit: 1,
                ..EventQuery::default()
            };
            stores[0].events(query).await.unwrap().events.pop()
        })
        .await;
        let late_ms = event.at.since(lease.lapses_at());
        assert!(late_ms < 5_000, "{late_ms} ms late");
        // The next round finds another leader.
        let before = stores[0]
            .lease(leadership.clone())
            .await
            .unwrap()
            .expect("held");
        database
            .psql(&format!(
                "UPDATE leases SET incarnation = 'gone', expires_ms = 0 WHERE lease_id = '{}'",
                before.id
            ))
            .await;
        wait::until(PATIENCE, "the leadership is taken over", async || {
            let now = stores[0].lease(leadership.clone()).await.unwrap();
            now.is_some_and(|now| now.id != before.id)
        })
        .await;
    }
    // Dropping a replica gives its leadership up; the last one has it in the end.
    let last = stores.pop().unwrap();
    drop(stores);
    wait::until(PATIENCE, "the last replica leads", async || {
        last.lease(leadership.clone()).await.unwrap().is_some()
    })
    .await;
    let lease = take(&last, ask("late", "ann", 200)).await;
    wait::until(PATIENCE, "and still expires", async || {
        let now = last
            .lease_by_id(lease.id)
            .await
            .unwrap()
            .expect("remembered");
        now.status == Status::Expired
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn l20_a_watcher_sees_what_every_replica_does() {
    let database = Server::shared().await;
    let stores = replicas(&database.url(), 3).await;
    let mut watch = stores[2]
        .watch(lease::Watching::everything())
        .await
        .unwrap();
    let mut expected = HashSet::new();
    for round in 0..30 {
        let lease = take(&stores[round % 3], ask(&format!("w{round}"), "ann", 60_000)).await;
        expected.insert(lease.id);
        stores[(round + 1) % 3]
            .release(LeaseRef::from(&lease))
            .await
            .unwrap();
    }
    let mut last = None;
    let mut ended = 0;
    while ended < 30 {
        let notice = tokio::time::timeout(PATIENCE, watch.next()).await;
        let Notice::Event(event) = notice.unwrap().unwrap().unwrap() else {
            panic!("nothing was missed")
        };
        assert!(last < Some(event.revision), "in order");
        last = Some(event.revision);
        if event.key.kind() == "camera" && event.kind == EventKind::LeaseReleased {
            assert!(expected.remove(&event.lease.as_ref().unwrap().id));
            ended += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn l9_renewals_and_decisions_about_the_same_leases_never_block_each_other() {
    let database = Server::shared().await;
    let stores = replicas(&database.url(), 2).await;
    let holder = Holder::new("ann", "1").unwrap();
    for id in 0..50 {
        take(&stores[0], ask(&format!("k{id}"), "ann", 60_000)).await;
    }
    let mut working = JoinSet::new();
    for worker in 0..4 {
        let store = stores[worker % 2].clone();
        let holder = holder.clone();
        working.spawn(async move {
            for round in 0..40 {
                let leases = Renewals::All;
                let renewed = store
                    .renew(Renew {
                        holder: holder.clone(),
                        leases,
                    })
                    .await;
                for answer in renewed.expect("answered") {
                    assert!(answer.outcome.is_ok(), "{answer:?}");
                }
                let id = format!("k{}", (round * 7 + worker) % 50);
                // Asked again by its holder: kept, with the same token.
                take(&store, ask(&id, "ann", 60_000)).await;
            }
        });
    }
    working.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_known_kinds_fill_columns_and_odd_ones_are_kept_as_they_are() {
    let database = Server::shared().await;
    let store = replicas(&database.url(), 1).await.remove(0);
    let write = |key: &str, value: &str| Write {
        key: key.parse().unwrap(),
        value: Some(value.into()),
        note: None,
    };
    let odd = [
        "not json",
        r#""\u0000""#,
        "[1]",
        r#"{"port":"x","capacity":1e99}"#,
    ];
    let mut writes = vec![
        write(
            "runner:r1",
            r#"{"tenant_id":"t","port":8080,"capacity":16,"status":"active","registered_at":1700000000000}"#,
        ),
        write("zone:z1", r#"{"zone_id":7,"name":"route"}"#),
    ];
    for (number, value) in odd.iter().enumerate() {
        writes.push(write(&format!("runner:odd{number}"), value));
        writes.push(write(&format!("camera:odd{number}"), value));
    }
    let transaction = Transaction {
        writes,
        ..Transaction::default()
    };
    store.commit(transaction).await.unwrap();
    let row = database
        .psql("SELECT tenant_id, port, capacity, status, registered_at AT TIME ZONE 'UTC' FROM runners WHERE runner_id = 'r1'")
        .await;
    assert_eq!(row, "t|8080|16|active|2023-11-14 22:13:20");
    assert_eq!(
        database.psql("SELECT zone_id, name FROM zones").await,
        "7|route"
    );
    for (number, value) in odd.iter().enumerate() {
        let record = store
            .record(format!("camera:odd{number}").parse().unwrap())
            .await;
        assert_eq!(&*record.unwrap().expect("kept").value, *value);
    }
    let refused = store
        .commit(Transaction {
            writes: vec![write("x:1", "\0")],
            ..Transaction::default()
        })
        .await;
    assert!(matches!(refused, Err(Error::Invalid(it)) if it.field == "value"));
}

/// A server that was killed leaves its leadership behind for as long as the ttl of it. Whoever comes after it
/// expires what lapses, and does not wait for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn l12_expiry_does_not_wait_for_a_leader_that_is_gone() {
    let database = Server::shared().await;
    let mut without = options(&database.url());
    without.housekeeping = false;
    let gone = Postgres::open(without).await.expect("the store opens");
    let leader = Holder::new("leasehold", "gone").unwrap();
    let ttl = Ttl::from_millis(600_000).unwrap();
    let leadership = Key::new("leadership", "expiry").unwrap();
    take(&gone, Acquire::one(leadership, leader, ttl)).await;
    let store = Postgres::open(options(&database.url())).await.unwrap();
    for round in 0..3 {
        let lease = take(&store, ask(&format!("short-{round}"), "ann", 300)).await;
        let query = EventQuery {
            key: Some(lease.key.clone()),
            event: Some(EventKind::LeaseExpired),
            limit: 1,
            ..EventQuery::default()
        };
        let event = wait::until_some(PATIENCE, "it expires", async || {
            store.events(query.clone()).await.unwrap().events.pop()
        })
        .await;
        let late_ms = event.at.since(lease.lapses_at());
        assert!(late_ms < 5_000, "{late_ms} ms late");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn l12_a_replica_that_closes_gives_its_leadership_up() {
    let database = Server::shared().await;
    let store = Postgres::open(options(&database.url())).await.unwrap();
    wait::until(PATIENCE, "the replica leads", async || {
        store.capabilities().leads_expiry
    })
    .await;
    store.close().await;
    let query = EventQuery {
        key: Some(Key::new("leadership", "expiry").unwrap()),
        limit: 100,
        ..EventQuery::default()
    };
    let last = store.events(query).await.unwrap().events.pop();
    let last = last.expect("its leadership is in the history").kind;
    assert_eq!(last, EventKind::LeaseReleased, "the next one need not wait");
    assert!(!store.capabilities().leads_expiry);
}
