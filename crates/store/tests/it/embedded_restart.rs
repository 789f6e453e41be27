//! Coming back: after a stop, after a crash, and what is remembered.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{path::Path, sync::Arc};

use futures_util::StreamExt;
use lease::{
    Acquire, Authority, Event, EventKind, EventQuery, HandoffStep, Holder, LeaseQuery, LeaseRef,
    Notice, Renew, Renewals, Revision, Status, Transaction, Want, Write,
    engine::{self, RenewalEvents},
};
use leasehold_store::embedded::{Embedded, History, Options};

use crate::embedded_kit::{self, ask, crash_image, events, granted, key, manual, open};

fn resumed(events: &[Event]) -> Vec<serde_json::Value> {
    events
        .iter()
        .filter(|event| event.kind == EventKind::AuthorityResumed)
        .map(|event| serde_json::from_str(event.detail.as_ref().unwrap()).unwrap())
        .collect()
}

#[tokio::test]
async fn l14_after_an_orderly_stop_each_lease_has_the_time_it_had_left() {
    let dir = tempfile::tempdir().unwrap();
    let clock = manual();
    let store = open(dir.path(), &clock).await.unwrap();
    let kept = granted(store.acquire(ask("kept", "x")).await.unwrap());
    clock.advance(3_000);
    let holder = kept.holder.clone();
    let leases = Renewals::All;
    store.renew(Renew { holder, leases }).await.unwrap();
    clock.advance(4_000);
    store.close().await.unwrap();

    clock.advance(3_600_000);
    let store = open(dir.path(), &clock).await.unwrap();
    let lease = store.lease(key("kept")).await.unwrap().unwrap();
    let now = store.now().await.unwrap();
    assert_eq!(
        lease.expires_at.since(now),
        6_000,
        "ten seconds, renewed four ago"
    );
    assert_eq!((lease.id, lease.token), (kept.id, kept.token));
    let said = resumed(&events(&store).await);
    assert_eq!(said.len(), 1);
    assert_eq!(said[0]["after"], "stop");
    assert_eq!(said[0]["lengthened_ms_at_most"], 3_600_000);
    // And a second time: what was lengthened is what is written down.
    store.close().await.unwrap();
    clock.advance(1_000);
    let store = open(dir.path(), &clock).await.unwrap();
    let lease = store.lease(key("kept")).await.unwrap().unwrap();
    assert_eq!(lease.expires_at.since(store.now().await.unwrap()), 6_000);
}

#[tokio::test]
async fn l14_after_a_crash_each_lease_has_its_full_ttl_and_the_event_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let clock = manual();
    let store = open(dir.path(), &clock).await.unwrap();
    let kept = granted(store.acquire(ask("kept", "x")).await.unwrap());
    let gone = granted(store.acquire(ask("gone", "x")).await.unwrap());
    assert!(store.release(LeaseRef::from(&gone)).await.unwrap());
    clock.advance(7_000);
    let image = crash_image(dir.path());

    let store = open(image.path(), &clock).await.unwrap();
    let lease = store.lease(key("kept")).await.unwrap().unwrap();
    assert_eq!(lease.token, kept.token);
    assert_eq!(lease.expires_at.since(store.now().await.unwrap()), 10_000);
    assert_eq!(store.lease(key("gone")).await.unwrap(), None);
    let said = resumed(&events(&store).await);
    assert_eq!(said[0]["after"], "crash");
    assert_eq!(said[0]["lengthened_ms_at_most"], 7_000);
    // L3: the token outlives the lease and the crash.
    let again = granted(store.acquire(ask("gone", "x")).await.unwrap());
    assert!(again.token > gone.token);
}

#[tokio::test]
async fn l3_tokens_and_time_do_not_go_back_with_the_wall_clock() {
    let dir = tempfile::tempdir().unwrap();
    let clock = manual();
    clock.advance(86_400_000);
    let store = open(dir.path(), &clock).await.unwrap();
    let first = granted(store.acquire(ask("a", "x")).await.unwrap());
    store.release(LeaseRef::from(&first)).await.unwrap();
    let before = store.now().await.unwrap();
    store.close().await.unwrap();

    let store = open(dir.path(), &manual()).await.unwrap();
    assert!(store.now().await.unwrap() >= before);
    let second = granted(store.acquire(ask("a", "x")).await.unwrap());
    assert!(second.token > first.token);
}

