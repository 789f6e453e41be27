//! Client and remote authority against a real server.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt;
use lease::{Acquire, Acquired, Authority, Holder, Notice, Revoke};
use leasehold_api::{AcquireRequest, Code, FenceCheck, FencedToken, VerdictWord};
use leasehold_client::{
    Client, Error, HolderStream, Keeper, LeaseFilter, Loss, Options, Remote, Trust,
};
use leasehold_testkit::{Dir, Proxy};

use crate::{
    served::{Served, TOKEN, client, up},
    world::{PATIENCE, World, eventually, key, quiet, ttl},
};

fn holder(name: &str) -> Holder {
    leasehold_client::new_holder(name).unwrap()
}

fn granted(acquired: Acquired) -> lease::Lease {
    match acquired {
        Acquired::Granted { mut leases, .. } => leases.pop().unwrap(),
        Acquired::Refused(refusal) => panic!("{refusal:?}"),
    }
}

#[tokio::test]
async fn a_keeper_works_over_http_as_in_the_process() {
    let world = World::new();
    let served = Served::start(&world).await;
    let clock = Arc::new(world.clock.clone());
    let remote = Arc::new(served.remote().await);
    // Without the stream: that would renew once more when it opens, whenever that is.
    let options = leasehold_client::keeper::Options {
        stream: false,
        ..quiet()
    };
    let keeper = Keeper::start(remote, holder("a"), clock, options);
    let guard = keeper.acquire_one(key("x"), ttl(30_000)).await.unwrap();
    world.clock.advance(10_000);
    eventually("renewed", async || guard.deadline().get() == 38_000).await;
    let revoke = Revoke {
        id: guard.lease().id,
        reason: "enough".into(),
    };
    world.store.revoke(revoke).await.unwrap();
    world.clock.advance(10_000);
    let why = "enough".into();
    assert_eq!(guard.lost().await, Loss::Revoked { why });
    keeper.stop().await.unwrap();
}

#[tokio::test]
async fn nothing_listening_is_unavailable_and_nothing_happened() {
    let world = World::new();
    let served = Served::start(&world).await;
    let url = served.url.clone();
    served.stop().await;
    let remote = Remote::new(client(&url));
    let ask = Acquire::one(key("x"), holder("a"), ttl(30_000));
    let error = remote.acquire(ask).await.unwrap_err();
    assert!(matches!(error, lease::Error::Unavailable(_)), "{error:?}");
    let error = client(&url).lease("x").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn sent_without_an_answer_is_unknown() {
    let world = World::new();
    let served = Served::start(&world).await;
    let proxy = Proxy::start(served.address).await;
    let remote = Remote::new(client(&format!("http://{}", proxy.addr())));
    let who = holder("a");
    let lease = granted(
        remote
            .acquire(Acquire::one(key("x"), who, ttl(30_000)))
            .await
            .unwrap(),
    );
    proxy.blackhole();
    let release = tokio::time::timeout(PATIENCE, remote.release((&lease).into()));
    let error = release.await.unwrap().unwrap_err();
    assert!(matches!(error, lease::Error::Unknown(_)), "{error:?}");
}

#[tokio::test]
async fn a_wrong_token_is_denied() {
    let world = World::new();
    let served = Served::start(&world).await;
    let stranger = Client::new(Options::new(&served.url).token("somebody-else's")).unwrap();
    let error = Remote::connect(stranger.clone()).await.unwrap_err();
    assert!(matches!(error, lease::Error::Denied(_)), "{error:?}");
    let error = stranger.lease("x").await.unwrap_err();
    assert_eq!(error.code(), Some(Code::AuthenticationFailed));
    assert!(error.is_definite());
}

#[tokio::test]
async fn l20_a_watch_survives_a_server_that_comes_back() {
    let world = World::new();
    let served = Served::start(&world).await;
    let address = served.address;
    let remote = served.remote().await;
    let mut watch = remote.watch(lease::Watching::everything()).await.unwrap();
    let mut revisions = Vec::new();
    for round in 0..3 {
        let id = round.to_string();
        let ask = Acquire::one(key(&id), holder("a"), ttl(30_000));
        world.store.acquire(ask).await.unwrap();
        if round == 1 {
            break;
        }
        let notice = watch.next().await.unwrap().unwrap();
        let Notice::Event(event) = notice else {
            panic!("{notice:?}");
        };
        assert_eq!(event.key, key(&id));
        revisions.push(event.revision);
    }
    // The second grant may or may not have been reported; the third comes while nobody serves.
    served.stop().await;
    let ask = Acquire::one(key("2"), holder("a"), ttl(30_000));
    world.store.acquire(ask).await.unwrap();
    let _again = Served::at(&world, address).await;
    for id in ["1", "2"] {
        let next = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap();
        let Notice::Event(event) = next.unwrap().unwrap() else {
            panic!("no event");
        };
        assert_eq!(event.key, key(id), "in order, nothing missing");
        revisions.push(event.revision);
    }
    assert!(revisions.is_sorted_by(|a, b| a < b), "{revisions:?}");
}

#[tokio::test]
async fn the_control_planes_calls() {
    let world = World::new();
    let served = Served::start(&world).await;
    let client = served.client();
    let who = holder("a");
    let request = AcquireRequest::one(&key("x"), &who, ttl(30_000));
    let lease = client.acquire(&request).await.unwrap();
    assert_eq!(lease.key().unwrap(), key("x"));

    let other = AcquireRequest::one(&key("x"), &holder("b"), ttl(30_000));
    let error = client.acquire(&other).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::LeaseAlreadyHeld));
    assert!(error.is_definite(), "an answer, not a failure");

    world.clock.advance(5_000);
    let renewed = client
        .renew(&lease.lease_id, &leasehold_api::RenewRequest::default())
        .await
        .unwrap();
    assert!(renewed.expires_at > lease.expires_at);
    let beat = client
        .heartbeat(&lease.lease_id, &leasehold_api::HeartbeatRequest::default())
        .await
        .unwrap();
    assert!(beat.success);
    let valid = client
        .validate(&lease.lease_id, &leasehold_api::ValidateRequest::default())
        .await
        .unwrap();
    assert!(valid.active && valid.token == lease.token);

    let filter = LeaseFilter {
        kind: Some("test".into()),
        ..LeaseFilter::default()
    };
    assert_eq!(client.leases(&filter).await.unwrap().leases.len(), 1);
    let check = FenceCheck {
        tokens: vec![FencedToken {
            kind: "test".into(),
            id: "x".into(),
            token: lease.token,
        }],
    };
    let verdicts = client.check_fences(&check).await.unwrap();
    assert_eq!(verdicts.results[0].verdict, VerdictWord::Current);

    client.revoke(&lease.lease_id, "enough").await.unwrap();
    let error = client
        .renew(&lease.lease_id, &leasehold_api::RenewRequest::default())
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some(Code::LeaseRevoked));
    client.release(&lease.lease_id).await.unwrap();
    let history = client.history(&key("x"), None).await.unwrap();
    assert_eq!(history.owners.len(), 1);
    let events = client
        .events(&leasehold_client::EventFilter::default())
        .await
        .unwrap();
    assert!(!events.events.is_empty());
}

