//! The in-memory variant: the whole path of a request, without a disk.

use std::sync::Arc;

use futures_util::StreamExt;
use lease::{
    Acquire, Acquired, Authority, EventKind, EventQuery, Key, LeaseQuery, LeaseRef, Loss, Notice,
    Renew, Renewals, Revision, Revoke, Status, Want,
};
use leasehold_store::embedded::{Embedded, Options};

use crate::embedded_kit::{LIMIT, ask, granted, key, manual, memory, until_waiting};

#[tokio::test]
async fn l2_l7_l16_grant_refuse_renew_release() {
    let clock = manual();
    let store = memory(&clock);
    let lease = granted(store.acquire(ask("a", "x")).await.unwrap());
    let refused = store.acquire(ask("a", "y")).await.unwrap();
    assert!(matches!(refused, Acquired::Refused(_)), "{refused:?}");
    clock.advance(5_000);
    let renewed = store
        .renew(Renew {
            holder: lease.holder.clone(),
            leases: Renewals::All,
        })
        .await
        .unwrap();
    let kept = renewed[0].outcome.as_ref().unwrap();
    assert_eq!(kept.expires_at, lease.expires_at.plus(5_000));
    assert!(store.release(LeaseRef::from(&lease)).await.unwrap());
    assert!(!store.release(LeaseRef::from(&lease)).await.unwrap());
    let ended = store.lease_by_id(lease.id).await.unwrap().unwrap();
    assert_eq!(ended.status, Status::Released);
    assert_eq!((ended.holder, ended.token), (lease.holder, lease.token));
    assert_eq!(
        (ended.ttl, ended.acquired_at),
        (lease.ttl, lease.acquired_at)
    );
}

#[tokio::test]
async fn l12_a_lapsed_lease_is_expired_by_the_timer_and_its_waiter_gets_the_key() {
    let clock = manual();
    let store = memory(&clock);
    let first = granted(store.acquire(ask("a", "x")).await.unwrap());
    let mut waiter = ask("a", "y");
    waiter.wait_ms = 60_000;
    let other = store.clone();
    let waiting = tokio::spawn(async move { other.acquire(waiter).await });
    until_waiting(&store, 1).await;
    clock.advance(10_000);
    let second = tokio::time::timeout(LIMIT, waiting).await.unwrap().unwrap();
    let second = granted(second.unwrap());
    assert!(second.token > first.token);
    let page = store
        .events(EventQuery {
            limit: 10,
            ..EventQuery::default()
        })
        .await
        .unwrap();
    let kinds: Vec<_> = page.events.iter().map(|event| event.kind).collect();
    assert_eq!(
        kinds,
        [
            EventKind::LeaseAcquired,
            EventKind::LeaseExpired,
            EventKind::LeaseAcquired
        ]
    );
}

#[tokio::test]
async fn l6_a_waiter_that_went_away_leaves_the_queue_and_never_receives_a_grant() {
    let clock = manual();
    let store = memory(&clock);
    let lease = granted(store.acquire(ask("a", "x")).await.unwrap());
    let mut waiter = ask("a", "y");
    waiter.wait_ms = 60_000;
    let other = store.clone();
    let waiting = tokio::spawn(async move { other.acquire(waiter).await });
    until_waiting(&store, 1).await;
    waiting.abort();
    until_waiting(&store, 0).await;
    assert!(store.release(LeaseRef::from(&lease)).await.unwrap());
    assert_eq!(store.lease(key("a")).await.unwrap(), None);
}

