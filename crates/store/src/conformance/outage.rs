//! What the authority does for a holder that cannot reach it (L13).

use lease::{Acquire, Cause, EventKind, Grace, Loss, OnOutage, Verdict};

use super::{Harness, Stage, stage::granted};

fn grace(stage: &Stage<'_>) -> Grace {
    Grace::from_millis(stage.pace().short_ms).expect("within range")
}

fn hold(stage: &Stage<'_>) -> Acquire {
    Acquire {
        on_outage: OnOutage::Hold(grace(stage)),
        ..stage.ask_short("a", "ann")
    }
}

/// A grace that no test outlives, for what must not lapse.
fn hold_long(stage: &Stage<'_>) -> Acquire {
    Acquire {
        on_outage: OnOutage::Hold(Grace::from_millis(600_000).expect("within range")),
        ..stage.ask_short("a", "ann")
    }
}

/// Past its expiry the key is still withheld from everyone else.
pub async fn l13_hold_withholds_the_key_for_the_grace(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.grant(hold_long(&stage)).await;
    stage.lapse().await;
    let refusal = stage.refuse(stage.ask("a", "bob")).await;
    let Cause::Held {
        holder,
        token,
        left_ms,
        ..
    } = refusal.cause
    else {
        panic!("it is withheld, so not {:?}", refusal.cause);
    };
    assert_eq!((holder, token), (lease.holder.clone(), lease.token));
    stage.assert_about("time left", left_ms, 600_000);
    let shown = stage.live("a").await.expect("in jeopardy is live");
    assert_eq!(shown.expires_at, lease.expires_at);
    let now = stage.authority.now().await.expect("answered");
    assert!(shown.in_jeopardy(now));
    assert_eq!(stage.verdict("a", lease.token).await, Verdict::Current);
    assert_eq!(stage.story("a").await, [EventKind::LeaseAcquired]);
}

/// Its holder comes back in time and keeps it, with its token.
pub async fn l13_a_lease_in_jeopardy_is_renewed_with_its_token(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.grant(hold_long(&stage)).await;
    stage.lapse().await;
    let renewed = stage.renew(&lease).await.expect("not lapsed, so kept");
    assert_eq!((renewed.id, renewed.token), (lease.id, lease.token));
    let now = stage.authority.now().await.expect("answered");
    assert!(renewed.expires_at > lease.expires_at);
    if stage.pace().exact {
        assert!(!renewed.in_jeopardy(now));
    }
    assert_eq!(stage.story("a").await, [EventKind::LeaseAcquired]);
}

/// After expiry and grace it lapses like any other, and goes to whoever waits.
pub async fn l13_hold_lapses_after_the_grace(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.grant(hold(&stage)).await;
    let waiting = Acquire {
        wait_ms: 60_000,
        ..stage.ask("a", "bob")
    };
    let waiting = stage.queue(waiting).await;
    if stage.pace().exact {
        stage.pass(2 * stage.pace().short_ms - 1).await;
        assert!(!waiting.is_finished());
        stage.pass(1).await;
    } else {
        stage.pass(2 * stage.pace().short_ms).await;
    }
    let next = granted(stage.answer(waiting).await).remove(0);
    assert!(next.acquired_at >= lease.lapses_at(), "not before");
    assert_eq!(stage.renew(&lease).await, Err(Loss::Stolen));
}

/// Release and revocation end a lease in jeopardy immediately.
pub async fn l13_hold_ends_early_by_release_and_revocation(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let first = stage.grant(hold_long(&stage)).await;
    let second = Acquire {
        want: lease::Want::one(stage.key("b")),
        ..hold_long(&stage)
    };
    let second = stage.grant(second).await;
    stage.lapse().await;
    assert!(stage.release(&first).await);
    assert!(stage.take("a", "bob").await.token > first.token);
    assert!(stage.revoke(&second, "test").await.is_some());
    assert!(stage.take("b", "bob").await.token > second.token);
}

/// With `continue` the authority gives the key away at expiry.
pub async fn l13_continue_gives_the_key_away_at_expiry(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let request = Acquire {
        on_outage: OnOutage::Continue(Grace::from_millis(600_000).expect("within range")),
        ..stage.ask_short("a", "ann")
    };
    let lease = stage.grant(request.clone()).await;
    assert_eq!(lease.on_outage, request.on_outage);
    stage.lapse().await;
    let next = stage.take("a", "bob").await;
    assert!(next.token > lease.token, "only the newer token counts");
    let latest = next.token;
    assert_eq!(
        stage.verdict("a", lease.token).await,
        Verdict::Stale { latest }
    );
    assert_eq!(stage.renew(&lease).await, Err(Loss::Stolen));
}
