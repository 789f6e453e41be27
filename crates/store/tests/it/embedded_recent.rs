//! Slots that changed lately lie apart from the others: whoever reads sees both as one.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{collections::BTreeSet, path::Path, sync::Arc};

use lease::{Authority, Key, Lease, LeaseQuery, LeaseRef, Status};
use leasehold_clock::{Manual, System};
use leasehold_store::{
    embedded::{Embedded, History, OpenError, Options, backup},
    migrate::{self, migrate},
};

use crate::{
    embedded_kit::{ask, crash_image, granted, key, lengthen, manual, open},
    seal_kit::sound,
};

/// So few that keys move on all the time; and so many that it takes some batches to move them.
const FEW: [usize; 2] = [3, 20];
const KEYS: u32 = 40;

async fn open_with(dir: &Path, clock: &Manual, recent_keys: usize) -> Embedded {
    let options = Options {
        recent_keys,
        ..Options::at(dir)
    };
    let opened = Embedded::open(options, Arc::new(clock.clone())).await;
    opened.unwrap()
}

/// Every live lease, in pages of two.
async fn listed(store: &Embedded) -> Vec<Lease> {
    let mut query = LeaseQuery {
        limit: 2,
        ..LeaseQuery::default()
    };
    let mut all = Vec::new();
    loop {
        let page = store.leases(query.clone()).await.unwrap();
        query.after = page.items.last().map(|lease| lease.key.clone());
        all.extend(page.items);
        if !page.more {
            return all;
        }
    }
}

fn tables(dir: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(dir.join("leasehold.db")).unwrap()
}

fn count(dir: &Path, table: &str) -> u64 {
    let sql = format!("SELECT count(*) FROM {table}");
    tables(dir).query_row(&sql, [], |row| row.get(0)).unwrap()
}

/// Acquires and releases keys in an order that repeats some soon and others late. Returns what is held.
async fn step(store: &Embedded, held: &mut BTreeSet<Key>, n: u32) {
    let id = (7 * n + n / 5) % KEYS;
    let key = key(&id.to_string());
    if let Some(lease) = store.lease(key.clone()).await.unwrap() {
        store.release(LeaseRef::from(&lease)).await.unwrap();
        held.remove(&key);
    } else {
        granted(store.acquire(ask(&id.to_string(), "x")).await.unwrap());
        held.insert(key);
    }
}

#[tokio::test]
async fn a_crash_at_any_moment_loses_nothing_and_brings_nothing_back() {
    for few in FEW {
        crash_at_any_moment(few).await;
    }
}

async fn crash_at_any_moment(few: usize) {
    let clock = manual();
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), &clock, few).await;
    let mut held = BTreeSet::new();
    let mut moved = 0;
    for n in 0..120 {
        step(&store, &mut held, n).await;
        clock.advance(1);
        let running = listed(&store).await;
        let keys: BTreeSet<Key> = running.iter().map(|lease| lease.key.clone()).collect();
        assert_eq!(keys, held, "after step {n}");
        let image = crash_image(dir.path());
        moved = moved.max(count(image.path(), "slots"));
        let again = open_with(image.path(), &clock, few).await;
        let tokens = |leases: &[Lease]| -> Vec<_> {
            let tokens = leases.iter().map(|lease| (lease.key.clone(), lease.token));
            tokens.collect()
        };
        assert_eq!(tokens(&listed(&again).await), tokens(&running), "step {n}");
        // The last token of a free key is kept too (L3).
        for id in (n % 4..KEYS).step_by(4) {
            let key = key(&id.to_string());
            if let Some(ended) = last_ended(&store, &key).await
                && !held.contains(&key)
            {
                let next = granted(again.acquire(ask(&id.to_string(), "y")).await.unwrap());
                assert!(next.token > ended.token, "{key} after step {n}");
            }
        }
    }
    assert!(moved > 0, "nothing was ever moved: this tests nothing");
}

/// The history may forget an event long before the table of slots has what it says.
#[tokio::test]
async fn a_forgotten_event_stays_until_its_slot_is_settled() {
    const HELD: usize = 1_500;
    let clock = manual();
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        history: History {
            max_events: 10,
            ..History::default()
        },
        ..Options::at(dir.path())
    };
    let store = Embedded::open(options, Arc::new(clock.clone())).await;
    let store = store.unwrap();
    for id in 0..HELD {
        granted(store.acquire(ask(&id.to_string(), "x")).await.unwrap());
    }
    let page = store.events(lease::EventQuery::default()).await.unwrap();
    assert!(page.oldest.get() > 1_024, "nothing was forgotten");
    let image = crash_image(dir.path());
    assert_eq!(count(image.path(), "slots"), 0, "all of it lies apart");
    let again = open(image.path(), &clock).await.unwrap();
    assert_eq!(listed(&again).await.len(), HELD);
}

async fn last_ended(store: &Embedded, key: &Key) -> Option<Lease> {
    let query = LeaseQuery {
        kind: Some(key.kind().to_owned()),
        id: Some(key.id().to_owned()),
        status: Some(Status::Released),
        limit: 100,
        ..LeaseQuery::default()
    };
    let page = store.leases(query).await.unwrap();
    page.items.into_iter().max_by_key(|lease| lease.token)
}