#[tokio::test]
async fn records_handoffs_and_history_come_back_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let clock = manual();
    let store = open(dir.path(), &clock).await.unwrap();
    let write = |id: &str, value: Option<&str>| Transaction {
        writes: vec![Write {
            key: lease::Key::new("session", id).unwrap(),
            value: value.map(Into::into),
            note: None,
        }],
        ..Transaction::default()
    };
    store.commit(write("a", Some("{\"n\":1}"))).await.unwrap();
    store.commit(write("b", Some("{}"))).await.unwrap();
    store.commit(write("b", None)).await.unwrap();
    let lease = granted(store.acquire(ask("a", "x")).await.unwrap());
    store
        .handoff(lease::HandoffStep::Offer {
            lease: LeaseRef::from(&lease),
            successor: lease::Holder::new("y", "1").unwrap(),
            prepare_ms: 1000,
            drain_ms: 1000,
            confirm_ms: 1000,
        })
        .await
        .unwrap();
    let (history, before) = (events(&store).await, store.lease(key("a")).await.unwrap());
    store.close().await.unwrap();

    let store = open(dir.path(), &clock).await.unwrap();
    assert_eq!(store.lease(key("a")).await.unwrap(), before);
    let record = store.record("session:a".parse().unwrap()).await.unwrap();
    assert_eq!(&*record.unwrap().value, "{\"n\":1}");
    assert_eq!(
        store.record("session:b".parse().unwrap()).await.unwrap(),
        None
    );
    let after = events(&store).await;
    assert_eq!(after[..history.len()], history);
    assert_eq!(after.len(), history.len() + 1, "and the restart itself");
}

#[tokio::test]
async fn ended_leases_are_found_by_id_and_listed_by_status_from_the_history() {
    let dir = tempfile::tempdir().unwrap();
    let clock = manual();
    let store = open(dir.path(), &clock).await.unwrap();
    let expired = granted(store.acquire(ask("a", "x")).await.unwrap());
    clock.advance(10_000);
    let released = granted(store.acquire(ask("b", "x")).await.unwrap());
    store.release(LeaseRef::from(&released)).await.unwrap();
    store.close().await.unwrap();
    let store = open(dir.path(), &clock).await.unwrap();
    let found = store.lease_by_id(expired.id).await.unwrap().unwrap();
    assert_eq!(found.status, Status::Expired);
    assert_eq!(found.token, expired.token);
    for (status, id) in [
        (Status::Expired, expired.id),
        (Status::Released, released.id),
    ] {
        let query = LeaseQuery {
            status: Some(status),
            limit: 10,
            ..LeaseQuery::default()
        };
        let page = store.leases(query).await.unwrap();
        let ids: Vec<_> = page.items.iter().map(|lease| lease.id).collect();
        assert_eq!(ids, [id]);
    }
}

#[tokio::test]
async fn l20_retention_is_bounded_and_a_watcher_behind_it_gets_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let clock = manual();
    let options = Options {
        history: History {
            max_age_ms: 3_600_000,
            max_events: 50,
        },
        ..Options::at(dir.path())
    };
    let store = Embedded::open(options, Arc::new(clock.clone()))
        .await
        .unwrap();
    for _ in 0..200 {
        let lease = granted(store.acquire(ask("a", "x")).await.unwrap());
        store.release(LeaseRef::from(&lease)).await.unwrap();
    }
    granted(store.acquire(ask("b", "x")).await.unwrap());
    let page = store
        .events(EventQuery {
            limit: 1_000,
            ..EventQuery::default()
        })
        .await
        .unwrap();
    assert_eq!(page.events.len(), 50);
    assert_eq!(page.newest, Revision::new(401));
    assert_eq!(page.oldest, Revision::new(352));
    let mut watch = store
        .watch(lease::Watching::everything().after(Revision::new(10)))
        .await
        .unwrap();
    let Some(Ok(Notice::Snapshot(snapshot))) = watch.next().await else {
        panic!("a gap must be told");
    };
    assert_eq!(snapshot.revision, Revision::new(401));
    assert_eq!(snapshot.leases.len(), 1);
    let mut watch = store
        .watch(lease::Watching::everything().after(Revision::new(351)))
        .await
        .unwrap();
    let Some(Ok(Notice::Event(event))) = watch.next().await else {
        panic!("nothing is missing after 351");
    };
    assert_eq!(event.revision, Revision::new(352));
    // By age, with nobody asking for anything.
    clock.advance(3_600_000);
    leasehold_testkit::wait::until(embedded_kit::LIMIT, "old events are deleted", async || {
        let query = EventQuery {
            limit: 1_000,
            ..EventQuery::default()
        };
        store.events(query).await.unwrap().events.len() <= 2
    })
    .await;
}

#[tokio::test]
async fn a_long_log_is_written_back_and_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let clock = manual();
    let store = open(dir.path(), &clock).await.unwrap();
    let length = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().len();
    let mut longest = 0;
    for round in 0.. {
        let keys = (0..Acquire::MAX_KEYS).map(|n| key(&format!("{round}-{n}")));
        let all = Acquire {
            want: Want::All(keys.collect()),
            ..ask("x", "x")
        };
        granted(store.acquire(all).await.unwrap());
        longest = longest.max(length("leasehold.db-wal"));
        if length("leasehold.db") > 12 << 20 {
            break;
        }
        assert!(longest < 6 << 20, "{longest} bytes, and not written back");
    }
}

