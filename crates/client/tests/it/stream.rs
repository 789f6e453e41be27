//! The holder's stream against a real server.

use std::{sync::Arc, time::Duration};

use lease::{
    Acquire, Acquired, Authority, Departure, HandoffState, HandoffStep, Holder, Lease, LeaseRef,
    Notice, Renew, Renewals, Revoke, Watching,
};
use leasehold_client::{HolderStream, Keeper, Loss, Remote, keeper, stream::Link};
use leasehold_testkit::Proxy;

use crate::{
    served::{Served, client, up},
    world::{PATIENCE, World, eventually, key, quiet, ttl},
};

#[tokio::test]
async fn l17_a_loss_comes_down_at_once() {
    let world = World::new();
    let served = Served::start(&world).await;
    let holder = leasehold_client::new_holder("a").unwrap();
    let stream = HolderStream::start(served.client(), holder.clone());
    up(&stream).await;
    let authority = served.remote().await;
    let options = keeper::Options {
        losses: Some(Arc::new(stream.clone())),
        stream: false,
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
    assert_eq!(lost, Loss::Revoked { why });
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
    assert_eq!(lost, Loss::Revoked { why });
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

/// Behind a proxy, with the stream of a holder open.
async fn proxied(served: &Served) -> (Proxy, Remote, Holder, HolderStream) {
    let proxy = Proxy::start(served.address).await;
    let remote = Remote::new(client(&format!("http://{}", proxy.addr())));
    let holder = leasehold_client::new_holder("a").unwrap();
    let stream = remote.stream(&holder);
    up(&stream).await;
    (proxy, remote, holder, stream)
}

fn granted(acquired: Acquired) -> Lease {
    match acquired {
        Acquired::Granted { mut leases, .. } => leases.pop().unwrap(),
        Acquired::Refused(refusal) => panic!("{refusal:?}"),
    }
}

#[tokio::test]
async fn what_a_holder_does_takes_the_stream_and_plain_calls_without_it() {
    let world = World::new();
    let served = Served::start(&world).await;
    let (proxy, remote, holder, stream) = proxied(&served).await;
    let next = leasehold_client::new_holder("next").unwrap();
    let mut connections = vec![1];
    for over_stream in [true, false] {
        if !over_stream {
            stream.clone().close().await;
            assert_eq!(*stream.link().borrow(), Link::Down);
        }
        let lease = granted(
            remote
                .acquire(Acquire::one(key("x"), holder.clone(), ttl(30_000)))
                .await
                .unwrap(),
        );
        let all = Renew {
            holder: holder.clone(),
            leases: Renewals::All,
        };
        let renewed = remote.renew(all).await.unwrap();
        assert_eq!(renewed[0].outcome.as_ref().unwrap().token, lease.token);
        let offer = HandoffStep::Offer {
            lease: LeaseRef::from(&lease),
            successor: next.clone(),
            prepare_ms: 1_000,
            drain_ms: 1_000,
            confirm_ms: 1_000,
        };
        let state = remote.handoff(offer).await.unwrap();
        assert!(matches!(state, HandoffState::Open(_)), "{state:?}");
        assert!(remote.release(LeaseRef::from(&lease)).await.unwrap());
        let one = Acquire::one(key("y"), holder.clone(), ttl(30_000));
        granted(remote.acquire(one).await.unwrap());
        let left = Departure::Left(holder.clone());
        assert_eq!(remote.depart(left).await.unwrap().len(), 1);
        connections.push(proxy.accepted());
    }
    // One connection did it all while the stream was up, and then another one was needed.
    assert_eq!(connections[1], 1);
    assert!(connections[2] > 1);
}

#[tokio::test]
async fn a_thousand_operations_are_in_flight() {
    let world = World::new();
    let served = Served::start(&world).await;
    let (proxy, remote, holder, _stream) = proxied(&served).await;
    let cycles = (0..1_000).map(|number| {
        let (remote, holder) = (remote.clone(), holder.clone());
        tokio::spawn(async move {
            let one = Acquire::one(key(&number.to_string()), holder, ttl(30_000));
            let lease = granted(remote.acquire(one).await.unwrap());
            remote.release(LeaseRef::from(&lease)).await.unwrap()
        })
    });
    for cycle in cycles.collect::<Vec<_>>() {
        assert!(cycle.await.unwrap());
    }
    assert_eq!(proxy.accepted(), 1);
}

/// The answer is lost with the connection. What may have been granted is asked for again, and is the
/// same lease; what cannot be repeated is unknown.
#[tokio::test]
async fn a_cut_in_the_middle_of_an_operation() {
    let world = World::new();
    let served = Served::start(&world).await;
    for operation in [
        "acquire",
        "wait",
        "pool",
        "named-pool",
        "release",
        "renew",
        "handoff",
    ] {
        let (proxy, remote, holder, stream) = proxied(&served).await;
        let one = Acquire::one(key(operation), holder.clone(), ttl(30_000));
        let held = granted(remote.acquire(one.clone()).await.unwrap());
        let blocker = leasehold_client::new_holder("blocker").unwrap();
        let taken = Acquire::one(key("taken"), blocker.clone(), ttl(30_000));
        let taken = granted(world.store.acquire(taken).await.unwrap());
        let mut waiting = Acquire::one(key("taken"), holder.clone(), ttl(30_000));
        waiting.wait_ms = 60_000;
        let pool = lease::Want::Any(vec![key("slot1"), key("slot2")]);
        let pool = Acquire::of(pool, holder.clone(), ttl(30_000));
        let mut named = pool.clone();
        named.labels = named.labels.with_request("r1").unwrap();
        let offer = HandoffStep::Offer {
            lease: LeaseRef::from(&held),
            successor: blocker,
            prepare_ms: 1_000,
            drain_ms: 1_000,
            confirm_ms: 1_000,
        };
        let renew = Renew {
            holder: holder.clone(),
            leases: Renewals::All,
        };
        proxy.blackhole();
        let reference = LeaseRef::from(&held);
        let call = tokio::spawn(async move {
            match operation {
                "acquire" => remote.acquire(one).await.map(|it| Some(granted(it))),
                "wait" => remote.acquire(waiting).await.map(|it| Some(granted(it))),
                "pool" => remote.acquire(pool).await.map(|it| Some(granted(it))),
                "named-pool" => remote.acquire(named).await.map(|it| Some(granted(it))),
                "release" => remote.release(reference).await.map(|_| None),
                "renew" => remote.renew(renew).await.map(|_| None),
                _ => remote.handoff(offer).await.map(|_| None),
            }
        });
        // It is on its way; that nothing arrives can only be waited for.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!call.is_finished(), "{operation}");
        proxy.cut();
        let mut link = stream.link();
        link.wait_for(|it| *it == Link::Down).await.unwrap();
        proxy.pass();
        if operation == "wait" {
            world.store.release(LeaseRef::from(&taken)).await.unwrap();
        }
        let outcome = tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap();
        match operation {
            "acquire" => assert_eq!(outcome.unwrap().unwrap().token, held.token),
            "wait" => {
                let lease = outcome.unwrap().unwrap();
                assert_eq!(world.lease(&key("taken")).await.unwrap().token, lease.token);
                world.store.release(LeaseRef::from(&lease)).await.unwrap();
            }
            // Asked twice, and granted once.
            "named-pool" => {
                let slot = outcome.unwrap().unwrap();
                let live = async |id: &str| world.lease(&key(id)).await;
                let own: Vec<_> = [live("slot1").await, live("slot2").await]
                    .into_iter()
                    .flatten()
                    .filter(|it| it.holder == holder)
                    .collect();
                assert_eq!(own, [slot]);
            }
            "handoff" => assert!(outcome.is_ok(), "{outcome:?}"),
            _ => {
                let error = outcome.unwrap_err();
                assert!(
                    matches!(error, lease::Error::Unknown(_)),
                    "{operation}: {error:?}"
                );
            }
        }
        if operation != "wait" {
            world.store.release(LeaseRef::from(&taken)).await.unwrap();
        }
        // The stream is there again, and is used.
        up(&stream).await;
    }
}

#[tokio::test]
async fn l6_giving_up_a_wait_takes_it_off_the_queue() {
    let world = World::new();
    let served = Served::start(&world).await;
    let (_proxy, remote, holder, stream) = proxied(&served).await;
    let other = leasehold_client::new_holder("other").unwrap();
    let taken = Acquire::one(key("x"), other, ttl(30_000));
    let taken = granted(world.store.acquire(taken).await.unwrap());
    let waits = async || {
        let query = lease::LeaseQuery {
            status: Some(lease::Status::Pending),
            limit: 10,
            ..lease::LeaseQuery::default()
        };
        world.store.leases(query).await.unwrap().items.len()
    };
    let mut request = Acquire::one(key("x"), holder, ttl(30_000));
    request.wait_ms = 60_000;
    let waiting = tokio::spawn({
        let remote = remote.clone();
        async move { remote.acquire(request).await }
    });
    eventually("it waits", async || waits().await == 1).await;
    waiting.abort();
    eventually("it does not wait any more", async || waits().await == 0).await;
    world.store.release(LeaseRef::from(&taken)).await.unwrap();
    assert!(world.is_free(&key("x")).await);
    assert!(
        stream.is_usable(),
        "a wait that was given up is not silence"
    );
}

#[tokio::test]
async fn l20_a_watch_takes_the_stream_and_misses_nothing_without_it() {
    use futures_util::StreamExt as _;
    let world = World::new();
    let served = Served::start(&world).await;
    let (proxy, remote, _, stream) = proxied(&served).await;
    let mut watch = remote.watch(Watching::kinds(["test"])).await.unwrap();
    // The first place to resume from was asked for with a plain call.
    let before = proxy.accepted();
    let mut changes = 0;
    for round in 0..4 {
        let id = round.to_string();
        let ask = Acquire::one(
            key(&id),
            leasehold_client::new_holder("b").unwrap(),
            ttl(30_000),
        );
        if round == 2 {
            proxy.cut();
        }
        world.store.acquire(ask).await.unwrap();
        if round == 2 {
            let mut link = stream.link();
            link.wait_for(|it| *it == Link::Down).await.unwrap();
            proxy.pass();
        }
        loop {
            let next = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap();
            if let Notice::Event(event) = next.unwrap().unwrap() {
                assert_eq!(event.key, key(&id));
                changes += 1;
                break;
            }
        }
        if round == 1 {
            assert_eq!(proxy.accepted(), before, "on the stream");
        }
    }
    assert_eq!(changes, 4);
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
