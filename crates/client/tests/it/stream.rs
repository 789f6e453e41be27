//! The holder's stream against a real server.

use std::sync::Arc;

use lease::{Authority, Renew, Renewals, Revoke};
use leasehold_client::{
    HolderStream, Keeper, Lost, keeper,
    stream::{Link, Streamed},
};

use crate::{
    served::{Served, up},
    world::{PATIENCE, World, eventually, key, quiet, ttl},
};

#[tokio::test]
async fn l17_a_loss_comes_down_at_once() {
    let world = World::new();
    let served = Served::start(&world).await;
    let holder = leasehold_client::new_holder("a").unwrap();
    let stream = HolderStream::start(served.client(), holder.clone());
    up(&stream).await;
    let authority = Streamed::new(served.remote().await, stream.clone());
    let options = keeper::Options {
        losses: Some(Arc::new(stream.clone())),
        ..quiet()
    };
    let clock = Arc::new(world.clock.clone());
    let keeper = Keeper::start(Arc::new(authority), holder, clock, options);
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    let revoke = Revoke {
        id: guard.lease().id,
        reason: "enough".into(),
    };
    world.store.revoke(revoke).await.unwrap();
    // Time stands still: no renewal can bring it.
    let lost = tokio::time::timeout(PATIENCE, guard.lost()).await.unwrap();
    let why = "enough".into();
    assert_eq!(lost, Lost::Revoked { why });
}

#[tokio::test]
async fn a_keeper_over_a_server_opens_the_stream_by_itself() {
    let world = World::new();
    let served = Served::start(&world).await;
    let holder = leasehold_client::new_holder("a").unwrap();
    let remote = served.remote().await;
    let start = || {
        let clock = Arc::new(world.clock.clone());
        Keeper::start(Arc::new(remote.clone()), holder.clone(), clock, quiet())
    };
    // Both are the same holder, and neither takes the other's place.
    let (keeper, second) = (start(), start());
    let stream = remote.stream(&holder);
    up(&stream).await;
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    let other = second.acquire_one(key("y"), ttl(30_000)).await.unwrap();
    let revoke = Revoke {
        id: guard.lease().id,
        reason: "enough".into(),
    };
    world.store.revoke(revoke).await.unwrap();
    // Nothing is watched and time stands still: only the stream can bring it.
    let lost = tokio::time::timeout(PATIENCE, guard.lost()).await.unwrap();
    let why = "enough".into();
    assert_eq!(lost, Lost::Revoked { why });
    assert!(other.is_owned() && stream.is_up());
    world.clock.advance(10_000);
    eventually("renewed", async || other.deadline().get() == 38_000).await;

    // When nobody keeps it any more, it is closed, and another one can be opened.
    let mut link = stream.link();
    drop((keeper, second, guard, other, stream));
    let closed = tokio::time::timeout(PATIENCE, link.wait_for(|link| *link == Link::Down));
    assert!(closed.await.is_ok());
    up(&remote.stream(&holder)).await;
}

#[tokio::test]
async fn a_keeper_over_a_server_without_streams_uses_plain_calls() {
    let world = World::new();
    let served = Served::without_room_for_holder_streams(&world).await;
    let holder = leasehold_client::new_holder("a").unwrap();
    let remote = served.remote().await;
    let clock = Arc::new(world.clock.clone());
    let keeper = Keeper::start(Arc::new(remote.clone()), holder.clone(), clock, quiet());
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    world.clock.advance(10_000);
    eventually("renewed", async || guard.deadline().get() == 38_000).await;
    let stream = remote.stream(&holder);
    eventually("refused", async || stream.last_failure().is_some()).await;
    assert!(!stream.is_up());
}

#[tokio::test]
async fn l9_renewals_take_the_stream_and_plain_calls_without_it() {
    let world = World::new();
    let served = Served::start(&world).await;
    let holder = leasehold_client::new_holder("a").unwrap();
    let stream = HolderStream::start(served.client(), holder.clone());
    up(&stream).await;
    let authority = Streamed::new(served.remote().await, stream.clone());
    let clock = Arc::new(world.clock.clone());
    let keeper = Keeper::start(Arc::new(authority.clone()), holder.clone(), clock, quiet());
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    world.clock.advance(10_000);
    eventually("renewed", async || guard.deadline().get() == 38_000).await;

    let all = Renew {
        holder,
        leases: Renewals::All,
    };
    let over_stream = stream.renew(&all).await.unwrap();
    let kept = over_stream[0].outcome.as_ref().unwrap();
    assert_eq!(kept.token, guard.token());
    stream.clone().close().await;
    assert_eq!(*stream.link().borrow(), Link::Down);
    assert!(stream.renew(&all).await.is_err());
    assert_eq!(authority.renew(all).await.unwrap().len(), 1);
    assert!(guard.is_owned());
}

#[tokio::test]
async fn l15_a_goodbye_is_no_death_and_a_cut_is_one() {
    let world = World::new();
    let served = Served::start(&world).await;
    let (staying, _) = world.keeper("staying");
    let mut request = staying.request(key("kept"), ttl(30_000));
    request.release_on_death = true;
    let kept = staying.acquire(request).await.unwrap();
    let stream = HolderStream::start(served.client(), staying.holder().clone());
    up(&stream).await;
    stream.close().await;

    let (dying, _) = world.keeper("dying");
    let mut request = dying.request(key("dead"), ttl(30_000));
    request.release_on_death = true;
    let dead = dying.acquire(request).await.unwrap();
    // A runtime that ends takes its sockets along, as the end of a process does.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let client = served.client();
    let holder = dying.holder().clone();
    let stream = runtime
        .spawn(async move { HolderStream::start(client, holder) })
        .await
        .unwrap();
    up(&stream).await;
    runtime.shutdown_background();
    eventually("released", async || world.is_free(dead[0].key()).await).await;
    assert!(!world.is_free(kept[0].key()).await, "it said goodbye");
}

#[tokio::test]
async fn the_stream_comes_back_by_itself() {
    let world = World::new();
    let served = Served::start(&world).await;
    let address = served.address;
    let holder = leasehold_client::new_holder("a").unwrap();
    let stream = HolderStream::start(served.client(), holder);
    up(&stream).await;
    served.stop().await;
    let mut link = stream.link();
    tokio::time::timeout(PATIENCE, link.wait_for(|link| *link == Link::Down))
        .await
        .unwrap()
        .unwrap();
    let _again = Served::at(&world, address).await;
    up(&stream).await;
}
