//! Time stops with the authority, where it says so (L14).

use lease::{Capabilities, EventKind, EventQuery, Transaction, Write};

use super::{Harness, Pace, Restart, Stage};

/// A store that its test cannot take down does not claim, untested, that time stops with it: it is not
/// durable at all, or reports that its clock runs on and what that means, or only passes on what another
/// store promises.
#[expect(
    clippy::unused_async,
    reason = "a function of the suite like the others"
)]
pub async fn l14_what_no_restart_shows_is_not_promised(harness: &dyn Harness) {
    let capabilities = Stage::of(harness).authority.capabilities();
    let declared = !capabilities.durable
        || capabilities.store == "remote"
        || (!capabilities.time_stops && !capabilities.caveats.is_empty());
    assert!(
        declared,
        "promises more than its test can show: {capabilities:?}"
    );
}

/// The capabilities of a store whose restarts show something.
fn durable(stage: &Stage<'_>) -> Capabilities {
    let capabilities = stage.authority.capabilities();
    assert!(capabilities.durable, "{capabilities:?}");
    capabilities
}

fn down_ms(pace: Pace) -> u64 {
    if pace.exact { 3_600_000 } else { 300 }
}

async fn resumed_events(stage: &Stage<'_>) -> Vec<String> {
    let query = EventQuery {
        event: Some(EventKind::AuthorityResumed),
        limit: 100,
        ..EventQuery::default()
    };
    let page = stage.authority.events(query).await.expect("answered");
    page.events
        .into_iter()
        .map(|event| event.detail.as_deref().unwrap_or("").to_owned())
        .collect()
}

/// After an orderly stop each lease has the time it had left.
pub async fn l14_a_stop_leaves_each_lease_its_time(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let capabilities = durable(&stage);
    let lease = stage.take("a", "ann").await;
    stage.pass(200).await;
    let renewed = stage.renew(&lease).await.expect("kept");
    stage.pass(100).await;
    let now = stage.authority.now().await.expect("answered");
    let left = renewed.expires_at.since(now);
    harness.restart(Restart::Stop, down_ms(stage.pace())).await;
    let stage = stage.again();
    let after = stage.live("a").await.expect("a stop ends no lease");
    assert_eq!(
        (after.id, after.token, &after.holder),
        (lease.id, lease.token, &lease.holder)
    );
    let now = stage.authority.now().await.expect("answered");
    if capabilities.time_stops {
        stage.assert_about("time left", after.expires_at.since(now), left);
        assert!(after.expires_at >= renewed.expires_at, "never shortened");
        assert_eq!(resumed_events(&stage).await.len(), 1, "and it says so");
    } else {
        assert_eq!(after.expires_at, renewed.expires_at, "its clock ran on");
    }
    let kept = stage.renew(&lease).await.expect("still renewable");
    assert_eq!(kept.token, lease.token);
}

/// After a crash a lease may be longer, never shorter, and the event says by how much.
pub async fn l14_a_crash_never_shortens_a_lease(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let capabilities = durable(&stage);
    let lease = stage.take("a", "ann").await;
    let idle = stage.take("b", "ann").await;
    stage.pass(200).await;
    let renewed = stage.renew(&lease).await.expect("kept");
    let now = stage.authority.now().await.expect("answered");
    let left = renewed.expires_at.since(now);
    harness.restart(Restart::Crash, down_ms(stage.pace())).await;
    let stage = stage.again();
    let after = stage.live("a").await.expect("an acknowledged grant stays");
    assert_eq!((after.id, after.token), (lease.id, lease.token));
    assert!(stage.live("b").await.is_some_and(|it| it.id == idle.id));
    let now = stage.authority.now().await.expect("answered");
    if capabilities.time_stops {
        let left_now = after.expires_at.since(now);
        assert!(left_now <= lease.ttl.millis(), "the full ttl at most");
        stage.assert_about("time left", left_now.min(left), left);
        let reported = resumed_events(&stage).await;
        assert_eq!(reported.len(), 1);
        assert!(
            reported[0].contains("lengthened"),
            "by how much: {reported:?}"
        );
    }
    assert!(stage.renew(&lease).await.is_ok());
}

/// What was acknowledged is there after a restart, tokens included.
pub async fn l14_restarts_keep_tokens_records_and_history(harness: &dyn Harness) {
    let mut stage = Stage::of(harness);
    durable(&stage);
    let lease = stage.take("a", "ann").await;
    assert!(stage.release(&lease).await);
    let write = Transaction {
        writes: vec![Write {
            key: stage.key("r"),
            value: Some("1".into()),
            note: None,
        }],
        ..Transaction::default()
    };
    stage.commit(write).await;
    let record = stage.record("r").await;
    let history = stage.events().await;
    for how in [Restart::Crash, Restart::Stop, Restart::Crash] {
        harness.restart(how, down_ms(stage.pace())).await;
        stage = stage.again();
        assert_eq!(stage.record("r").await, record);
        assert_eq!(stage.events().await, history);
        assert_eq!(stage.live("a").await, None, "released stays released");
    }
    let next = stage.take("a", "bob").await;
    assert!(next.token > lease.token, "tokens never go back");
    let last = stage.events().await;
    let last = last.last().expect("the grant");
    assert!(last.revision > history[history.len() - 1].revision);
    assert_eq!(last.kind, EventKind::LeaseAcquired);
}