#[tokio::test]
async fn what_lies_apart_stays_little_and_is_gone_after_a_graceful_stop() {
    let clock = manual();
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), &clock, FEW[1]).await;
    let mut held = BTreeSet::new();
    for n in 0..300 {
        step(&store, &mut held, n).await;
        let rows = count(dir.path(), "recent");
        assert!(rows <= 60, "{rows} rows after step {n}");
    }
    store.close().await.unwrap();
    assert_eq!(count(dir.path(), "recent"), 0);
    assert_eq!(count(dir.path(), "slots"), u64::from(KEYS));
    let store = open(dir.path(), &clock).await.unwrap();
    assert_eq!(listed(&store).await.len(), held.len());
}

#[tokio::test]
async fn a_copy_and_a_look_at_the_tables_have_what_lies_apart() {
    let clock = manual();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &clock).await.unwrap();
    for id in 0..KEYS {
        granted(store.acquire(ask(&id.to_string(), "x")).await.unwrap());
    }
    assert_eq!(count(dir.path(), "slots"), 0, "all of it lies apart");
    let to = tempfile::tempdir().unwrap();
    let copied = backup(dir.path(), &to.path().join("copy")).unwrap();
    assert_eq!(copied.leases, u64::from(KEYS));
    assert_eq!(count(&to.path().join("copy"), "slots"), u64::from(KEYS));
}

#[tokio::test]
async fn a_folder_is_moved_after_a_crash_with_what_lies_apart() {
    let clock = manual();
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(dir.path(), &clock).await.unwrap();
    let lease = granted(store.acquire(ask("held", "x")).await.unwrap());
    let ended = granted(store.acquire(ask("free", "x")).await.unwrap());
    store.release(LeaseRef::from(&ended)).await.unwrap();
    let image = crash_image(dir.path());
    assert_eq!(count(image.path(), "slots"), 0, "all of it lies apart");
    let url = |dir: &Path| format!("embedded:{}", dir.display()).parse().unwrap();
    let (from, to_url) = (url(image.path()), url(to.path()));
    let moved = migrate(&from, &to_url, migrate::Options::default(), &mut |_| {}).await;
    assert_eq!(moved.unwrap().leases, 1);
    let store = Embedded::open(Options::at(to.path()), Arc::new(System)).await;
    let store = store.unwrap();
    let held = store.lease(key("held")).await.unwrap().unwrap();
    assert_eq!(held.token, lease.token);
    let next = granted(store.acquire(ask("free", "y")).await.unwrap());
    assert!(next.token > ended.token, "L3");
}

#[tokio::test]
async fn a_changed_byte_is_noticed_here_too() {
    for (table, sql) in [
        ("events", "UPDATE events SET sum = sum + 1 WHERE last = 1"),
        (
            "events",
            "UPDATE events SET data = substr(data, 1, length(data) - 1) WHERE last = 1",
        ),
        (
            "events",
            "UPDATE events SET data = CAST(replace(data, 'job:one', 'job:onf') AS BLOB) WHERE last = 1",
        ),
        ("recent", "UPDATE recent SET sum = sum + 1"),
        (
            "recent",
            "UPDATE recent SET data = substr(data, 1, length(data) - 1)",
        ),
        (
            "recent",
            "UPDATE recent SET data = CAST(replace(data, 'job:one', 'job:onf') AS BLOB)",
        ),
    ] {
        let clock = manual();
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path(), &clock).await.unwrap();
        let lease = granted(store.acquire(ask("one", "x")).await.unwrap());
        lengthen(&store, &lease, 7_000).await;
        let image = crash_image(dir.path());
        assert_eq!(count(image.path(), table), 1, "{table}");
        let changed = tables(image.path()).execute(sql, []).unwrap();
        assert_eq!(changed, 1, "{sql}");
        let error = open(image.path(), &clock).await.map(drop).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{sql}: {error}");
    }
}

/// What no event says is the newest until an event comes, and no longer.
#[tokio::test]
async fn what_no_event_says_lies_beside_them_in_the_right_order() {
    let clock = manual();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &clock).await.unwrap();
    let lease = granted(store.acquire(ask("one", "x")).await.unwrap());
    let restarted = async || {
        let again = open_with(crash_image(dir.path()).keep().as_path(), &clock, 3).await;
        again.lease(key("one")).await.unwrap()
    };
    for ttl_ms in [70_000, 80_000] {
        lengthen(&store, &lease, ttl_ms).await;
        let found = restarted().await.unwrap();
        assert_eq!(found.ttl.millis(), ttl_ms);
    }
    store.release(LeaseRef::from(&lease)).await.unwrap();
    assert_eq!(restarted().await, None, "released after its renewal");
    let next = granted(store.acquire(ask("one", "y")).await.unwrap());
    let found = restarted().await.unwrap();
    assert_eq!((found.token, found.ttl), (next.token, next.ttl));
}

