//! Waiting: first come first served, one woken at a time, and nobody who left (L6).

use lease::{
    Acquire, Cause, Departure,
    EventKind::{LeaseAcquired, LeaseReleased},
    LeaseQuery, Status, Token,
};

use super::{
    Harness, Stage,
    stage::{granted, held, refused},
};

/// Long enough never to run out in a test.
const PATIENT_MS: u64 = 120_000;

fn patient(request: Acquire) -> Acquire {
    Acquire {
        wait_ms: PATIENT_MS,
        ..request
    }
}

/// Three wait; each release serves the next in line, and only that one.
pub async fn l6_a_release_wakes_exactly_the_first(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let mut lease = stage.take("a", "ann").await;
    let mut queue = std::collections::VecDeque::new();
    for holder in ["bob", "cid", "dan"] {
        let waiting = stage.queue(patient(stage.ask("a", holder))).await;
        queue.push_back((holder, waiting));
    }
    while let Some((holder, waiting)) = queue.pop_front() {
        let before = lease.token;
        assert!(stage.release(&lease).await);
        lease = granted(stage.answer(waiting).await).remove(0);
        assert_eq!(
            lease.holder,
            stage.holder(holder),
            "first come first served"
        );
        assert!(lease.token > before);
        assert_eq!(stage.live("a").await.as_ref(), Some(&lease));
        for (other, waiting) in &queue {
            assert!(!waiting.is_finished(), "{other} is woken too early");
            let pending = stage.pending(&stage.key("a"), &stage.holder(other)).await;
            assert_eq!(pending, 1, "{other} still waits");
        }
    }
}

/// Nobody has to ask for a lapsed key: whoever waits gets it (L12).
pub async fn l6_an_expiry_wakes_the_first(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take_short("a", "ann").await;
    let first = stage.queue(patient(stage.ask("a", "bob"))).await;
    let second = stage.queue(patient(stage.ask("a", "cid"))).await;
    stage.lapse().await;
    let next = granted(stage.answer(first).await).remove(0);
    assert_eq!(next.holder, stage.holder("bob"));
    assert!(next.token > lease.token);
    assert!(next.acquired_at >= lease.expires_at, "not before it lapsed");
    assert!(!second.is_finished());
}

/// A revoked key goes to the first in line.
pub async fn l6_a_revocation_wakes_the_first(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    let waiting = stage.queue(patient(stage.ask("a", "bob"))).await;
    stage.revoke(&lease, "test").await;
    let next = granted(stage.answer(waiting).await).remove(0);
    assert_eq!(stage.live("a").await, Some(next));
}

/// A wait is bounded; at its end the waiter learns who has the key.
pub async fn l6_a_wait_ends_with_a_refusal(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    let request = Acquire {
        wait_ms: stage.pace().short_ms,
        ..stage.ask("a", "bob")
    };
    let waiting = stage.queue(request).await;
    stage.lapse().await;
    let refusal = refused(stage.answer(waiting).await);
    assert_eq!(held(refusal), (lease.holder.clone(), lease.token));
    let pending = stage.pending(&stage.key("a"), &stage.holder("bob")).await;
    assert_eq!(pending, 0, "it waits no more");
    assert!(stage.release(&lease).await);
    assert_eq!(stage.live("a").await, None, "and is not served later");
}

/// A wait that ends about when the lease lapses gets the key, or learns who had it: never something
/// else, whichever of the two the authority notices first.
pub async fn l6_a_wait_that_ends_with_the_lapse_is_answered_truly(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let short_ms = stage.pace().short_ms;
    let mut waits = Vec::new();
    for (id, early_ms) in [("a", 0), ("b", 1), ("c", 3), ("d", 6), ("e", 12)] {
        let lease = stage.take_short(id, "ann").await;
        let request = Acquire {
            wait_ms: short_ms.saturating_sub(early_ms).max(1),
            ..stage.ask(id, "bob")
        };
        waits.push((id, lease, stage.queue(request).await));
    }
    stage.lapse().await;
    for (id, lease, waiting) in waits {
        match stage.answer(waiting).await {
            lease::Acquired::Granted { leases, .. } => {
                assert_eq!(leases[0].holder, stage.holder("bob"));
                assert!(leases[0].token > lease.token);
                assert!(leases[0].acquired_at >= lease.expires_at, "{id}: too early");
            }
            lease::Acquired::Refused(refusal) => {
                assert_eq!(held(refusal), (lease.holder, lease.token), "{id}");
            }
        }
    }
}

/// A waiter that went away is passed over.
pub async fn l6_a_dropped_waiter_is_never_granted(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    let gone = stage.queue(patient(stage.ask("a", "bob"))).await;
    let stays = stage.queue(patient(stage.ask("a", "cid"))).await;
    gone.abort();
    assert!(gone.await.is_err_and(|error| error.is_cancelled()));
    stage
        .eventually("a dropped waiter is no longer pending", async || {
            stage.pending(&stage.key("a"), &stage.holder("bob")).await == 0
        })
        .await;
    assert!(stage.release(&lease).await);
    let next = granted(stage.answer(stays).await).remove(0);
    assert_eq!(next.holder, stage.holder("cid"));
    let bob = stage.holder("bob");
    assert!(
        stage
            .events()
            .await
            .iter()
            .all(|event| event.lease.as_ref().is_none_or(|it| it.holder != bob)),
        "the one that left never had it"
    );
}

