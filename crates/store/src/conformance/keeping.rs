//! Keeping: renewal needs a live lease, moves forward only, and comes in batches (L7–L11).

use std::time::Duration;

use lease::{
    BootMillis, EventKind, Kept, Loss, Margin, Renew, Renewal, Renewals, Standing, Tenure, Token,
};

use super::{Harness, Stage};

/// Too late is too late, and does not take the key again.
pub async fn l7_a_lapsed_lease_is_never_revived(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take_short("a", "ann").await;
    let other = stage.take_short("b", "ann").await;
    stage.lapse().await;
    // Immediately, whether or not the authority has noticed by itself ...
    assert_eq!(stage.renew(&lease).await, Err(Loss::Expired));
    assert_eq!(stage.live("a").await, None);
    // ... and after it has.
    stage.until_expired(&other).await;
    assert_eq!(stage.renew(&other).await, Err(Loss::Expired));
    assert_eq!(stage.live("b").await, None);
    let all = Renew {
        holder: stage.holder("ann"),
        leases: Renewals::All,
    };
    let answers = stage.authority.renew(all).await.expect("answered");
    assert!(
        answers.iter().all(|answer| answer.outcome.is_err()),
        "nothing is left to renew: {answers:?}"
    );
    for id in ["a", "b"] {
        assert_eq!(
            stage.story(id).await,
            [EventKind::LeaseAcquired, EventKind::LeaseExpired],
            "nothing came back"
        );
    }
    if stage.pace().exact {
        let lease = stage.take_short("c", "ann").await;
        stage.pass(stage.pace().short_ms - 1).await;
        assert!(stage.renew(&lease).await.is_ok(), "live to the last moment");
    }
}

/// The reasons as they are defined at [`Loss`].
pub async fn l7_the_reason_is_told(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let released = stage.take("released", "ann").await;
    stage.release(&released).await;
    assert_eq!(stage.renew(&released).await, Err(Loss::Released));

    let revoked = stage.take("revoked", "ann").await;
    stage.revoke(&revoked, "too loud").await;
    let why = "too loud".into();
    assert_eq!(stage.renew(&revoked).await, Err(Loss::Revoked { why }));

    let stolen = stage.take("stolen", "ann").await;
    stage.release(&stolen).await;
    let next = stage.take("stolen", "bob").await;
    assert_eq!(stage.renew(&stolen).await, Err(Loss::Stolen));
    stage.release(&next).await;
    assert_eq!(stage.renew(&stolen).await, Err(Loss::Stolen), "still older");

    let never = Renewal {
        key: stage.key("never"),
        ..Renewal::of(&next)
    };
    assert_eq!(
        stage.renew_as(&next.holder, never).await,
        Err(Loss::Unknown)
    );
    let live = stage.take("live", "ann").await;
    let newer = Renewal {
        token: Token::new(live.token.get() + 1).expect("within range"),
        ..Renewal::of(&live)
    };
    assert_eq!(
        stage.renew_as(&live.holder, newer).await,
        Err(Loss::Unknown)
    );

    let lapsed = stage.take_short("lapsed", "ann").await;
    stage.lapse().await;
    assert_eq!(stage.renew(&lapsed).await, Err(Loss::Expired));
}

/// The right token in the wrong hands is no lease.
pub async fn l7_strangers_cannot_renew(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    stage.pass(20).await;
    for stranger in [stage.holder("bob"), stage.incarnation("ann", "2")] {
        let answer = stage.renew_as(&stranger, Renewal::of(&lease)).await;
        assert_eq!(answer, Err(Loss::Unknown));
    }
    assert_eq!(stage.live("a").await, Some(lease), "it was not touched");
}

