//! Losing: L2, L7, L13, L17, and who is the same holder.

use std::sync::Arc;

use lease::{Acquire, Cause, OnOutage, Revoke, Want};
use leasehold_client::{
    Loss, State,
    keeper::{Error, Options},
};

use crate::{
    faulty::Network,
    world::{PATIENCE, World, eventually, key, quiet, ttl, turn},
};

fn revoke(guard: &leasehold_client::Guard) -> Revoke {
    Revoke {
        id: guard.lease().id,
        reason: "maintenance".into(),
    }
}

fn revoked() -> Loss {
    Loss::Revoked {
        why: "maintenance".into(),
    }
}

#[tokio::test]
async fn l7_a_definite_loss_ends_the_lease_at_the_next_renewal() {
    let world = World::new();
    let (keeper, _network) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    let lost = tokio::spawn(guard.lost());
    world.store.revoke(revoke(&guard)).await.unwrap().unwrap();
    world.clock.advance(10_000);
    assert_eq!(lost.await.unwrap(), revoked());
    assert!(!guard.is_owned(), "long before the deadline");
    assert_eq!(*guard.watch().borrow(), State::Over(revoked()));
    assert_eq!(keeper.held(), 0);
}

#[tokio::test]
async fn l17_a_revocation_is_known_at_once_where_the_stream_is_watched() {
    let world = World::new();
    let options = Options {
        watch: true,
        ..quiet()
    };
    let (keeper, network) = world.keeper_with("a", options);
    let take = async |id: String| keeper.acquire_one(key(&id), ttl(30_000)).await.unwrap();
    // The stream is opened in the background: time stands still, so only it can bring a loss. It is open
    // when the first one came.
    let mut early = 0;
    eventually("the stream is open", async || {
        early += 1;
        let guard = take(format!("early-{early}")).await;
        world.store.revoke(revoke(&guard)).await.unwrap().unwrap();
        turn().await;
        !guard.is_owned()
    })
    .await;
    // From then on every loss comes, and none that did not happen.
    for n in 0..50 {
        let (revoked_one, kept) = (take(format!("{n}")).await, take(format!("kept-{n}")).await);
        let lost = revoked_one.lost();
        let revocation = revoke(&revoked_one);
        world.store.revoke(revocation).await.unwrap().unwrap();
        let why = tokio::time::timeout(PATIENCE, lost).await;
        assert_eq!(why.expect("the stream brings it"), revoked(), "number {n}");
        assert!(!revoked_one.is_owned() && kept.is_owned(), "number {n}");
    }
    assert_eq!(network.renewals(), 0);
}

#[tokio::test]
async fn l13_a_definite_answer_stops_at_once_whatever_the_policy() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let grace = lease::Grace::from_millis(60_000).unwrap();
    let mut request = keeper.request(key("x"), ttl(30_000));
    request.on_outage = OnOutage::Hold(grace);
    let guard = keeper.acquire(request).await.unwrap().pop().unwrap();
    network.set(Network::Refused);
    world.advance(40_000, 1_000).await;
    assert_eq!(guard.standing(), lease::Standing::Grace);
    world.store.revoke(revoke(&guard)).await.unwrap().unwrap();
    network.set(Network::Fine);
    world.clock.advance(3_000);
    assert_eq!(guard.lost().await, revoked());
}

#[tokio::test]
async fn two_processes_with_one_name_are_two_holders() {
    let world = World::new();
    let (first, network) = world.keeper("same");
    let (second, _) = world.keeper("same");
    let guard = first.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    let refused = second.acquire_one(key("x"), ttl(30_000)).await.unwrap_err();
    let Error::Refused(refusal) = refused else {
        panic!("{refused}");
    };
    let Cause::Held { holder, token, .. } = refusal.cause else {
        panic!("{refusal:?}");
    };
    assert_eq!((&holder, token), (first.holder(), guard.token()));
    // Nor does the second one renew what the first one has, when that one cannot.
    let other = second.acquire_one(key("y"), ttl(30_000)).await.unwrap();
    network.set(Network::Refused);
    world.advance(31_000, 500).await;
    assert!(!guard.is_owned());
    assert_eq!(guard.lost().await, Loss::Deadline);
    eventually("the first one's lease is over", async || {
        world.is_free(&key("x")).await
    })
    .await;
    assert!(other.is_owned(), "its own it keeps");
}