/// A grant that crosses with the end of its wait goes back: the caller goes away after it was granted and
/// before it took the answer. Only for stores in the same process: nobody knows what became of an answer
/// that went over a network.
pub async fn l6_a_grant_that_nobody_took_goes_back(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    let mut wait = stage.authority.acquire(patient(stage.ask("a", "bob")));
    let (key, bob) = (stage.key("a"), stage.holder("bob"));
    let queued = stage.eventually("it waits", async || stage.pending(&key, &bob).await == 1);
    tokio::select! {
        answer = &mut wait => panic!("the key is held: {answer:?}"),
        () = queued => {}
    }
    // From here on nobody looks for the answer.
    assert!(stage.release(&lease).await);
    stage
        .eventually("the one that waits has it", async || {
            stage
                .owner("a")
                .await
                .is_some_and(|(owner, _)| owner == bob)
        })
        .await;
    drop(wait);
    stage
        .eventually("what nobody took is free again", async || {
            stage.owner("a").await.is_none()
        })
        .await;
    assert_eq!(
        stage.story("a").await,
        [LeaseAcquired, LeaseReleased, LeaseAcquired, LeaseReleased]
    );
}

/// While it waits it is shown as pending, behind the lease it waits for.
pub async fn l6_waiters_are_pending(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    let waiting = stage.queue(patient(stage.ask("a", "bob"))).await;
    let query = LeaseQuery {
        kind: Some(stage.kind().to_owned()),
        limit: 10,
        ..LeaseQuery::default()
    };
    let mut shown = stage.list(query.clone()).await;
    shown.sort_by_key(|lease| lease.status == Status::Pending);
    assert_eq!(shown.len(), 2, "active and pending by default: {shown:?}");
    assert_eq!(shown[0], lease);
    assert_eq!(shown[1].status, Status::Pending);
    assert_eq!(shown[1].holder, stage.holder("bob"));
    assert_eq!(shown[1].token, Token::ZERO, "no token before a grant");
    let active = stage
        .list(LeaseQuery {
            status: Some(Status::Active),
            ..query.clone()
        })
        .await;
    assert_eq!(active, std::slice::from_ref(&lease));
    stage.release(&lease).await;
    stage.answer(waiting).await;
    let pending = LeaseQuery {
        status: Some(Status::Pending),
        ..query
    };
    assert_eq!(stage.list(pending).await, []);
}

/// Between a lapse and its expiry nobody steals what others wait for.
pub async fn l6_newcomers_do_not_overtake(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    stage.take_short("a", "ann").await;
    let waiting = stage.queue(patient(stage.ask("a", "bob"))).await;
    stage.lapse().await;
    let (holder, _) = stage.refuse_held(stage.ask("a", "cid")).await;
    assert_eq!(holder, stage.holder("bob"), "the waiter was first");
    granted(stage.answer(waiting).await);
}

/// Waiting for all keys takes none of them before it gets them all.
pub async fn l6_waiting_for_all_gets_all_at_once(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let a = stage.take("a", "ann").await;
    let b = stage.take("b", "bob").await;
    let both = stage.queue(patient(stage.ask_all(["b", "a"], "cid"))).await;
    assert!(stage.release(&a).await);
    // A part of what it wants is free, and stays free for others.
    let other = stage.take("a", "dan").await;
    assert!(stage.release(&b).await);
    assert!(!both.is_finished());
    assert_eq!(stage.live("b").await, None);
    assert!(stage.release(&other).await);
    let leases = granted(stage.answer(both).await);
    let order: Vec<_> = leases.into_iter().map(|lease| lease.key).collect();
    assert_eq!(order, stage.keys(["b", "a"]));
}

/// Waiting for a pool gets whatever slot comes free, once.
pub async fn l6_waiting_for_any_gets_the_first_freed(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let a = stage.take("a", "ann").await;
    let b = stage.take("b", "bob").await;
    let waiting = stage.queue(patient(stage.ask_any(["a", "b"], "cid"))).await;
    assert!(stage.release(&b).await);
    let slot = granted(stage.answer(waiting).await);
    assert_eq!(slot.len(), 1);
    assert_eq!(slot[0].key, stage.key("b"));
    assert!(stage.release(&a).await);
    assert_eq!(stage.live("a").await, None, "one slot was wanted");
}

/// A holder that is known to be gone is not served (L15).
pub async fn l6_a_departed_holder_waits_no_more(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    let waiting = stage.queue(patient(stage.ask("a", "bob"))).await;
    stage
        .authority
        .depart(Departure::Died(stage.holder("bob")))
        .await
        .expect("a departure is answered");
    let refusal = refused(stage.answer(waiting).await);
    assert!(matches!(refusal.cause, Cause::Held { .. }));
    assert!(stage.release(&lease).await);
    assert_eq!(stage.live("a").await, None);
}
