//! Handing a key over: every step, its deadline, its way back and its repeat (L18).

use lease::{
    Acquire, Error, EventCause, EventKind, Grace, Handoff, HandoffStage, HandoffState, HandoffStep,
    Labels, Lease, LeaseRef, Loss, OnOutage,
};

use super::{Harness, Stage};

/// A deadline that no test outlives.
const AMPLE_MS: u64 = 300_000;

fn offer(stage: &Stage<'_>, lease: &Lease, prepare_ms: u64, drain_ms: u64) -> HandoffStep {
    HandoffStep::Offer {
        lease: LeaseRef::from(lease),
        successor: stage.holder("bob"),
        prepare_ms,
        drain_ms,
        confirm_ms: stage.pace().short_ms,
    }
}

fn prepare(stage: &Stage<'_>) -> HandoffStep {
    HandoffStep::Prepare {
        key: stage.key("a"),
        successor: stage.holder("bob"),
    }
}

fn commit(lease: &Lease) -> HandoffStep {
    commit_within(lease, None)
}

fn commit_within(lease: &Lease, limit: Option<u32>) -> HandoffStep {
    HandoffStep::Commit {
        lease: LeaseRef::from(lease),
        limit,
    }
}

fn confirm(lease: &Lease) -> HandoffStep {
    HandoffStep::Confirm {
        lease: LeaseRef::from(lease),
    }
}

fn open(state: HandoffState) -> Handoff {
    match state {
        HandoffState::Open(handoff) => handoff,
        other => panic!("the handoff is under way, so not {other:?}"),
    }
}

fn moved(state: HandoffState) -> Lease {
    match state {
        HandoffState::Moved(lease) => *lease,
        other => panic!("the key has moved, so not {other:?}"),
    }
}

/// Ann has `a` and has offered it to Bob, who is prepared.
async fn prepared(stage: &Stage<'_>) -> Lease {
    let lease = stage.take("a", "ann").await;
    open(stage.step(offer(stage, &lease, AMPLE_MS, AMPLE_MS)).await);
    open(stage.step(prepare(stage)).await);
    lease
}

/// The whole way, with one owner at every moment.
pub async fn l18_a_key_moves_in_one_step(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let labels = [("tenant", "acme"), ("site", "north")];
    let labels = labels.map(|(name, value)| (name.into(), value.into()));
    let request = Acquire {
        release_on_death: true,
        on_outage: OnOutage::Hold(Grace::from_millis(1_234).expect("within range")),
        labels: Labels::new(labels.into()).expect("well-formed"),
        ..stage.ask("a", "ann")
    };
    let lease = stage.grant(request).await;
    let offered = open(stage.step(offer(&stage, &lease, AMPLE_MS, AMPLE_MS)).await);
    assert_eq!(offered.stage, HandoffStage::Offered);
    assert_eq!(offered.successor, stage.holder("bob"));
    let shown = stage.live("a").await.expect("ann has it");
    assert_eq!(shown.handoff.as_deref(), Some(&offered));
    let ready = open(stage.step(prepare(&stage)).await);
    assert_eq!(ready.stage, HandoffStage::Prepared);
    let owner = stage.owner("a").await.expect("ann still has it");
    assert_eq!(owner, (lease.holder.clone(), lease.token));
    let next = moved(stage.step(commit(&lease)).await);
    assert_eq!(next.holder, stage.holder("bob"));
    assert!(next.token > lease.token && next.id != lease.id);
    assert_eq!((next.ttl, next.release_on_death), (lease.ttl, true));
    assert_eq!(
        (&next.labels, next.on_outage),
        (&lease.labels, lease.on_outage)
    );
    assert_eq!(
        next.expires_at,
        next.acquired_at.plus(stage.pace().short_ms),
        "time to confirm, no more"
    );
    assert_eq!(stage.live("a").await.as_ref(), Some(&next));
    let settled = moved(stage.step(confirm(&next)).await);
    assert_eq!((settled.id, settled.token), (next.id, next.token));
    assert!(settled.expires_at > next.expires_at && settled.handoff.is_none());
    assert_eq!(stage.renew(&lease).await, Err(Loss::Stolen));
    let story = [
        EventKind::LeaseAcquired,
        EventKind::HandoffOffered,
        EventKind::HandoffPrepared,
        EventKind::LeaseReleased,
        EventKind::LeaseAcquired,
    ];
    assert_eq!(stage.story("a").await, story);
    let events = stage.events().await;
    assert_eq!(events[3].at, events[4].at, "no moment without an owner");
    let bob = || stage.holder("bob");
    let causes = [
        None,
        Some(EventCause::Successor(bob())),
        Some(EventCause::Successor(bob())),
        Some(EventCause::HandedOverTo(bob())),
        Some(EventCause::HandedOver),
    ];
    let found: Vec<_> = events.iter().map(|event| event.cause.clone()).collect();
    assert_eq!(found, causes);
    assert!(events.iter().all(|event| event.detail.is_none()));
    for event in &events {
        let shown = event.lease.as_ref().map(|it| &it.labels);
        assert_eq!(shown, Some(&lease.labels), "{event:?}");
    }
}