/// What time stood still in one stop is not left of a lease after a crash.
#[tokio::test]
async fn l14_after_stops_and_a_crash_a_lease_has_what_it_had_left_at_most() {
    const WEEK_MS: u64 = 7 * 24 * 3_600_000;
    let dir = tempfile::tempdir().unwrap();
    let clock = manual();
    let crashed = async |of: &Path, id: &str| {
        let image = crash_image(of);
        let again = open(image.path(), &clock).await.unwrap();
        let lease = again.lease(key(id)).await.unwrap().unwrap();
        lease.expires_at.since(again.now().await.unwrap())
    };
    let store = open(dir.path(), &clock).await.unwrap();
    granted(store.acquire(ask("quiet", "x")).await.unwrap());
    let changed = granted(store.acquire(ask("changed", "x")).await.unwrap());
    clock.advance(4_000);
    store.close().await.unwrap();
    clock.advance(WEEK_MS);
    let store = open(dir.path(), &clock).await.unwrap();
    assert_eq!(crashed(dir.path(), "quiet").await, 10_000);
    // An offer writes the lease with the expiry that it has by now.
    let offer = HandoffStep::Offer {
        lease: LeaseRef::from(&changed),
        successor: Holder::new("y", "1").unwrap(),
        prepare_ms: 1_000,
        drain_ms: 1_000,
        confirm_ms: 1_000,
    };
    store.handoff(offer).await.unwrap();
    assert_eq!(crashed(dir.path(), "changed").await, 10_000);
    store.close().await.unwrap();
    let store = open(dir.path(), &clock).await.unwrap();
    for id in ["quiet", "changed"] {
        let left = store.lease(key(id)).await.unwrap().unwrap().expires_at;
        assert_eq!(left.since(store.now().await.unwrap()), 6_000, "{id}");
        assert_eq!(crashed(dir.path(), id).await, 10_000, "{id}");
    }
}

/// While nobody asks the log is written back, so that no commit has to.
#[tokio::test]
async fn a_log_is_written_back_when_nobody_asks() {
    let dir = tempfile::tempdir().unwrap();
    let clock = manual();
    let store = open(dir.path(), &clock).await.unwrap();
    let written_back = || {
        // Without the log beside it.
        let copy = tempfile::tempdir().unwrap();
        let file = copy.path().join("leasehold.db");
        std::fs::copy(dir.path().join("leasehold.db"), &file).unwrap();
        let tables = rusqlite::Connection::open(file).unwrap();
        let newest = "SELECT ifnull(max(last), 0) FROM events";
        tables
            .query_row(newest, [], |row| row.get::<_, u64>(0))
            .ok()
    };
    for round in 0..10 {
        let keys = (0..Acquire::MAX_KEYS).map(|n| key(&format!("{round}-{n}")));
        let all = Acquire {
            want: Want::All(keys.collect()),
            ..ask("x", "x")
        };
        granted(store.acquire(all).await.unwrap());
    }
    let newest = 10 * Acquire::MAX_KEYS as u64;
    assert_ne!(written_back(), Some(newest), "written back already");
    leasehold_testkit::wait::until(embedded_kit::LIMIT, "the log is written back", async || {
        clock.advance(100);
        written_back() == Some(newest)
    })
    .await;
}

#[tokio::test]
async fn l9_renewals_write_nothing_unless_they_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let clock = manual();
    let store = open(dir.path(), &clock).await.unwrap();
    let lease = granted(store.acquire(ask("a", "x")).await.unwrap());
    let log = dir.path().join("leasehold.db-wal");
    let before = std::fs::metadata(&log).unwrap().len();
    let all = || Renew {
        holder: lease.holder.clone(),
        leases: Renewals::All,
    };
    for _ in 0..100 {
        clock.advance(10);
        assert!(store.renew(all()).await.unwrap()[0].outcome.is_ok());
    }
    assert_eq!(std::fs::metadata(&log).unwrap().len(), before);
    store.close().await.unwrap();
    let options = Options {
        engine: engine::Options {
            renewals: RenewalEvents::Kept,
            ..engine::Options::default()
        },
        ..Options::at(dir.path())
    };
    let store = Embedded::open(options, Arc::new(clock.clone()))
        .await
        .unwrap();
    store.renew(all()).await.unwrap();
    let kinds: Vec<_> = events(&store)
        .await
        .iter()
        .map(|event| event.kind)
        .collect();
    assert_eq!(
        kinds,
        [
            EventKind::LeaseAcquired,
            EventKind::AuthorityResumed,
            EventKind::LeaseRenewed
        ]
    );
}
