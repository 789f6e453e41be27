//! Losing: punctual expiry, proven death, release and revocation (L12, L15–L17).

use lease::{Acquire, Departure, EventCause, EventKind, Lease, LeaseRef, Loss, Renewal, Status};

use super::{Harness, Stage};

/// Nobody touches the key, and still it expires, on time.
pub async fn l12_a_lapsed_lease_expires_by_itself(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take_short("a", "ann").await;
    let renewed = stage.take_short("b", "ann").await;
    stage.pass(stage.pace().short_ms / 2).await;
    let renewed = stage.renew(&renewed).await;
    stage
        .pass(stage.pace().short_ms / 2 + stage.pace().slack_ms)
        .await;
    stage.until_expired(&lease).await;
    let events = stage.events().await;
    let expiry = events
        .iter()
        .find(|event| event.kind == EventKind::LeaseExpired)
        .expect("seen above");
    assert!(expiry.at >= lease.expires_at, "not early");
    // A second is far more than a timer needs; a sweep alone would be later still.
    assert!(expiry.at.since(lease.expires_at) <= 1_000, "not late");
    if stage.pace().exact {
        let renewed = renewed.expect("renewed in time");
        assert_eq!(stage.live("b").await, Some(renewed), "kept by its renewal");
    }
}

async fn depart(stage: &Stage<'_>, departure: Departure) -> Vec<(String, Status)> {
    let gone: Vec<Lease> = stage
        .authority
        .depart(departure)
        .await
        .expect("a departure is answered");
    gone.iter()
        .map(|lease| (lease.key.id().to_owned(), lease.status))
        .collect()
}

fn released<const N: usize>(ids: [&str; N]) -> Vec<(String, Status)> {
    ids.iter()
        .map(|id| ((*id).to_owned(), Status::Released))
        .collect()
}

/// A holder's death releases the leases that asked for it, and no others.
pub async fn l15_a_proven_death_releases_what_asked_for_it(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    for id in ["c", "a"] {
        let request = Acquire {
            release_on_death: true,
            ..stage.ask(id, "ann")
        };
        stage.grant(request).await;
    }
    let kept = stage.take("b", "ann").await;
    let foreign = Acquire {
        release_on_death: true,
        ..stage.ask("d", "bob")
    };
    let foreign = stage.grant(foreign).await;
    let young = Acquire {
        release_on_death: true,
        holder: stage.incarnation("ann", "2"),
        ..stage.ask("e", "ann")
    };
    let young = stage.grant(young).await;
    let gone = depart(&stage, Departure::Died(stage.holder("ann"))).await;
    assert_eq!(gone, released(["a", "c"]), "by key");
    assert_eq!(stage.live("a").await, None);
    assert_eq!(stage.live("b").await, Some(kept));
    assert_eq!(stage.live("d").await, Some(foreign));
    assert_eq!(stage.live("e").await, Some(young));
    let again = depart(&stage, Departure::Died(stage.holder("ann"))).await;
    assert!(again.is_empty(), "a second time changes nothing");
    let story = [EventKind::LeaseAcquired, EventKind::LeaseReleased];
    assert_eq!(stage.story("a").await, story);
}

/// A new incarnation ends what its predecessors had.
pub async fn l15_a_successor_inherits_nothing(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let old = stage.take("a", "ann").await;
    let new = Acquire {
        holder: stage.incarnation("ann", "2"),
        ..stage.ask("b", "ann")
    };
    let new = stage.grant(new).await;
    let foreign = stage.take("c", "bob").await;
    let gone = depart(&stage, Departure::Succeeded(new.holder.clone())).await;
    assert_eq!(gone, released(["a"]));
    assert_eq!(stage.renew(&old).await, Err(Loss::Released));
    assert_eq!(stage.live("b").await, Some(new));
    assert_eq!(stage.live("c").await, Some(foreign));
}

/// Whoever leaves gracefully leaves nothing behind.
pub async fn l15_leaving_releases_everything(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    stage.take("b", "ann").await;
    stage.take("a", "ann").await;
    let foreign = stage.take("c", "bob").await;
    let gone = depart(&stage, Departure::Left(stage.holder("ann"))).await;
    assert_eq!(gone, released(["a", "b"]));
    assert_eq!(stage.live("a").await, None);
    assert_eq!(stage.live("c").await, Some(foreign));
    let last = stage.events().await.pop().expect("an event");
    assert_eq!(last.cause, Some(EventCause::HolderLeft));
}