/// Lost answers are repeated: each step gives the same answer again, and no new event.
pub async fn l18_every_step_may_be_repeated(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    let step = offer(&stage, &lease, AMPLE_MS, AMPLE_MS);
    let first = open(stage.step(step.clone()).await);
    assert_eq!(open(stage.step(step).await), first);
    let first = open(stage.step(prepare(&stage)).await);
    assert_eq!(open(stage.step(prepare(&stage)).await), first);
    let first = moved(stage.step(commit(&lease)).await);
    assert_eq!(moved(stage.step(commit(&lease)).await), first);
    assert_eq!(moved(stage.step(prepare(&stage)).await), first);
    let settled = moved(stage.step(confirm(&first)).await);
    let again = moved(stage.step(confirm(&first)).await);
    assert_eq!((again.id, again.token), (settled.id, settled.token));
    assert_eq!(stage.story("a").await.len(), 5, "one event per change");
}

/// The successor does not prepare: the holder simply keeps the key, and may offer it again.
pub async fn l18_an_unprepared_offer_runs_out(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    let short = stage.pace().short_ms;
    open(stage.step(offer(&stage, &lease, short, AMPLE_MS)).await);
    stage.lapse().await;
    assert_eq!(stage.step(prepare(&stage)).await, HandoffState::Void);
    assert_eq!(stage.step(commit(&lease)).await, HandoffState::Void);
    assert!(stage.renew(&lease).await.is_ok(), "the holder keeps it");
    let again = open(stage.step(offer(&stage, &lease, AMPLE_MS, AMPLE_MS)).await);
    assert_eq!(again.stage, HandoffStage::Offered);
    open(stage.step(prepare(&stage)).await);
}

/// The holder does not drain in time: it keeps the key.
pub async fn l18_an_undrained_handoff_runs_out(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    let short = stage.pace().short_ms;
    open(stage.step(offer(&stage, &lease, AMPLE_MS, short)).await);
    open(stage.step(prepare(&stage)).await);
    stage.lapse().await;
    assert_eq!(stage.step(commit(&lease)).await, HandoffState::Void);
    let owner = stage.owner("a").await.expect("the holder keeps it");
    assert_eq!(owner, (lease.holder.clone(), lease.token));
    assert!(stage.renew(&lease).await.is_ok());
}

/// A successor without room does not get the key, although it was prepared: the holder keeps it, and hands it
/// over once there is room. What a namesake in another tenant has does not count.
pub async fn l18_a_commit_keeps_to_the_limit(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let elsewhere = [(lease::TENANT.to_owned(), "other".to_owned())];
    stage
        .grant(Acquire {
            labels: Labels::new(elsewhere.into()).expect("a label"),
            ..stage.ask("b", "bob")
        })
        .await;
    let lease = prepared(&stage).await;
    let full = stage.take("c", "bob").await;
    let events = stage.events().await.len();
    let state = stage.step(commit_within(&lease, Some(1))).await;
    assert_eq!(state, HandoffState::Void);
    assert_eq!(stage.events().await.len(), events, "nothing happened");
    let owner = stage.owner("a").await.expect("the holder keeps it");
    assert_eq!(owner, (lease.holder.clone(), lease.token));
    stage.release(&full).await;
    let next = moved(stage.step(commit_within(&lease, Some(1))).await);
    assert_eq!(next.holder, stage.holder("bob"));
    // A repeat finds what moved, and does not count it against itself.
    let again = moved(stage.step(commit_within(&lease, Some(1))).await);
    assert_eq!(again, next);
}

/// The successor vanished after the commit: the key is free again after the time to confirm.
pub async fn l18_an_unconfirmed_successor_loses_the_key(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = prepared(&stage).await;
    let next = moved(stage.step(commit(&lease)).await);
    stage.lapse().await;
    let state = stage.step(confirm(&next)).await;
    assert_eq!(state, HandoffState::Lost(Loss::Expired));
    stage.until_expired(&next).await;
    let third = stage.take("a", "cid").await;
    assert!(third.token > next.token);
}

/// A successor that renews is at work: that confirms.
pub async fn l18_a_renewal_confirms(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = prepared(&stage).await;
    let next = moved(stage.step(commit(&lease)).await);
    let renewed = stage.renew(&next).await.expect("bob has it");
    assert!(renewed.handoff.is_none());
    stage.lapse().await;
    let owner = stage.owner("a").await.expect("for its full ttl");
    assert_eq!(owner, (next.holder, next.token));
}