/// Rows are deleted a few at a time, long after `slots` has what they say and what came after them.
#[tokio::test]
async fn a_row_that_is_yet_to_be_deleted_brings_nothing_back() {
    let clock = manual();
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(dir.path(), &clock, 60).await;
    for id in 0..20 {
        let lease = granted(store.acquire(ask(&id.to_string(), "x")).await.unwrap());
        lengthen(&store, &lease, 70_000).await;
        store.release(LeaseRef::from(&lease)).await.unwrap();
    }
    let mut late = 0;
    for id in 20..60 {
        granted(store.acquire(ask(&id.to_string(), "x")).await.unwrap());
        let image = crash_image(dir.path());
        late += u32::from(count(image.path(), "slots") >= 20 && count(image.path(), "recent") > 0);
        let again = open(image.path(), &clock).await.unwrap();
        let keys = |leases: &[Lease]| -> Vec<Key> {
            leases.iter().map(|lease| lease.key.clone()).collect()
        };
        assert_eq!(keys(&listed(&again).await), keys(&listed(&store).await));
    }
    assert!(late > 0, "rows were deleted at once: this tests nothing");
}

/// A folder that a server of the format before was killed in: slots lay apart, and each event was a row.
#[tokio::test]
async fn a_store_of_the_format_before_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let before = include_bytes!("fixtures/format-5.db");
    std::fs::write(dir.path().join("leasehold.db"), before).unwrap();
    taken_over(dir.path()).await;
}

/// Whoever only looks at a move leaves an older store to the older version.
#[tokio::test]
async fn a_look_at_a_move_takes_over_no_store_of_the_format_before() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let before = include_bytes!("fixtures/format-5.db");
    let file = dir.path().join("leasehold.db");
    std::fs::write(&file, before).unwrap();
    let url = |dir: &Path| format!("embedded:{}", dir.display()).parse().unwrap();
    let look = migrate::Options {
        dry_run: true,
        ..migrate::Options::default()
    };
    let (from, to) = (url(dir.path()), url(to.path()));
    let looked = migrate(&from, &to, look, &mut |_| {}).await.unwrap();
    assert_eq!(looked.leases, 3);
    let format: u32 = tables(dir.path())
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .unwrap();
    assert_eq!(format, 5);
    taken_over(dir.path()).await;
}

/// One format earlier every slot was where it belongs.
#[tokio::test]
async fn a_store_of_format_4_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let before = include_bytes!("fixtures/format-5.db");
    std::fs::write(dir.path().join("leasehold.db"), before).unwrap();
    let file = tables(dir.path());
    let mut select = file
        .prepare("SELECT data FROM recent ORDER BY number")
        .unwrap();
    let rows = select.query_map([], |row| row.get(0)).unwrap();
    let rows: Vec<Vec<u8>> = rows.map(Result::unwrap).collect();
    for row in rows {
        let mut rest = row.as_slice();
        let mut field = || {
            let (length, behind) = rest.split_first_chunk::<4>()?;
            let (field, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
            rest = behind;
            Some(field)
        };
        while let (Some(key), Some(data)) = (field(), field()) {
            let key = str::from_utf8(key).unwrap();
            let sql = "INSERT OR REPLACE INTO slots (key, live, data) VALUES (?1,
                (SELECT kind = 'lease_acquired' FROM events WHERE key = ?1 AND kind LIKE 'lease%' ORDER BY revision DESC), ?2)";
            file.execute(sql, rusqlite::params![key, data]).unwrap();
        }
    }
    let format_4 = "DROP TABLE recent; PRAGMA user_version = 4;";
    file.execute_batch(format_4).unwrap();
    drop(select);
    taken_over(dir.path()).await;
}

/// What the fixture has is there, and the store goes on.
async fn taken_over(dir: &Path) {
    let clock = Manual::new(lease::UnixMillis::new(1_794_982_784_000));
    let copied = {
        let to = tempfile::tempdir().unwrap();
        backup(dir, &to.path().join("copy")).unwrap()
    };
    assert_eq!((copied.leases, copied.events), (3, 21));
    let store = open(dir, &clock).await.unwrap();
    sound(&store).await;
    let of_jobs = |leases: Vec<Lease>| -> Vec<Lease> {
        let jobs = leases.into_iter();
        jobs.filter(|lease| lease.key.kind() == "job").collect()
    };
    let held = of_jobs(listed(&store).await);
    assert_eq!(held.len(), 1);
    assert_eq!(held[0].key, key("three"));
    assert_eq!(held[0].labels.get("site"), Some("north"));
    let ended = last_ended(&store, &key("one")).await.unwrap();
    assert_eq!(ended.ttl.millis(), 60_000, "its terms are still known");
    let next = granted(store.acquire(ask("one", "x")).await.unwrap());
    assert!(next.token > ended.token, "L3");
    sound(&store).await;
    store.close().await.unwrap();
    let store = open(dir, &clock).await.unwrap();
    assert_eq!(of_jobs(listed(&store).await).len(), 2);
}
