//! Granting: exclusive, atomic, with tokens that never go back (L1–L4).

use std::collections::BTreeSet;

use lease::{
    Acquire, Acquired, Cause, Error, EventKind, Labels, Loss, Status, Token, Verdict, Want,
};

use super::{Harness, Stage};

/// A hundred tasks ask for one key at the same time.
pub async fn l1_one_of_a_hundred_racers_is_granted(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let racers: Vec<_> = (0..100)
        .map(|racer| {
            let request = stage.ask("a", &format!("racer-{racer}"));
            let authority = stage.authority.clone();
            tokio::spawn(async move { authority.acquire(request).await })
        })
        .collect();
    let mut winners = Vec::new();
    let mut named = Vec::new();
    for racer in racers {
        let answer = racer.await.expect("a racer does not panic");
        match answer.expect("a racer is answered") {
            Acquired::Granted { leases, .. } => winners.extend(leases),
            Acquired::Refused(refusal) => named.push(super::stage::held(refusal)),
        }
    }
    assert_eq!(winners.len(), 1, "exactly one is granted");
    let winner = (winners[0].holder.clone(), winners[0].token);
    assert_eq!(stage.owner("a").await.as_ref(), Some(&winner));
    assert!(
        named.iter().all(|name| *name == winner),
        "each loser is told who won"
    );
}

/// One holder asks for many keys together with a limit.
pub async fn l1_a_limit_holds_under_a_race(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let racers: Vec<_> = (0..20)
        .map(|racer| {
            let request = Acquire {
                limit: Some(3),
                ..stage.ask(&format!("key-{racer}"), "greedy")
            };
            let authority = stage.authority.clone();
            tokio::spawn(async move { authority.acquire(request).await })
        })
        .collect();
    let mut granted = 0;
    for racer in racers {
        let answer = racer.await.expect("a racer does not panic");
        match answer.expect("a racer is answered") {
            Acquired::Granted { .. } => granted += 1,
            Acquired::Refused(refusal) => assert_eq!(refusal.cause, Cause::Limit { limit: 3 }),
        }
    }
    assert_eq!(granted, 3, "as many as the limit, no more");
}

/// A grant is what was asked for.
pub async fn l2_a_free_key_is_granted_as_asked(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let labels = Labels::new(
        [
            ("tenant".into(), "acme".into()),
            ("site".into(), "north".into()),
        ]
        .into(),
    )
    .expect("well-formed labels");
    let before = stage.authority.now().await.expect("the time is answered");
    let request = Acquire {
        labels: labels.clone(),
        release_on_death: true,
        ..stage.ask("a", "ann")
    };
    let answer = stage.acquire(request).await;
    let after = stage.authority.now().await.expect("the time is answered");
    let Acquired::Granted { leases, fresh } = answer else {
        panic!("a free key is granted, not {answer:?}");
    };
    assert!(fresh, "a new grant is fresh");
    let lease = &leases[0];
    assert_eq!(lease.key, stage.key("a"));
    assert_eq!(lease.holder, stage.holder("ann"));
    assert_eq!(lease.ttl, stage.long());
    assert_eq!(lease.status, Status::Active);
    assert_eq!(lease.labels, labels);
    assert!(lease.release_on_death);
    assert!(lease.renewed_at.is_none() && lease.stats.is_none() && lease.handoff.is_none());
    assert!(before <= lease.acquired_at && lease.acquired_at <= after);
    assert_eq!(
        lease.expires_at,
        lease.acquired_at.plus(lease.ttl.millis()),
        "the ttl counts from the grant"
    );
    assert_eq!(stage.live("a").await.as_ref(), Some(lease));
}

/// Asking again is a refresh.
pub async fn l2_the_same_holder_is_granted_again(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let first = stage.take("a", "ann").await;
    stage.pass(20).await;
    let answer = stage.acquire(stage.ask("a", "ann")).await;
    let Acquired::Granted { leases, fresh } = answer else {
        panic!("the holder itself is granted again, not {answer:?}");
    };
    assert!(!fresh, "nothing new was granted");
    assert_eq!(leases[0].token, first.token, "same token");
    assert_eq!(leases[0].id, first.id, "same lease");
    assert_eq!(leases[0].acquired_at, first.acquired_at);
    assert!(
        leases[0].expires_at >= first.expires_at.plus(20),
        "ttl refreshed"
    );
    assert_eq!(stage.story("a").await, [EventKind::LeaseAcquired]);
}