/// By anyone else a release changes nothing and is no error.
pub async fn l16_release_is_scoped_to_the_owner(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let old = stage.take("a", "ann").await;
    assert!(stage.release(&old).await);
    let lease = stage.take("a", "ann").await;
    let by = |holder| LeaseRef {
        holder,
        ..LeaseRef::from(&lease)
    };
    assert!(!stage.release_as(by(stage.holder("bob"))).await);
    assert!(!stage.release_as(by(stage.incarnation("ann", "2"))).await);
    assert!(
        !stage.release(&old).await,
        "an old token is not the owner's"
    );
    let nowhere = LeaseRef {
        key: stage.key("nowhere"),
        ..LeaseRef::from(&lease)
    };
    assert!(!stage.release_as(nowhere).await);
    assert_eq!(stage.live("a").await, Some(lease));
}

/// Twice is once.
pub async fn l16_release_is_idempotent(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    assert!(stage.release(&lease).await, "it ended now");
    assert!(!stage.release(&lease).await, "it had ended before");
    let story = [EventKind::LeaseAcquired, EventKind::LeaseReleased];
    assert_eq!(stage.story("a").await, story);
    let next = stage.take("a", "bob").await;
    assert!(!stage.release(&lease).await, "nor does it end another's");
    assert_eq!(stage.live("a").await, Some(next));
}

/// The reason reaches the holder and the history.
pub async fn l17_a_revoked_holder_is_told_why(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    let gone = stage.revoke(&lease, "maintenance").await;
    let gone = gone.expect("a live lease is revoked");
    assert_eq!((gone.id, gone.status), (lease.id, Status::Revoked));
    assert_eq!(stage.live("a").await, None);
    let why = "maintenance".into();
    assert_eq!(stage.renew(&lease).await, Err(Loss::Revoked { why }));
    let events = stage.events().await;
    let last = events.last().expect("it was announced");
    assert_eq!(last.kind, EventKind::LeaseRevoked);
    assert_eq!(last.detail.as_deref(), Some("maintenance"));
}

/// There is nothing to revoke twice, or after the end; and no revocation without a reason.
pub async fn l17_revoking_what_is_gone_changes_nothing(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    let silent = lease::Revoke {
        id: lease.id,
        reason: " ".into(),
    };
    let answer = stage.authority.revoke(silent).await;
    assert!(matches!(answer, Err(lease::Error::Invalid(_))));
    assert!(stage.revoke(&lease, "one").await.is_some());
    assert_eq!(stage.revoke(&lease, "two").await, None);
    let next = stage.take("a", "bob").await;
    assert_eq!(stage.revoke(&lease, "three").await, None);
    assert_eq!(stage.live("a").await, Some(next));
    let lapsed = stage.take_short("b", "ann").await;
    stage.lapse().await;
    assert_eq!(stage.revoke(&lapsed, "late").await, None);
}

/// Ended is ended, whatever is tried.
pub async fn nothing_leaves_a_terminal_status(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let released = stage.take("released", "ann").await;
    let revoked = stage.take("revoked", "ann").await;
    let expired = stage.take_short("expired", "ann").await;
    stage.release(&released).await;
    stage.revoke(&revoked, "test").await;
    stage.lapse().await;
    stage.until_expired(&expired).await;
    let ends = [
        (&released, Status::Released),
        (&revoked, Status::Revoked),
        (&expired, Status::Expired),
    ];
    for (lease, status) in ends {
        let renewal = Renewal::of(lease);
        assert!(stage.renew_as(&lease.holder, renewal).await.is_err());
        assert!(!stage.release(lease).await);
        assert_eq!(stage.revoke(lease, "again").await, None);
        assert_eq!(stage.live(lease.key.id()).await, None);
        let found = stage.authority.lease_by_id(lease.id).await;
        let found = found.expect("answered").expect("the history has it");
        assert_eq!(found.status, status);
        assert_eq!(stage.story(lease.key.id()).await.len(), 2);
    }
}