#[tokio::test]
async fn l6_a_grant_that_crossed_with_the_callers_leaving_is_given_back() {
    let clock = manual();
    let store = memory(&clock);
    for round in 0..500_u32 {
        let lease = granted(store.acquire(ask("a", "x")).await.unwrap());
        let mut waiter = ask("a", "y");
        waiter.wait_ms = 60_000;
        let mut waiting = store.acquire(waiter);
        // Polled once, so that it is queued; then the release and the drop race each other.
        let _ = futures_util::poll!(&mut waiting);
        if round % 2 == 0 {
            until_waiting(&store, 1).await;
        }
        assert!(store.release(LeaseRef::from(&lease)).await.unwrap());
        drop(waiting);
        // Looks are queued, and the drop was before this one.
        tokio::time::timeout(LIMIT, async {
            while store.lease(key("a")).await.unwrap().is_some() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("the key stayed with a waiter that went away");
    }
}

/// Two calls of one holder: the one that was dropped got the lease first, the other one has it.
#[tokio::test]
async fn l6_a_grant_that_another_call_of_its_holder_got_too_stays() {
    let clock = manual();
    let store = memory(&clock);
    let lease = granted(store.acquire(ask("a", "x")).await.unwrap());
    let mut dropped = Box::pin(store.acquire(Acquire {
        wait_ms: 60_000,
        ..ask("a", "y")
    }));
    let _ = futures_util::poll!(&mut dropped);
    until_waiting(&store, 1).await;
    assert!(store.release(LeaseRef::from(&lease)).await.unwrap());
    let again = granted(store.acquire(ask("a", "y")).await.unwrap());
    drop(dropped);
    // What was dropped is looked at before what is asked now.
    store.acquire(ask("b", "y")).await.unwrap();
    let found = store.lease(key("a")).await.unwrap();
    assert_eq!(found.map(|lease| lease.token), Some(again.token));
}

#[tokio::test]
async fn l20_a_watcher_resumes_from_a_revision_and_sees_live_renewals() {
    let clock = manual();
    let store = memory(&clock);
    let lease = granted(store.acquire(ask("a", "x")).await.unwrap());
    granted(store.acquire(ask("b", "x")).await.unwrap());
    let mut watch = store
        .watch(lease::Watching::everything().after(Revision::new(1)))
        .await
        .unwrap();
    store
        .renew(Renew {
            holder: lease.holder.clone(),
            leases: Renewals::All,
        })
        .await
        .unwrap();
    store
        .revoke(Revoke {
            id: lease.id,
            reason: "test".into(),
        })
        .await
        .unwrap()
        .unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        match tokio::time::timeout(LIMIT, watch.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap()
        {
            Notice::Event(event) => seen.push((event.revision.get(), event.kind)),
            Notice::Progress(_) => {}
            Notice::Snapshot(snapshot) => panic!("{snapshot:?}"),
        }
    }
    assert_eq!(
        seen,
        [
            (2, EventKind::LeaseAcquired),
            (2, EventKind::LeaseRenewed),
            (2, EventKind::LeaseRenewed),
            (3, EventKind::LeaseRevoked)
        ]
    );
    let lost = store
        .renew(Renew {
            holder: lease.holder.clone(),
            leases: Renewals::These(vec![lease::Renewal::of(&lease)]),
        })
        .await
        .unwrap();
    assert_eq!(lost[0].outcome, Err(Loss::Revoked { why: "test".into() }));
    store.close().await.unwrap();
    assert!(
        tokio::time::timeout(LIMIT, watch.next())
            .await
            .unwrap()
            .is_none()
    );
    assert!(store.now().await.unwrap_err().is_retryable());
}

#[tokio::test]
async fn l20_a_slow_watcher_gets_a_snapshot_and_no_gap() {
    let clock = manual();
    let options = Options {
        watch_buffer: 4,
        ..Options::default()
    };
    let store = Embedded::memory(options, Arc::new(clock.clone())).unwrap();
    let mut watch = store.watch(lease::Watching::everything()).await.unwrap();
    for id in 0..20 {
        granted(store.acquire(ask(&id.to_string(), "x")).await.unwrap());
    }
    let first = tokio::time::timeout(LIMIT, watch.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let Notice::Snapshot(snapshot) = first else {
        panic!("{first:?}")
    };
    assert_eq!(snapshot.leases.len(), 20);
    assert_eq!(snapshot.revision, Revision::new(20));
    granted(store.acquire(ask("more", "x")).await.unwrap());
    let next = tokio::time::timeout(LIMIT, watch.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(matches!(next, Notice::Event(event) if event.revision == Revision::new(21)));
}

#[tokio::test]
async fn lists_are_pages_in_the_order_of_the_keys_with_waiters_among_them() {
    let clock = manual();
    let store = memory(&clock);
    let keys: Vec<Key> = (0..25).map(|n| key(&format!("{n:02}"))).collect();
    let mut all = ask("x", "x");
    all.want = Want::All(keys.clone());
    store.acquire(all).await.unwrap();
    let mut waiter = ask("07", "y");
    waiter.wait_ms = 60_000;
    let mut waiting = store.acquire(waiter);
    let _ = futures_util::poll!(&mut waiting);
    until_waiting(&store, 1).await;
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store
            .leases(LeaseQuery {
                kind: Some("job".into()),
                status: Some(Status::Active),
                after: after.clone(),
                limit: 10,
                ..LeaseQuery::default()
            })
            .await
            .unwrap();
        seen.extend(page.items.into_iter().map(|lease| lease.key));
        after = seen.last().cloned();
        if !page.more {
            break;
        }
    }
    assert_eq!(seen, keys);
    let both = store
        .leases(LeaseQuery {
            limit: 100,
            ..LeaseQuery::default()
        })
        .await
        .unwrap();
    assert_eq!(both.items.len(), 26);
    let by_holder = store
        .leases(LeaseQuery {
            holder: Some(lease::HolderName::new("y").unwrap()),
            limit: 100,
            ..LeaseQuery::default()
        })
        .await
        .unwrap();
    assert_eq!(by_holder.items.len(), 1);
    assert_eq!(by_holder.items[0].status, Status::Pending);
}
