//! The history of one key, however far behind the index of the keys is.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{path::Path, sync::Arc};

use lease::{
    Acquire, Acquired, Authority, Event, EventQuery, Holder, HolderName, LeaseQuery, LeaseRef,
    Status, Ttl, Want,
};
use leasehold_store::embedded::{Embedded, History, Options};
use rusqlite::Connection;

use crate::embedded_kit::{ask, events, granted, key, manual, open};

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
    let indexed = count(
        dir.path(),
        "SELECT coalesce(sum(length(places)) / 2, 0) FROM event_keys",
    );
    let all = count(dir.path(), "SELECT count(*) FROM events");
    assert!(
        0 < indexed && indexed < all,
        "both parts are looked through: {indexed} of {all}"
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
    let entries = count(
        dir.path(),
        "SELECT coalesce(sum(length(places)) / 2, 0) FROM event_keys",
    );
    assert!(entries <= 4_096, "{entries} entries for 500 events");
}

#[tokio::test]
async fn a_folder_of_the_first_format_is_brought_up_to_date() {
    let dir = tempfile::tempdir().unwrap();
    let clock = manual();
    let store = open(dir.path(), &clock).await.unwrap();
    let before = granted(store.acquire(ask("a", "x")).await.unwrap());
    let gone = granted(store.acquire(ask("b", "y")).await.unwrap());
    store.release(LeaseRef::from(&gone)).await.unwrap();
    let told = events(&store).await;
    store.close().await.unwrap();
    let connection = Connection::open(dir.path().join("leasehold.db")).unwrap();
    connection
        .execute_batch(
            "ALTER TABLE slots ADD COLUMN holder TEXT;
             UPDATE slots SET holder = 'x' WHERE live;
             ALTER TABLE slots DROP COLUMN live;
             CREATE INDEX slots_by_holder ON slots (holder, key) WHERE holder IS NOT NULL;
             DROP TABLE event_keys;
             CREATE INDEX events_by_key ON events (key, revision);
             DELETE FROM meta WHERE name = 'indexed';
             ALTER TABLE records DROP COLUMN sum;
             PRAGMA user_version = 1;",
        )
        .unwrap();
    drop(connection);

    let store = open(dir.path(), &clock).await.unwrap();
    let all = LeaseQuery {
        limit: 10,
        ..LeaseQuery::default()
    };
    let page = store.leases(all.clone()).await.unwrap();
    assert_eq!(page.items.len(), 1);
    assert_eq!(page.items[0].id, before.id);
    let of_holder = LeaseQuery {
        holder: Some("x".parse::<HolderName>().unwrap()),
        ..all
    };
    assert_eq!(store.leases(of_holder).await.unwrap().items.len(), 1);
    let kept = events(&store).await;
    assert_eq!(kept[..told.len()], told);
    assert_eq!(history(&store, "b").await.len(), 2);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_folder_of_the_second_format_gets_its_index_in_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let clock = manual();
    let store = open(dir.path(), &clock).await.unwrap();
    turn_over(&store, ROUNDS).await;
    let told = history(&store, "057").await;
    store.close().await.unwrap();
    let connection = Connection::open(dir.path().join("leasehold.db")).unwrap();
    connection
        .execute_batch(
            "DROP TABLE event_keys;
             CREATE TABLE event_keys (
               key TEXT NOT NULL,
               revision INTEGER NOT NULL,
               PRIMARY KEY (key, revision)
             ) WITHOUT ROWID;
             INSERT INTO event_keys SELECT key, revision FROM events;
             UPDATE meta SET value = (SELECT max(revision) FROM events) WHERE name = 'indexed';
             ALTER TABLE records DROP COLUMN sum;
             PRAGMA user_version = 2;",
        )
        .unwrap();
    drop(connection);

    let store = open(dir.path(), &clock).await.unwrap();
    assert_eq!(history(&store, "057").await, told);
    turn_over(&store, ROUNDS).await;
    assert_eq!(history(&store, "057").await.len(), 2 * told.len());
    store.close().await.unwrap();
}

#[tokio::test]
async fn records_of_the_third_format_get_their_checksums() {
    let dir = tempfile::tempdir().unwrap();
    let clock = manual();
    let store = open(dir.path(), &clock).await.unwrap();
    let key: lease::Key = "note:one".parse().unwrap();
    let transaction = lease::Transaction {
        writes: vec![lease::Write {
            key: key.clone(),
            value: Some(r#"{"a":1}"#.into()),
            note: None,
        }],
        ..lease::Transaction::default()
    };
    store.commit(transaction).await.unwrap();
    let before = store.record(key.clone()).await.unwrap();
    store.close().await.unwrap();
    let connection = Connection::open(dir.path().join("leasehold.db")).unwrap();
    connection
        .execute_batch("ALTER TABLE records DROP COLUMN sum; PRAGMA user_version = 3;")
        .unwrap();
    drop(connection);
    // Once to bring it up to date, once to read what that wrote.
    for _ in 0..2 {
        let store = open(dir.path(), &clock).await.unwrap();
        assert_eq!(store.record(key.clone()).await.unwrap(), before);
        store.close().await.unwrap();
    }
}
