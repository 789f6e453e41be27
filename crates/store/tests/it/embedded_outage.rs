//! A disk that takes no change, or not every one: what goes on, and what is there afterwards.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::sync::Arc;

use lease::{
    Acquire, Authority, Error, Lease, LeaseQuery, LeaseRef, Renew, Renewals,
    engine::{self, RenewalEvents},
};
use leasehold_clock::Manual;
use leasehold_store::embedded::{Embedded, Options};

use crate::embedded_kit::{
    LIMIT, Refused, ask, crash_image, granted, key, lengthen, manual, memory, open,
    until_recovered, until_waiting,
};

async fn listed(store: &Embedded) -> usize {
    let query = LeaseQuery {
        limit: 100,
        ..LeaseQuery::default()
    };
    store.leases(query).await.unwrap().items.len()
}

fn everything_of(lease: &Lease) -> Renew {
    Renew {
        holder: lease.holder.clone(),
        leases: Renewals::All,
    }
}

async fn open_with(dir: &std::path::Path, clock: &Manual, options: engine::Options) -> Embedded {
    let options = Options {
        engine: options,
        ..Options::at(dir)
    };
    let opened = Embedded::open(options, Arc::new(clock.clone())).await;
    opened.unwrap()
}

/// A change that the disk does not take begins the outage.
async fn begin_outage(store: &Embedded) {
    let error = store.acquire(ask("refused", "z")).await.unwrap_err();
    assert!(matches!(error, Error::Unknown(_)), "{error}");
    assert!(store.capabilities().degraded);
}

/// Tidying up writes more at a time than any change does, so that a disk that is nearly full refuses it first.
#[tokio::test]
async fn a_round_of_tidying_that_fails_loses_nothing() {
    const HELD: usize = 20;
    let clock = manual();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &clock).await.unwrap();
    for id in 0..HELD {
        let mut lasting = ask(&id.to_string(), "x");
        lasting.ttl = lease::Ttl::from_secs(3_600).unwrap();
        granted(store.acquire(lasting).await.unwrap());
    }
    let refused = Refused::in_folder(dir.path(), "INSERT ON slots");
    clock.advance(60_000);
    // The batch of this look tidied up, or tried to.
    store.now().await.unwrap();
    assert!(!store.capabilities().degraded, "no change was refused");
    drop(refused);
    granted(store.acquire(ask("last", "x")).await.unwrap());
    assert_eq!(listed(&store).await, HELD + 1);
    let image = crash_image(dir.path());
    let again = open(image.path(), &clock).await.unwrap();
    assert_eq!(listed(&again).await, HELD + 1, "after a crash");
    clock.advance(60_000);
    store.now().await.unwrap();
    assert_eq!(listed(&store).await, HELD, "the last one lapsed");
    store.close().await.unwrap();
    let again = open(dir.path(), &clock).await.unwrap();
    assert_eq!(listed(&again).await, HELD, "after a graceful stop");
}

/// A key that is due to be forgotten cannot be while nothing can be written.
#[tokio::test]
async fn in_an_outage_renewals_go_on_whatever_is_due_to_be_forgotten() {
    let clock = manual();
    let dir = tempfile::tempdir().unwrap();
    let forgetful = engine::Options {
        idle_ms: 5_000,
        ..engine::Options::default()
    };
    let store = open_with(dir.path(), &clock, forgetful).await;
    let kept = granted(store.acquire(ask("kept", "x")).await.unwrap());
    let gone = granted(store.acquire(ask("gone", "x")).await.unwrap());
    store.release(LeaseRef::from(&gone)).await.unwrap();
    let _refused = Refused::in_folder(dir.path(), "INSERT ON recent");
    clock.advance(5_000);
    begin_outage(&store).await;
    let renewed = store.renew(everything_of(&kept)).await.unwrap();
    assert!(renewed[0].outcome.is_ok(), "{renewed:?}");
}

#[tokio::test]
async fn in_an_outage_renewals_go_on_that_would_be_kept() {
    let clock = manual();
    let dir = tempfile::tempdir().unwrap();
    let keeping = engine::Options {
        renewals: RenewalEvents::Kept,
        ..engine::Options::default()
    };
    let store = open_with(dir.path(), &clock, keeping).await;
    let kept = granted(store.acquire(ask("kept", "x")).await.unwrap());
    let _refused = Refused::in_folder(dir.path(), "INSERT ON events");
    begin_outage(&store).await;
    let renewed = store.renew(everything_of(&kept)).await.unwrap();
    assert!(renewed[0].outcome.is_ok(), "{renewed:?}");
}

#[tokio::test]
async fn l6_a_grant_that_nobody_took_goes_back_after_an_outage() {
    let clock = manual();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &clock).await.unwrap();
    let lease = granted(store.acquire(ask("a", "x")).await.unwrap());
    let mut waiting = Box::pin(store.acquire(Acquire {
        wait_ms: 60_000,
        ttl: lease::Ttl::from_secs(3_600).unwrap(),
        ..ask("a", "y")
    }));
    let _ = futures_util::poll!(&mut waiting);
    until_waiting(&store, 1).await;
    store.release(LeaseRef::from(&lease)).await.unwrap();
    let refused = Refused::in_folder(dir.path(), "INSERT ON events");
    drop(waiting);
    leasehold_testkit::wait::until(LIMIT, "it cannot be given back", async || {
        // The batch that gives it back is refused as a whole.
        let _ = store.now().await;
        store.capabilities().degraded
    })
    .await;
    drop(refused);
    until_recovered(&store, &clock).await;
    store.now().await.unwrap();
    assert_eq!(store.lease(key("a")).await.unwrap(), None);
}

/// The store is built again from its tables after a failed write, also without a disk.
#[tokio::test]
async fn in_memory_a_failed_write_forgets_nothing_that_no_event_says() {
    let clock = manual();
    let store = memory(&clock);
    let lease = granted(store.acquire(ask("a", "x")).await.unwrap());
    lengthen(&store, &lease, 3_600_000).await;
    let flags = rusqlite::OpenFlags::default();
    // The first of this process.
    let uri = "file:/leasehold-0?vfs=memdb";
    let tables = rusqlite::Connection::open_with_flags(uri, flags).unwrap();
    let refused = Refused::of(tables, "INSERT ON events");
    begin_outage(&store).await;
    drop(refused);
    until_recovered(&store, &clock).await;
    let found = store.lease(key("a")).await.unwrap().unwrap();
    assert_eq!(found.ttl.millis(), 3_600_000);
}