#[tokio::test]
async fn a_call_that_is_safe_to_repeat_outlives_a_broken_connection() {
    let world = World::new();
    let served = Served::start(&world).await;
    let proxy = Proxy::start(served.address).await;
    let options = Options {
        limit: Duration::from_secs(5),
        ..Options::new(format!("http://{}", proxy.addr())).token(TOKEN)
    };
    let client = Client::new(options).unwrap();
    client.leases(&LeaseFilter::default()).await.unwrap();
    // The pooled connection is dead; the next request finds out and goes on over a new one.
    proxy.cut();
    eventually("cut", async || proxy.connections() == 0).await;
    proxy.pass();
    client.leases(&LeaseFilter::default()).await.unwrap();
}

#[tokio::test]
async fn a_certificate_for_development_is_trusted_exactly() {
    let world = World::new();
    let dir = Dir::new("client-tls");
    let served = Served::encrypted(&world, dir.path()).await;
    let pem = std::fs::read(dir.path().join("dev-cert.pem")).unwrap();
    let trusting = |trust| Options {
        trust,
        ..Options::new(&served.url).token(TOKEN)
    };
    for trust in [Trust::Exactly(pem.clone()), Trust::Authority(pem)] {
        let client = Client::new(trusting(trust)).unwrap();
        client.leases(&LeaseFilter::default()).await.unwrap();
        let stream = HolderStream::start(client, holder("a"));
        up(&stream).await;
        stream.close().await;
    }

    let other_dir = Dir::new("client-tls-other");
    let _other = Served::encrypted(&world, other_dir.path()).await;
    let other = std::fs::read(other_dir.path().join("dev-cert.pem")).unwrap();
    for trust in [Trust::Exactly(other), Trust::Machine] {
        let stranger = Client::new(trusting(trust)).unwrap();
        let error = stranger.leases(&LeaseFilter::default()).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    }
    assert!(Client::new(trusting(Trust::Exactly(b"nothing".to_vec()))).is_err());
}