#[tokio::test]
async fn two_tasks_of_one_process_exclude_each_other_too() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    let refused = keeper.acquire_one(key("x"), ttl(30_000)).await;
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    assert_eq!(
        network.acquires.load(std::sync::atomic::Ordering::SeqCst),
        1
    );

    // One that waits gets it when the other lets go, with a larger token.
    let mut request = keeper.request(key("x"), ttl(30_000));
    request.wait_ms = 5_000;
    let waiting = tokio::spawn({
        let keeper = keeper.clone();
        async move { keeper.acquire(request).await }
    });
    turn().await;
    let token = guard.token();
    drop(guard);
    let next = waiting.await.unwrap().unwrap().pop().unwrap();
    assert!(next.token() > token && next.is_owned());
}

#[tokio::test]
async fn l7_a_lapsed_lease_is_never_revived_by_its_keeper() {
    let world = World::new();
    let (keeper, network) = world.keeper("a");
    let guard = keeper.acquire_one(key("x"), ttl(3_000)).await.unwrap();
    network.set(Network::Refused);
    world.clock.advance(2_700);
    assert!(!guard.is_owned());
    network.set(Network::Fine);
    world.advance(200, 50).await;
    assert!(!guard.is_owned(), "what is over stays over");
    assert_eq!(guard.lost().await, Loss::Deadline);
}

#[tokio::test]
async fn l6_a_grant_after_a_long_wait_is_confirmed_before_it_is_used() {
    let world = World::new();
    let (first, _) = world.keeper("first");
    let (second, _) = world.keeper("second");
    let guard = first.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    let mut request = second.request(key("x"), ttl(3_000));
    request.wait_ms = 60_000;
    let waiting = tokio::spawn({
        let second = second.clone();
        async move { second.acquire(request).await }
    });
    eventually("it waits", async || {
        let pending = lease::LeaseQuery {
            status: Some(lease::Status::Pending),
            limit: 10,
            ..Default::default()
        };
        !world.store.leases(pending).await.unwrap().items.is_empty()
    })
    .await;
    world.advance(20_000, 1_000).await;
    let token = guard.token();
    assert!(guard.release().await.unwrap());
    let next = waiting.await.unwrap().unwrap().pop().unwrap();
    assert!(next.is_owned() && next.token() > token);
    assert_eq!(next.deadline().get(), 20_000 + 2_700, "a full ttl from now");
}

#[tokio::test]
async fn l5_two_slots_of_a_pool_are_two_guards() {
    let world = World::new();
    let (keeper, _) = world.keeper("a");
    let slots = vec![key("1"), key("2")];
    let request = Acquire::of(Want::Any(slots), keeper.holder().clone(), ttl(30_000));
    let first = keeper.acquire(request.clone()).await.unwrap();
    let second = keeper.acquire(request.clone()).await.unwrap();
    assert_ne!(first[0].key(), second[0].key());
    assert!(matches!(
        keeper.acquire(request).await,
        Err(Error::Refused(_))
    ));
}

#[tokio::test]
async fn a_lease_taken_by_force_is_lost() {
    let world = World::new();
    let (first, _) = world.keeper("first");
    let (second, _) = world.keeper("second");
    let guard = first.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    let mut request = second.request(key("x"), ttl(30_000));
    request.force = Some(Arc::from("moved"));
    let taken = second.acquire(request).await.unwrap();
    world.clock.advance(10_000);
    assert_eq!(guard.lost().await, Loss::Stolen);
    drop(guard);
    turn().await;
    assert!(taken[0].is_owned(), "the old guard released nothing");
    assert_eq!(
        world.lease(&key("x")).await.unwrap().token,
        taken[0].token()
    );
}
