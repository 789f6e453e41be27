//! Backends for tests, and small things to do with them.

use std::{sync::Arc, time::Duration};

use lease::{Acquire, Acquired, Authority, Holder, Key, Lease, LeaseRef, Token, Ttl};
use leasehold_clock::System;
use leasehold_store::{OpenError, Options, Store, StoreUrl};
use leasehold_testkit::{Dir, Postgres, Redis};

/// One server of each sort, with room for many backends.
pub struct Backends {
    dir: Dir,
    pub postgres: Postgres,
    pub redis: Redis,
}

impl Backends {
    pub async fn start() -> Self {
        Self {
            dir: Dir::new("backends"),
            postgres: Postgres::start().await,
            redis: Redis::options().set("databases", "64").start().await,
        }
    }

    /// A backend of this sort that nobody has used.
    pub fn url(&self, sort: &str, name: &str, number: usize) -> String {
        match sort {
            "embedded" => format!("embedded:{}", self.dir.join(name).display()),
            "postgres" => format!("{}?schema={name}", self.postgres.url()),
            _ => format!("{}/{number}", self.redis.url().trim_end_matches('/')),
        }
    }
}

pub fn url(text: &str) -> StoreUrl {
    text.parse().expect("a store's URL")
}

pub async fn open(text: &str) -> Result<Store, OpenError> {
    leasehold_store::open(&url(text), Options::default(), Arc::new(System)).await
}

/// Closes a store, its last handle included.
pub async fn close(store: Store) {
    store.close().await.expect("it stops");
}

pub fn key(text: &str) -> Key {
    text.parse().expect("a key")
}

pub fn holder(name: &str) -> Holder {
    Holder::new(name, "1").expect("a holder")
}

pub fn ttl(millis: u64) -> Ttl {
    Ttl::from_millis(millis).expect("a ttl")
}

pub async fn acquire(authority: &dyn Authority, request: Acquire) -> Lease {
    match authority.acquire(request).await.expect("an answer") {
        Acquired::Granted { leases, .. } => leases.into_iter().next().expect("a lease"),
        Acquired::Refused(refusal) => panic!("{refusal:?}"),
    }
}

/// Opens, takes a key and gives it back, and closes. Returns the token.
pub async fn grant(store: &str, name: &str) -> Token {
    let store = open(store).await.unwrap_or_else(|error| panic!("{error}"));
    let authority = store.authority();
    let request = Acquire::one(key(name), holder("somebody"), ttl(60_000));
    let lease = acquire(&*authority, request).await;
    let released = authority.release(LeaseRef::from(&lease)).await;
    assert!(released.expect("an answer"));
    drop(authority);
    close(store).await;
    lease.token
}

/// Waits until another holder can have the key, and returns its token.
pub async fn take_over(authority: &dyn Authority, name: &str, limit: Duration) -> Token {
    let mut request = Acquire::one(key(name), holder("heir"), ttl(60_000));
    request.wait_ms = u64::try_from(limit.as_millis()).expect("a short time");
    acquire(authority, request).await.token
}