/// Expiry is authority-now plus ttl.
pub async fn l8_renewal_counts_from_now(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    stage.pass(150).await;
    let before = stage.authority.now().await.expect("answered");
    let renewed = stage.renew(&lease).await.expect("kept");
    let after = stage.authority.now().await.expect("answered");
    let ttl = lease.ttl.millis();
    assert!(before.plus(ttl) <= renewed.expires_at && renewed.expires_at <= after.plus(ttl));
    let at = renewed.renewed_at.expect("it was renewed");
    assert!(before <= at && at <= after);
    assert_eq!(
        (renewed.token, renewed.id, renewed.acquired_at),
        (lease.token, lease.id, lease.acquired_at)
    );
    assert_eq!(stage.live("a").await, Some(renewed));
}

/// A shorter ttl counts from the next renewal on, and takes nothing back.
pub async fn l8_expiry_never_moves_backwards(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    let shorter = Renewal {
        ttl: Some(stage.short()),
        ..Renewal::of(&lease)
    };
    let renewed = stage.renew_as(&lease.holder, shorter).await.expect("kept");
    assert_eq!(renewed.ttl, stage.short());
    assert!(renewed.expires_at >= lease.expires_at, "never backwards");
    let refreshed = stage.grant(stage.ask_short("a", "ann")).await;
    assert!(refreshed.expires_at >= lease.expires_at, "nor by a refresh");
    stage.lapse().await;
    assert!(stage.live("a").await.is_some());
}

/// Kept and lost ones in one batch, answered in its order.
pub async fn l9_a_batch_is_answered_in_order(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let kept = stage.take("kept", "ann").await;
    let gone = stage.take("gone", "ann").await;
    let foreign = stage.take("foreign", "bob").await;
    let lapsed = stage.take_short("lapsed", "ann").await;
    let last = stage.take("also-kept", "ann").await;
    stage.release(&gone).await;
    stage.lapse().await;
    let order = [&lapsed, &kept, &foreign, &gone, &last];
    let batch = order.iter().map(|lease| Renewal::of(lease)).collect();
    let answers = stage.renew_these(&stage.holder("ann"), batch).await;
    let asked: Vec<_> = order.iter().map(|it| (it.key.clone(), it.token)).collect();
    let reported: Vec<_> = answers
        .iter()
        .map(|it| (it.key.clone(), it.token))
        .collect();
    assert_eq!(reported, asked);
    let outcomes: Vec<_> = answers
        .iter()
        .map(|answer| answer.outcome.as_ref().map(|lease| lease.id))
        .collect();
    assert_eq!(
        outcomes,
        [
            Err(&Loss::Expired),
            Ok(kept.id),
            Err(&Loss::Unknown),
            Err(&Loss::Released),
            Ok(last.id),
        ]
    );
    assert_eq!(stage.live("foreign").await, Some(foreign), "untouched");
    assert!(
        stage
            .renew_these(&stage.holder("ann"), vec![])
            .await
            .is_empty()
    );
}

/// Everything a holder has, in one call, and nothing of its other incarnations.
pub async fn l9_all_of_a_holder_in_the_order_of_keys(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    for id in ["c", "a", "d", "b"] {
        stage.take(id, "ann").await;
    }
    stage.take("e", "bob").await;
    let other = lease::Acquire {
        holder: stage.incarnation("ann", "2"),
        ..stage.ask("f", "ann")
    };
    stage.grant(other).await;
    let gone = stage.live("d").await.expect("just taken");
    stage.release(&gone).await;
    stage.pass(20).await;
    let all = Renew {
        holder: stage.holder("ann"),
        leases: Renewals::All,
    };
    let answers = stage.authority.renew(all).await.expect("answered");
    let keys: Vec<_> = answers.iter().map(|it| it.key.clone()).collect();
    assert_eq!(keys, stage.keys(["a", "b", "c"]));
    for answer in answers {
        let lease = answer.outcome.expect("each is live");
        assert!(lease.renewed_at.is_some());
        assert_eq!(stage.live(lease.key.id()).await, Some(lease));
    }
    assert_eq!(
        stage.live("e").await.and_then(|lease| lease.renewed_at),
        None
    );
}

