//! Commands of many callers that go to Redis together, and expiries that one tick announces.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use lease::{
    Acquire, Acquired, Authority, EventKind, EventQuery, Holder, Key, Renew, Renewal, Renewals, Ttl,
};
use leasehold_store::redis::{Options, Redis};
use leasehold_testkit::{redis::Redis as Server, wait};

use crate::storm;

const LIMIT: Duration = Duration::from_secs(20);

fn ask(id: &str, ttl_ms: u64) -> Acquire {
    Acquire::one(
        Key::new("job", id).expect("a key"),
        Holder::new("ann", "1").expect("a holder"),
        Ttl::from_millis(ttl_ms).expect("a ttl"),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l1_commands_that_are_decided_together_are_decided_one_after_the_other() {
    let server = Server::start().await;
    let store = Redis::open_url(&server.url()).await.expect("opens");
    storm::storm(Arc::new(store)).await;
}

#[tokio::test]
async fn l12_what_lapsed_first_is_announced_first_and_then_in_the_order_of_keys() {
    let server = Server::start().await;
    let store = Redis::open_url(&server.url()).await.expect("opens");
    let ids = ["f", "b", "d", "a", "e", "c"];
    let mut renewals = Vec::new();
    for (place, id) in ids.into_iter().enumerate() {
        let ttl_ms = 700 + 40 * (place as u64 % 2);
        let Acquired::Granted { leases, .. } =
            store.acquire(ask(id, ttl_ms)).await.expect("answered")
        else {
            panic!("{id} is free");
        };
        // Renewed leases stay in the index of expiries where they were.
        if place < 3 {
            renewals.push(Renewal {
                ttl: Some(Ttl::from_millis(900 - 20 * place as u64).expect("a ttl")),
                ..Renewal::of(&leases[0])
            });
        }
    }
    let holder = Holder::new("ann", "1").expect("a holder");
    let leases = Renewals::These(renewals);
    store.renew(Renew { holder, leases }).await.expect("kept");
    // All lapse before the next tick.
    server.pause();
    tokio::time::sleep(Duration::from_millis(1200)).await;
    server.resume();
    let expired = async || {
        let query = EventQuery {
            event: Some(EventKind::LeaseExpired),
            limit: 10,
            ..EventQuery::default()
        };
        store.events(query).await.expect("answered").events
    };
    wait::until(LIMIT, "all to be announced", async || {
        expired().await.len() == ids.len()
    })
    .await;
    let reported: Vec<_> = expired()
        .await
        .into_iter()
        .map(|event| {
            let expires = event.lease.as_ref().expect("a lease").expires_at;
            (expires, event.key.clone())
        })
        .collect();
    let mut sorted = reported.clone();
    sorted.sort();
    assert_eq!(reported, sorted);
    assert_eq!(reported[5].1.id(), "f", "its renewal lasted longest");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_to_be_sent_to_a_silent_server_is_told_in_time_and_recovers() {
    let server = Server::start().await;
    let options = Options {
        response_timeout: Duration::from_millis(500),
        ..Options::parse(&server.url()).expect("an address")
    };
    let store = Redis::open(options).await.expect("opens");
    server.pause();
    let asked = (0..500).map(|number| store.acquire(ask(&number.to_string(), 60_000)));
    let answers = tokio::time::timeout(LIMIT, join_all(asked)).await;
    for answer in answers.expect("nobody waits for each other's limit") {
        let error = answer.expect_err("the server is silent");
        assert!(error.is_retryable(), "{error}");
    }
    server.resume();
    wait::until(LIMIT, "the store to be back", async || {
        store.acquire(ask("again", 60_000)).await.is_ok()
    })
    .await;
}

/// A future of the store that is not polled any more, because its caller is busy with something else,
/// holds up nobody: neither the next connection nor the next commands depend on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_froze_is_used_again_whatever_became_of_the_callers() {
    let server = Server::start().await;
    let options = Options {
        connect_timeout: Duration::from_millis(200),
        response_timeout: Duration::from_millis(200),
        ..Options::parse(&server.url()).expect("an address")
    };
    let store = Redis::open(options).await.expect("opens");
    server.pause();
    let mut unpolled = Vec::new();
    for round in 0..3_u64 {
        let callers = (0..40_u64).map(|caller| {
            let store = &store;
            async move {
                let mut call: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = if caller % 4 < 2
                {
                    Box::pin(async { drop(store.acquire(ask("a", 60_000)).await) })
                } else {
                    Box::pin(async { drop(store.now().await) })
                };
                let some_ms = Duration::from_millis(5 + 17 * caller + round);
                let ended = tokio::time::timeout(some_ms, &mut call).await.is_ok();
                // Every second caller goes away, the others stay and do nothing.
                (!ended && caller % 2 == 0).then_some(call)
            }
        });
        unpolled.extend(join_all(callers).await.into_iter().flatten());
    }
    assert!(!unpolled.is_empty(), "somebody stopped halfway");
    server.resume();
    wait::until(LIMIT, "the store to be back", async || {
        let patience = Duration::from_secs(2);
        let granted = tokio::time::timeout(patience, store.acquire(ask("again", 60_000))).await;
        let time = tokio::time::timeout(patience, store.now()).await;
        matches!((granted, time), (Ok(Ok(_)), Ok(Ok(_))))
    })
    .await;
    drop(unpolled);
}

/// Whoever is alone sends by itself. Halfway there it may be left alone for as long as its caller likes.
#[tokio::test]
async fn a_lone_caller_that_stops_halfway_holds_up_nobody() {
    let server = Server::start().await;
    let store = Redis::open_url(&server.url()).await.expect("opens");
    let granted = |answer| matches!(answer, Ok(Acquired::Granted { .. }));
    let mut lone = store.acquire(ask("lone", 60_000));
    assert!(futures_util::poll!(&mut lone).is_pending(), "on its way");
    for number in 0..3 {
        assert!(granted(
            store.acquire(ask(&format!("one-{number}"), 60_000)).await
        ));
        let many = (0..100).map(|caller| store.acquire(ask(&format!("{number}-{caller}"), 60_000)));
        assert!(join_all(many).await.into_iter().all(granted));
    }
    assert!(granted(lone.await));
    // Nor does one that went away.
    for number in 0..3 {
        let mut gone = store.acquire(ask(&format!("gone-{number}"), 60_000));
        assert!(futures_util::poll!(&mut gone).is_pending(), "on its way");
    }
    assert!(granted(store.acquire(ask("last", 60_000)).await));
}