/// The loser learns all it may.
pub async fn l2_a_refusal_names_holder_token_and_time_left(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let labels =
        Labels::new([("tenant".into(), "acme".into())].into()).expect("well-formed labels");
    let request = Acquire {
        labels: labels.clone(),
        ..stage.ask("a", "ann")
    };
    let lease = stage.grant(request).await;
    stage.pass(100).await;
    let refusal = stage.refuse(stage.ask("a", "bob")).await;
    assert_eq!(refusal.key, stage.key("a"));
    let Cause::Held {
        holder,
        token,
        left_ms,
        labels: shown,
    } = refusal.cause
    else {
        panic!("somebody has it, so not {:?}", refusal.cause);
    };
    assert_eq!((holder, token, shown), (lease.holder, lease.token, labels));
    assert!(left_ms < lease.ttl.millis(), "time has passed");
    stage.assert_about("time left", left_ms, lease.ttl.millis() - 100);
}

/// Asking in vain leaves no trace.
pub async fn l2_a_refusal_changes_nothing(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    stage.refuse(stage.ask("a", "bob")).await;
    assert_eq!(stage.live("a").await, Some(lease.clone()));
    assert!(stage.renew(&lease).await.is_ok(), "its holder keeps it");
    assert_eq!(stage.story("a").await, [EventKind::LeaseAcquired]);
}

/// Two processes with one configured name are two holders.
pub async fn l2_another_incarnation_is_refused(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    let second = Acquire {
        holder: stage.incarnation("ann", "2"),
        ..stage.ask("a", "ann")
    };
    let (holder, token) = stage.refuse_held(second).await;
    assert_eq!((holder, token), (lease.holder, lease.token));
}

/// Names are not bound to tenants: a namesake in another tenant is somebody else, whichever of the two
/// has a tenant at all.
pub async fn l2_a_namesake_in_another_tenant_is_refused(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let of = |id: &str, tenant: Option<&str>| {
        let labels = tenant.map(|tenant| (lease::TENANT.to_owned(), tenant.to_owned()));
        Acquire {
            labels: Labels::new(labels.into_iter().collect()).expect("well-formed labels"),
            ..stage.ask(id, "ann")
        }
    };
    for (id, own, other) in [
        ("a", Some("north"), Some("south")),
        ("b", Some("north"), None),
        ("c", None, Some("south")),
    ] {
        let lease = stage.grant(of(id, own)).await;
        let (holder, token) = stage.refuse_held(of(id, other)).await;
        assert_eq!((&holder, token), (&lease.holder, lease.token), "{id}");
        let again = stage.grant(of(id, own)).await;
        assert_eq!((again.id, again.token), (lease.id, lease.token), "{id}");
    }
}

/// What lapsed is free, also for its former holder: with a new token.
pub async fn l2_a_lapsed_key_is_granted_anew(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let first = stage.take_short("a", "ann").await;
    let own = stage.take_short("b", "ann").await;
    stage.lapse().await;
    let second = stage.take("a", "bob").await;
    assert!(second.token > first.token);
    let answer = stage.acquire(stage.ask("b", "ann")).await;
    let Acquired::Granted { leases, fresh } = answer else {
        panic!("a lapsed key is free, not {answer:?}");
    };
    assert!(fresh && leases[0].token > own.token && leases[0].id != own.id);
}

/// Release, expiry, revocation and force: the next token is always larger.
pub async fn l3_tokens_grow_over_every_end(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let mut tokens = Vec::new();
    let lease = stage.take("a", "ann").await;
    tokens.push(lease.token);
    assert!(stage.release(&lease).await);
    let lease = stage.take("a", "ann").await;
    tokens.push(lease.token);
    assert!(stage.revoke(&lease, "test").await.is_some());
    let lease = stage.take_short("a", "ann").await;
    tokens.push(lease.token);
    stage.lapse().await;
    let lease = stage.take("a", "ann").await;
    tokens.push(lease.token);
    let forced = Acquire {
        force: Some("test".into()),
        ..stage.ask("a", "bob")
    };
    tokens.push(stage.grant(forced).await.token);
    for pair in tokens.windows(2) {
        assert!(pair[0] < pair[1], "tokens only grow: {tokens:?}");
    }
}

