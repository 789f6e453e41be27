//! The history of one key, however far behind the index of the keys is.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{path::Path, sync::Arc};

use lease::{
    Acquire, Acquired, Authority, Event, EventQuery, Holder, LeaseQuery, LeaseRef, Status, Ttl,
    Want,
};
use leasehold_store::embedded::{Embedded, History, Options};
use rusqlite::Connection;

use crate::embedded_kit::{events, key, manual, open};

/// How many keys change hands together.
const KEYS: usize = 100;
/// How often: more events than the index ever lacks.
const ROUNDS: usize = 30;

async fn turn_over(store: &Embedded, rounds: usize) {
    let holder = Holder::new("x", "1").unwrap();
    let keys: Vec<_> = (0..KEYS).map(|n| key(&format!("{n:03}"))).collect();
    for _ in 0..rounds {
        let request = Acquire::of(
            Want::All(keys.clone()),
            holder.clone(),
            Ttl::from_secs(10).unwrap(),
        );
        let Acquired::Granted { leases, .. } = store.acquire(request).await.unwrap() else {
            panic!("refused");
        };
        for lease in &leases {
            store.release(LeaseRef::from(lease)).await.unwrap();
        }
    }
}

async fn history(store: &Embedded, id: &str) -> Vec<Event> {
    let query = EventQuery {
        key: Some(key(id)),
        limit: 10_000,
        ..EventQuery::default()
    };
    store.events(query).await.unwrap().events
}

fn count(dir: &Path, sql: &str) -> u64 {
    let connection = Connection::open(dir.join("leasehold.db")).unwrap();
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn the_history_of_a_key_is_whole_whether_indexed_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let clock = manual();
    let store = open(dir.path(), &clock).await.unwrap();
    for rounds in [1, ROUNDS] {
        turn_over(&store, rounds).await;
        let all = events(&store).await;
        for id in ["000", "057", "099"] {
            let expected: Vec<Event> = all
                .iter()
                .filter(|event| event.key == key(id))
                .cloned()
                .collect();
            assert_eq!(history(&store, id).await, expected, "{id}");
        }
    }
    let blocks = count(dir.path(), "SELECT count(*) FROM blocks");
    let all = count(dir.path(), "SELECT max(last) FROM events");
    assert!(
        0 < blocks && blocks * 4_096 < all,
        "both parts are looked through: {blocks} blocks of {all} events"
    );
    let ended = LeaseQuery {
        status: Some(Status::Released),
        limit: 1_000,
        ..LeaseQuery::default()
    };
    let ended = store.leases(ended).await.unwrap().items;
    let keys: Vec<&str> = ended.iter().map(|lease| lease.key.id()).collect();
    let expected: Vec<String> = (0..KEYS).map(|n| format!("{n:03}")).collect();
    assert_eq!(keys, expected, "the newest end of each key, in order");
    store.close().await.unwrap();
}

#[tokio::test]
async fn blocks_of_deleted_events_leave_the_index() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        history: History {
            max_age_ms: 3_600_000,
            max_events: 500,
        },
        ..Options::at(dir.path())
    };
    let clock = manual();
    let store = Embedded::open(options, Arc::new(clock.clone()))
        .await
        .unwrap();
    turn_over(&store, 2 * ROUNDS).await;
    let all = events(&store).await;
    assert_eq!(all.len(), 500);
    let of_one: Vec<Event> = all
        .into_iter()
        .filter(|event| event.key == key("042"))
        .collect();
    assert_eq!(history(&store, "042").await, of_one);
    store.close().await.unwrap();
    let blocks = count(dir.path(), "SELECT count(*) FROM blocks");
    assert!(blocks <= 1, "{blocks} blocks for 500 events");
    let rows = count(dir.path(), "SELECT sum(last - first + 1) FROM events");
    assert!(rows < 600, "{rows} events are still there");
}