/// Holder and successor may cancel before the commit; a stranger may not, and after it nobody may.
pub async fn l18_either_side_calls_it_off(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let cancel = |name: &str| HandoffStep::Cancel {
        key: stage.key("a"),
        by: stage.holder(name),
    };
    let lease = prepared(&stage).await;
    assert_eq!(
        open(stage.step(cancel("cid")).await).stage,
        HandoffStage::Prepared
    );
    assert_eq!(stage.step(cancel("bob")).await, HandoffState::Void);
    assert_eq!(stage.step(cancel("bob")).await, HandoffState::Void);
    assert_eq!(stage.step(commit(&lease)).await, HandoffState::Void);
    let shown = stage.live("a").await.expect("ann keeps it");
    assert!(shown.handoff.is_none());
    open(stage.step(offer(&stage, &lease, AMPLE_MS, AMPLE_MS)).await);
    assert_eq!(stage.step(cancel("ann")).await, HandoffState::Void);
    assert_eq!(stage.step(prepare(&stage)).await, HandoffState::Void);
    open(stage.step(offer(&stage, &lease, AMPLE_MS, AMPLE_MS)).await);
    open(stage.step(prepare(&stage)).await);
    let next = moved(stage.step(commit(&lease)).await);
    let state = open(stage.step(cancel("ann")).await);
    assert_eq!(state.stage, HandoffStage::Committed, "too late");
    assert_eq!(stage.live("a").await, Some(next));
    let cancelled = stage
        .story("a")
        .await
        .into_iter()
        .filter(|kind| *kind == EventKind::HandoffCancelled)
        .count();
    assert_eq!(cancelled, 2, "each once");
}

/// Whoever was not offered the key cannot prepare for it.
pub async fn l18_only_the_named_successor_prepares(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    assert_eq!(stage.step(prepare(&stage)).await, HandoffState::Void);
    let lease = stage.take("a", "ann").await;
    assert_eq!(stage.step(prepare(&stage)).await, HandoffState::Void);
    open(stage.step(offer(&stage, &lease, AMPLE_MS, AMPLE_MS)).await);
    for stranger in [stage.holder("cid"), stage.incarnation("bob", "2")] {
        let step = HandoffStep::Prepare {
            key: stage.key("a"),
            successor: stranger,
        };
        assert_eq!(stage.step(step).await, HandoffState::Void);
    }
    assert_eq!(stage.step(commit(&lease)).await, HandoffState::Void);
    open(stage.step(prepare(&stage)).await);
}

/// What one does not have one cannot give.
pub async fn l18_a_lost_lease_cannot_be_handed_over(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = prepared(&stage).await;
    stage.revoke(&lease, "test").await;
    let why: std::sync::Arc<str> = "test".into();
    let lost = HandoffState::Lost(Loss::Revoked { why });
    assert_eq!(stage.step(commit(&lease)).await, lost);
    let step = offer(&stage, &lease, AMPLE_MS, AMPLE_MS);
    assert_eq!(stage.step(step).await, lost);
    assert_eq!(stage.step(prepare(&stage)).await, HandoffState::Void);
    let foreign = stage.take("a", "cid").await;
    let claimed = Lease {
        holder: stage.holder("ann"),
        ..foreign.clone()
    };
    let step = offer(&stage, &claimed, AMPLE_MS, AMPLE_MS);
    assert_eq!(stage.step(step).await, HandoffState::Lost(Loss::Unknown));
    let state = stage.step(confirm(&claimed)).await;
    assert_eq!(state, HandoffState::Lost(Loss::Unknown));
    assert_eq!(stage.live("a").await, Some(foreign));
}

/// The key goes to the successor, not to whoever waits for it.
pub async fn l18_a_commit_does_not_serve_waiters(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = prepared(&stage).await;
    let waiting = Acquire {
        wait_ms: 60_000,
        ..stage.ask("a", "cid")
    };
    let waiting = stage.queue(waiting).await;
    let next = moved(stage.step(commit(&lease)).await);
    let next = moved(stage.step(confirm(&next)).await);
    assert!(!waiting.is_finished());
    assert!(stage.release(&next).await);
    let last = super::stage::granted(stage.answer(waiting).await).remove(0);
    assert_eq!(last.holder, stage.holder("cid"));
}

/// No stage without a deadline, and no handoff to oneself.
pub async fn l18_deadlines_are_required(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    let to_itself = HandoffStep::Offer {
        lease: LeaseRef::from(&lease),
        successor: lease.holder.clone(),
        prepare_ms: AMPLE_MS,
        drain_ms: AMPLE_MS,
        confirm_ms: AMPLE_MS,
    };
    for step in [
        offer(&stage, &lease, 0, AMPLE_MS),
        offer(&stage, &lease, AMPLE_MS, 0),
        offer(&stage, &lease, 86_400_001, AMPLE_MS),
        to_itself,
    ] {
        let answer = stage.authority.handoff(step).await;
        assert!(matches!(answer, Err(Error::Invalid(_))), "{answer:?}");
    }
    assert_eq!(stage.live("a").await, Some(lease));
}