/// A store that lost its data still hands out larger tokens, because they follow the clock.
pub async fn l3_tokens_follow_the_clock_and_stay_below_two_to_53(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    assert!(lease.token.get() >= lease.acquired_at.get());
    assert!(lease.token <= Token::MAX);
    let renewed = stage.renew(&lease).await.expect("a live lease is renewed");
    assert_eq!(renewed.token, lease.token, "renewals never change a token");
    stage.release(&lease).await;
    stage.pass(50).await;
    let next = stage.take("a", "ann").await;
    assert!(next.token.get() >= next.acquired_at.get());
}

/// One key in the way, and none is granted.
pub async fn l4_all_or_nothing(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let held = stage.take("b", "ann").await;
    let refusal = stage.refuse(stage.ask_all(["a", "b", "c"], "bob")).await;
    assert_eq!(refusal.key, stage.key("b"), "the key in the way is named");
    assert_eq!(
        super::stage::held(refusal),
        (held.holder.clone(), held.token)
    );
    assert_eq!(stage.live("a").await, None);
    assert_eq!(stage.live("c").await, None);
    stage.release(&held).await;
    let leases = stage.grant_all(stage.ask_all(["a", "b", "c"], "bob")).await;
    assert_eq!(leases.len(), 3);
}

/// The answer has the order of the question.
pub async fn l4_answers_in_the_order_of_the_keys(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let leases = stage.grant_all(stage.ask_all(["c", "a", "b"], "ann")).await;
    let order: Vec<_> = leases.iter().map(|lease| lease.key.clone()).collect();
    assert_eq!(order, stage.keys(["c", "a", "b"]));
    let acquired: Vec<_> = stage
        .events()
        .await
        .into_iter()
        .map(|event| event.key)
        .collect();
    assert_eq!(acquired, order, "and so have the events");
}

/// Own keys are refreshed beside new ones.
pub async fn l4_own_keys_are_kept_among_new_ones(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let own = stage.take("a", "ann").await;
    let answer = stage.acquire(stage.ask_all(["a", "b"], "ann")).await;
    let Acquired::Granted { leases, fresh } = answer else {
        panic!("own and free keys are granted, not {answer:?}");
    };
    assert!(fresh, "one of them is new");
    assert_eq!((leases[0].id, leases[0].token), (own.id, own.token));
    let again = stage.acquire(stage.ask_all(["a", "b"], "ann")).await;
    assert!(matches!(again, Acquired::Granted { fresh: false, .. }));
}

/// Two sides ask for the same keys in opposite orders, over and over.
pub async fn l4_crossing_batches_never_split(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    for round in 0..5 {
        let (x, y) = (format!("x{round}"), format!("y{round}"));
        let racers: Vec<_> = (0..6)
            .map(|racer| {
                let ids = if racer % 2 == 0 { [&x, &y] } else { [&y, &x] };
                let keys = ids.iter().map(|id| stage.key(id)).collect();
                let holder = stage.holder(&format!("racer-{racer}"));
                let request = Acquire::of(Want::All(keys), holder, stage.long());
                let authority = stage.authority.clone();
                tokio::spawn(async move { authority.acquire(request).await })
            })
            .collect();
        let mut winners = BTreeSet::new();
        for racer in racers {
            let answer = racer.await.expect("a racer does not panic");
            if let Acquired::Granted { leases, .. } = answer.expect("a racer is answered") {
                winners.extend(leases.into_iter().map(|lease| lease.holder));
            }
        }
        assert_eq!(winners.len(), 1, "one racer has both keys");
        for id in [&x, &y] {
            let owner = stage.owner(id).await.map(|(holder, _)| holder);
            assert_eq!(owner.as_ref(), winners.first());
        }
    }
}

/// An administrator takes a key from a live holder.
pub async fn force_takes_a_live_key(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let old = stage.take("a", "ann").await;
    let request = Acquire {
        force: Some("maintenance".into()),
        ..stage.ask("a", "bob")
    };
    let new = stage.grant(request).await;
    assert!(new.token > old.token);
    assert_eq!(stage.renew(&old).await, Err(Loss::Stolen));
    assert!(!stage.release(&old).await, "the old holder has no say");
    assert_eq!(stage.live("a").await, Some(new));
}

