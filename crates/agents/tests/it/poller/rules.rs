//! What the contract says about assignment, the same on every backend.

use lease::{Acquire, Holder, Key, Ttl, polling::POLL};
use leasehold_agents::poller::{LeaseState, Options};
use leasehold_testkit::wait;

use crate::poller::fleet::{Kind, PATIENCE, TTL_MS, Watchdog, backend, until_loads};

async fn one_instance_owns_everything(kind: Kind) {
    let backend = backend(kind).await;
    backend.put_targets(12).await;
    let fleet = backend.start_many(1).await;
    until_loads(&fleet, &[12]).await;
    let only = &fleet[0];
    assert_eq!(only.live_nodes(), [only.instance_id().to_string()]);
    let permit = only.permit("session-1").expect("owned for certain");
    assert!(permit.is_current() && permit.left().as_millis() > 0);
    assert!(only.permit("session-1").is_none(), "one poll at a time");
    drop(permit);
    assert!(only.permit("session-1").is_some());
    only.stop().await.unwrap();
    assert!(only.permit("session-2").is_none(), "stopped");
}

async fn five_start_at_once_on_ten_targets(kind: Kind) {
    let backend = backend(kind).await;
    backend.put_targets(10).await;
    let fleet = backend.start_many(5).await;
    let watchdog = Watchdog::over(&fleet);
    until_loads(&fleet, &[2, 2, 2, 2, 2]).await;
    watchdog.finish().await;
}

async fn three_instances_share_nine_targets_evenly(kind: Kind) {
    let backend = backend(kind).await;
    backend.put_targets(9).await;
    let fleet = backend.start_many(3).await;
    let watchdog = Watchdog::over(&fleet);
    until_loads(&fleet, &[3, 3, 3]).await;
    for instance in &fleet {
        for target in instance.owned() {
            let me = instance.instance_id().to_string();
            assert_eq!(instance.preferred_owner(&target).as_ref(), Some(&me));
            let info = instance.lease_info(&target);
            assert_eq!((info.state, info.owner), (LeaseState::Owned, Some(me)));
        }
    }
    watchdog.finish().await;
}

async fn a_third_joins_two_with_ten(kind: Kind) {
    let backend = backend(kind).await;
    backend.put_targets(10).await;
    let mut fleet = backend.start_many(2).await;
    until_loads(&fleet, &[5, 5]).await;
    let tokens = |fleet: &[leasehold_agents::poller::Coordinator]| {
        let all = fleet.iter().flat_map(|it| {
            let owned = it.owned();
            owned.into_iter().map(move |target| {
                let token = it.lease_info(&target).token.map_or(0, lease::Token::get);
                (target, token)
            })
        });
        all.collect::<std::collections::BTreeMap<_, _>>()
    };
    let before = tokens(&fleet);
    fleet.push(backend.start(Options::with_ttl_ms(TTL_MS)).await);
    let watchdog = Watchdog::over(&fleet);
    until_loads(&fleet, &[3, 3, 4]).await;
    let newcomer = fleet[2].owned().len();
    assert!((3..=4).contains(&newcomer), "it has {newcomer}");
    for (target, token) in tokens(&fleet) {
        assert!(token >= before[&target], "{target}: tokens went back");
        let moved = fleet[2].is_owned(&target);
        assert!(
            !moved || token > before[&target],
            "{target}: moved without a new token"
        );
    }
    watchdog.finish().await;
}

async fn paused_and_deleted_targets_are_released_at_once(kind: Kind) {
    let backend = backend(kind).await;
    backend.put_targets(4).await;
    let fleet = backend.start_many(2).await;
    until_loads(&fleet, &[2, 2]).await;
    let paused = r#"{"id":"session-1","isPaused":true}"#.to_owned();
    let changes = [("session-1", Some(paused)), ("session-2", None)];
    backend
        .put(changes.map(|(id, value)| (id.to_owned(), value)))
        .await;
    wait::until(PATIENCE, "both are released", async || {
        let key = |id| Key::new(POLL, id).unwrap();
        let first = backend.authority.lease(key("session-1")).await.unwrap();
        let second = backend.authority.lease(key("session-2")).await.unwrap();
        first.is_none() && second.is_none()
    })
    .await;
    until_loads(&fleet, &[1, 1]).await;
    let again = r#"{"id":"session-1","isPaused":false}"#.to_owned();
    backend.put([("session-1".to_owned(), Some(again))]).await;
    until_loads(&fleet, &[1, 2]).await;
}

