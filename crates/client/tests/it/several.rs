//! Several servers of one service: the next is asked on *unknown*, never on *no*.

use lease::{Acquire, Acquired, Authority};
use leasehold_client::Remote;
use leasehold_testkit::Proxy;

use crate::{
    served::{Served, client},
    world::{World, key, ttl},
};

fn asks(name: &str) -> Acquire {
    let holder = leasehold_client::new_holder(name).unwrap();
    Acquire::one(key("x"), holder, ttl(30_000))
}

fn is_granted(acquired: &Acquired) -> bool {
    matches!(acquired, Acquired::Granted { .. })
}

#[tokio::test]
async fn the_next_server_is_asked_when_one_is_gone_or_mute() {
    let world = World::new();
    let (gone, up) = (Served::start(&world).await, Served::start(&world).await);
    let urls = format!("{}, {}", gone.url, up.url);
    gone.stop().await;
    let client = client(&urls);
    let remote = Remote::new(client.clone());
    // Nothing was sent to the one that is gone, so the very same call gets through.
    let acquired = remote.acquire(asks("a")).await.unwrap();
    assert!(is_granted(&acquired), "{acquired:?}");
    assert_eq!(client.url(), up.url);

    // One that takes requests and never answers costs one call: it may have happened.
    let mute = Proxy::start(up.address).await;
    mute.blackhole();
    let remote = Remote::new(crate::served::client(&format!(
        "http://{},{}",
        mute.addr(),
        up.url
    )));
    let error = remote.lease(key("x")).await.unwrap_err();
    assert!(matches!(error, lease::Error::Unknown(_)), "{error:?}");
    assert!(remote.lease(key("x")).await.unwrap().is_some());
    up.stop().await;
}

#[tokio::test]
async fn a_definite_no_is_taken_to_no_other_server() {
    let (world, elsewhere) = (World::new(), World::new());
    let (asked, other) = (Served::start(&world).await, Served::start(&elsewhere).await);
    let granted = world.store.acquire(asks("a")).await.unwrap();
    assert!(is_granted(&granted), "{granted:?}");
    // The other server would have granted it.
    let both = client(&format!("{},{}", asked.url, other.url));
    let refused = Remote::new(both.clone()).acquire(asks("b")).await.unwrap();
    assert!(matches!(refused, Acquired::Refused(_)), "{refused:?}");
    assert_eq!(both.url(), asked.url);
    assert!(elsewhere.store.lease(key("x")).await.unwrap().is_none());
    asked.stop().await;
    other.stop().await;
}