/// A holder's capacity counts all that run under its name.
pub async fn limits_count_every_incarnation(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let limited = |id: &str, incarnation: &str| Acquire {
        limit: Some(2),
        holder: stage.incarnation("ann", incarnation),
        ..stage.ask(id, "ann")
    };
    let first = stage.grant(limited("a", "1")).await;
    stage.grant(limited("b", "2")).await;
    let refusal = stage.refuse(limited("c", "3")).await;
    assert_eq!(refusal.cause, Cause::Limit { limit: 2 });
    assert_eq!(refusal.key, stage.key("c"));
    assert_eq!(stage.live("c").await, None);
    // What it has already it may have again, and other kinds and names do not count.
    stage.grant(limited("a", "1")).await;
    let other = Acquire {
        want: Want::one(stage.other_kind("x", "a")),
        ..limited("-", "1")
    };
    stage.grant(other).await;
    let other = Acquire {
        limit: Some(1),
        ..stage.ask("d", "bob")
    };
    stage.grant(other).await;
    assert!(stage.release(&first).await);
    stage.grant(limited("c", "3")).await;
}

/// A namesake in another tenant is somebody else, and what it has does not count.
pub async fn limits_count_one_tenant(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let limited = |id: &str, tenant: Option<&str>| {
        let labels = tenant.map(|tenant| (lease::TENANT.to_owned(), tenant.to_owned()));
        Acquire {
            limit: Some(1),
            labels: Labels::new(labels.into_iter().collect()).expect("a label"),
            ..stage.ask(id, "ann")
        }
    };
    stage.grant(limited("a", Some("one"))).await;
    stage.grant(limited("b", Some("two"))).await;
    stage.grant(limited("c", None)).await;
    for tenant in [Some("one"), Some("two"), None] {
        let refusal = stage.refuse(limited("d", tenant)).await;
        assert_eq!(refusal.cause, Cause::Limit { limit: 1 }, "{tenant:?}");
    }
}

/// A wrong request is rejected, and nothing happens.
pub async fn wrong_requests_have_no_effect(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let wrong = [
        stage.ask_all([], "ann"),
        stage.ask_all(["a", "a"], "ann"),
        Acquire {
            wait_ms: Acquire::MAX_WAIT_MS + 1,
            ..stage.ask("a", "ann")
        },
        Acquire {
            force: Some("".into()),
            ..stage.ask("a", "ann")
        },
        Acquire {
            force: Some("because".into()),
            ..stage.ask_any(["a", "b"], "ann")
        },
    ];
    for request in wrong {
        let answer = stage.authority.acquire(request.clone()).await;
        assert!(
            matches!(answer, Err(Error::Invalid(_))),
            "{request:?} is wrong, and the answer is {answer:?}"
        );
    }
    assert!(stage.events().await.is_empty());
    assert_eq!(stage.live("a").await, None);
}

/// A key that was forgotten is never granted with a smaller token than it had: the floor keeps the
/// largest (L3). For harnesses whose time stands still, so that tokens run ahead of it, and that forget
/// every idle key when time passes.
pub async fn l3_a_forgotten_key_never_sees_a_smaller_token(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    // Alone and together with another command's way: both must know the floor.
    for limit in [None, Some(1000)] {
        let ask = |id: &str| Acquire {
            limit,
            ..stage.ask(id, "ann")
        };
        let mut last = Token::ZERO;
        for _ in 0..5 {
            let lease = stage.grant(ask("a")).await;
            assert!(lease.token > last);
            last = lease.token;
            assert!(stage.release(&lease).await);
        }
        stage.pass(0).await;
        let verdicts = stage.authority.check(vec![(stage.key("a"), last)]).await;
        let forgotten = verdicts.expect("answered");
        assert_eq!(forgotten, [Verdict::Unknown], "the key is forgotten");
        for id in ["a", "another"] {
            let lease = stage.grant(ask(id)).await;
            assert!(lease.token > last, "{id}: {} after {last}", lease.token);
            assert!(stage.release(&lease).await);
        }
    }
}