/// The store is written behind everybody's back, as foreign programs do it: who has not looked yet does
/// not take over what was let go because it was paused or removed.
async fn what_was_paused_is_not_picked_up_by_those_who_have_not_looked(kind: Kind) {
    let backend = backend(kind).await;
    backend.put_targets(6).await;
    // Only the first looks often enough to notice by itself.
    let slow = Options {
        discovery_ms: 600_000,
        ..Options::with_ttl_ms(TTL_MS)
    };
    let fleet = [
        backend.start_deaf_to_targets(slow).await,
        backend.start(Options::with_ttl_ms(TTL_MS)).await,
    ];
    until_loads(&fleet, &[3, 3]).await;
    let (other, owner) = (&fleet[0], &fleet[1]);
    let owned = owner.owned();
    let paused = |id: &String| {
        let document = format!(r#"{{"id":"{id}","isPaused":true}}"#);
        (id.clone(), Some(document))
    };
    let mut changes: Vec<_> = owned[..2].iter().map(paused).collect();
    changes.push((owned[2].clone(), None));
    backend.put(changes).await;
    wait::until(PATIENCE, "they are let go", async || {
        owner.owned().is_empty()
    })
    .await;
    // Time enough for anybody to take them.
    let until = tokio::time::sleep(std::time::Duration::from_millis(1_500));
    tokio::pin!(until);
    loop {
        // On a busy machine it may lose one of its own for a moment: that is not what this is about.
        let picked_up = other.owned().into_iter().find(|it| owned.contains(it));
        assert_eq!(picked_up, None);
        tokio::select! {
            () = &mut until => break,
            () = tokio::time::sleep(std::time::Duration::from_millis(5)) => {}
        }
    }
}

async fn a_lease_that_another_program_holds_is_respected(kind: Kind) {
    let backend = backend(kind).await;
    let holder = Holder::new("somebody-else", "1").unwrap();
    let key = Key::new(POLL, "session-1").unwrap();
    // Longer than a busy machine needs until the other target is taken.
    let ttl = Ttl::from_millis(5_000).unwrap();
    let grant = Acquire::one(key.clone(), holder, ttl);
    backend.authority.acquire(grant).await.unwrap();
    backend.put_targets(2).await;
    let fleet = backend.start_many(1).await;
    until_loads(&fleet, &[1]).await;
    assert_eq!(fleet[0].try_acquire("session-1").await, Ok(false));
    let info = fleet[0].lease_info("session-1");
    assert_eq!(info.state, LeaseState::Other);
    assert_eq!(info.owner.as_deref(), Some("somebody-else"));
    // It lapses, and only then it is taken.
    until_loads(&fleet, &[2]).await;
}

async fn capacity_and_weight_bound_what_an_instance_takes(kind: Kind) {
    let backend = backend(kind).await;
    backend.put_targets(9).await;
    let limited = Options {
        capacity: Some(2),
        ..Options::with_ttl_ms(TTL_MS)
    };
    let heavy = Options {
        weight: 2,
        display_name: Some("the big one".to_owned()),
        ..Options::with_ttl_ms(TTL_MS)
    };
    let fleet = [backend.start(limited).await, backend.start(heavy).await];
    until_loads(&fleet, &[2, 7]).await;
    assert_eq!(fleet[0].owned().len(), 2);
    // It has all that it may have, perhaps before it saw the other.
    wait::until(PATIENCE, "it knows the other by name", async || {
        let members = fleet[0].members().into_iter();
        members
            .filter_map(|it| it.name)
            .eq(["the big one".to_owned()])
    })
    .await;
}

async fn release_is_idempotent_and_leaves_the_target_to_others(kind: Kind) {
    let backend = backend(kind).await;
    backend.put_targets(2).await;
    let fleet = backend.start_many(1).await;
    until_loads(&fleet, &[2]).await;
    let only = &fleet[0];
    let token = only.lease_info("session-1").token;
    only.release("session-1").await.unwrap();
    assert!(!only.is_owned("session-1"));
    only.release("session-1").await.unwrap();
    only.release("no-such-target").await.unwrap();
    assert_eq!(only.try_acquire("session-1").await, Ok(true));
    assert_eq!(only.try_acquire("session-1").await, Ok(true));
    assert!(only.lease_info("session-1").token > token);
}

on_every_backend!(
    one_instance_owns_everything,
    five_start_at_once_on_ten_targets,
    three_instances_share_nine_targets_evenly,
    a_third_joins_two_with_ten,
    paused_and_deleted_targets_are_released_at_once,
    a_lease_that_another_program_holds_is_respected,
    capacity_and_weight_bound_what_an_instance_takes,
    release_is_idempotent_and_leaves_the_target_to_others,
    what_was_paused_is_not_picked_up_by_those_who_have_not_looked,
);