/// One answer for everything that a holder has says how much that is, and what had lapsed.
pub async fn l9_all_of_a_holder_with_one_answer(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let nobody = stage.authority.keep(stage.holder("eve")).await;
    assert_eq!(nobody.expect("answered"), Kept::default());
    stage.take_short("lapsing", "ann").await;
    let before = [stage.take("a", "ann").await, stage.take("b", "ann").await];
    let other = stage.take("c", "bob").await;
    stage.lapse().await;
    let kept = stage.authority.keep(stage.holder("ann")).await;
    let kept = kept.expect("answered");
    assert_eq!(kept.leases, 2);
    for lost in &kept.lost {
        // Unless the authority had noticed by itself.
        assert_eq!(lost.key, stage.key("lapsing"));
        assert_eq!(lost.outcome, Err(Loss::Expired));
    }
    for before in before {
        let lease = stage.live(before.key.id()).await.expect("kept");
        assert!(lease.renewed_at.is_some());
        assert!(lease.expires_at > before.expires_at);
        assert!(kept.expires_at.is_some_and(|at| at <= lease.expires_at));
    }
    assert_eq!(stage.live("lapsing").await, None);
    assert_eq!(stage.live("c").await, Some(other), "somebody else's");
}

/// The holder counts from before it asked, so its deadline comes first.
pub async fn l10_the_authority_never_expires_before_the_holder_stops(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let clock = async || stage.authority.now().await.expect("answered").get();
    let sent = BootMillis::new(clock().await);
    let lease = stage.take("a", "ann").await;
    let margin = Margin::of(lease.ttl);
    let mut tenure = Tenure::granted(sent, lease.ttl, margin, lease.on_outage);
    let expiry = BootMillis::new(lease.expires_at.get());
    assert!(tenure.stop_at().plus(margin.millis()) <= expiry);
    assert_eq!(tenure.standing(expiry), Standing::Over);
    stage.pass(30).await;
    let sent = BootMillis::new(clock().await);
    let renewed = stage.renew(&lease).await.expect("kept");
    tenure.renewed(sent, renewed.ttl, margin);
    let expiry = BootMillis::new(renewed.expires_at.get());
    assert!(tenure.stop_at().plus(margin.millis()) <= expiry);
}

/// A renewal whose answer nobody read leaves the lease as valid as it was, or more.
pub async fn l11_an_unanswered_renewal_loses_nothing(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    let mut expires_at = lease.expires_at;
    for wait_ms in 0..10 {
        stage.pass(10).await;
        let request = Renew {
            holder: lease.holder.clone(),
            leases: Renewals::These(vec![Renewal::of(&lease)]),
        };
        // Sent, and left at ever later moments, before or after it was decided.
        let mut call = stage.authority.renew(request);
        tokio::select! {
            biased;
            answer = &mut call => drop(answer),
            () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
        }
        drop(call);
        let shown = stage.live("a").await.expect("still live");
        assert_eq!((shown.id, shown.token), (lease.id, lease.token));
        assert!(shown.expires_at >= expires_at, "moved backwards");
        expires_at = shown.expires_at;
    }
    stage.pass(10).await;
    let renewed = stage.renew(&lease).await.expect("still valid");
    assert_eq!((renewed.id, renewed.token), (lease.id, lease.token));
    assert!(renewed.expires_at > lease.expires_at, "time passed since");
    assert_eq!(stage.story("a").await, [EventKind::LeaseAcquired]);
}

/// What a holder reports stays until it reports something else.
pub async fn renewals_carry_a_report_and_a_new_ttl(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take_short("a", "ann").await;
    let report = Renewal {
        ttl: Some(stage.long()),
        stats: Some(r#"{"frames":12}"#.into()),
        ..Renewal::of(&lease)
    };
    let renewed = stage.renew_as(&lease.holder, report).await.expect("kept");
    assert_eq!(renewed.ttl, stage.long());
    stage.lapse().await;
    let renewed = stage.renew(&lease).await.expect("the longer ttl counts");
    let stats: serde_json::Value =
        serde_json::from_str(renewed.stats.as_deref().unwrap_or("null")).expect("JSON");
    assert_eq!(stats, serde_json::json!({"frames": 12}));
    assert_eq!(renewed.ttl, stage.long());
}
