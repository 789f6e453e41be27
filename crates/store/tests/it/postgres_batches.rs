//! Commands of many callers that PostgreSQL decides together, and how much it remembers.

use std::{sync::Arc, time::Duration};

use lease::{
    Acquire, Acquired, Authority, Cause, Holder, Key, Lease, LeaseRef, OnOutage, Refusal, Ttl,
};
use leasehold_store::postgres::{Options, Postgres};
use leasehold_testkit::{Postgres as Server, wait};

use crate::storm;

const LIMIT: Duration = Duration::from_secs(20);

fn options(url: &str) -> Options {
    url.parse().expect("a well-formed URL")
}

fn ask(id: &str, who: &str) -> Acquire {
    Acquire::one(
        Key::new("job", id).expect("a key"),
        Holder::new(who, "1").expect("a holder"),
        Ttl::from_secs(60).expect("a ttl"),
    )
}

async fn take(store: &Postgres, request: Acquire) -> Lease {
    match store.acquire(request).await.expect("answered") {
        Acquired::Granted { mut leases, .. } => leases.remove(0),
        Acquired::Refused(refusal) => panic!("refused: {refusal:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l1_commands_that_are_decided_together_are_decided_one_after_the_other() {
    let database = Server::shared().await;
    let store = Postgres::open(options(&database.url()))
        .await
        .expect("opens");
    storm::storm(Arc::new(store)).await;
}

#[tokio::test]
async fn what_the_asker_is_told_about_a_usual_grant_is_what_the_database_holds() {
    let database = Server::shared().await;
    let store = Postgres::open(options(&database.url()))
        .await
        .expect("opens");
    let labels = [("site", "north"), ("tenant", "blue")];
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let asked = Acquire {
        release_on_death: true,
        on_outage: OnOutage::Hold(lease::Grace::from_millis(5000).expect("a grace")),
        labels: lease::Labels::new(labels.into()).expect("labels"),
        ..ask("a", "ann")
    };
    let reported = take(&store, asked).await;
    let held = store.lease(reported.key.clone()).await.expect("answered");
    assert_eq!(held, Some(reported.clone()));
    assert_eq!(
        store.lease_by_id(reported.id).await.expect("answered"),
        held
    );
    let refused = store.acquire(ask("a", "bob")).await.expect("answered");
    let Acquired::Refused(Refusal {
        cause: Cause::Held { token, left_ms, .. },
        ..
    }) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(token, reported.token);
    assert!((60_000..=65_000).contains(&left_ms), "{left_ms}");
}

/// Decided in time, and on its way to the disk while the old expiry passes.
#[tokio::test]
async fn l7_a_lease_whose_renewal_is_being_written_is_not_told_as_lost() {
    let database = Server::shared().await;
    let mut idle = options(&database.url());
    idle.housekeeping = false;
    let store = Arc::new(Postgres::open(idle).await.expect("opens"));
    let asked = Acquire {
        ttl: Ttl::from_millis(50).expect("a ttl"),
        ..ask("a", "ann")
    };
    let lease = take(&store, asked).await;
    let (mut writer, connection) = tokio_postgres::connect(&database.url(), tokio_postgres::NoTls)
        .await
        .expect("connects");
    tokio::spawn(connection);
    let renewal = writer.transaction().await.expect("begins");
    let renewed = renewal
        .execute("UPDATE leases SET expires_ms = expires_ms + 60000", &[])
        .await;
    assert_eq!(renewed.expect("renewed"), 1);
    wait::until(LIMIT, "the old expiry is over", async || {
        store.now().await.expect("answered") > lease.expires_at
    })
    .await;
    let look = tokio::spawn({
        let (store, lease) = (store.clone(), lease.clone());
        async move { tokio::join!(store.lease(lease.key), store.lease_by_id(lease.id)) }
    });
    wait::until(LIMIT, "both wait for the renewal", async || {
        let waiting = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted";
        let waiting: i64 = renewal.query_one(waiting, &[]).await.expect("read").get(0);
        waiting == 2
    })
    .await;
    renewal.commit().await.expect("commits");
    let (by_key, by_id) = look.await.expect("no panic");
    let by_key = by_key.expect("answered").expect("it is live");
    assert_eq!(by_key.expires_at, lease.expires_at.plus(60_000));
    assert_eq!(by_id.expect("answered"), Some(by_key));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l3_tokens_of_idle_keys_are_bounded_in_number_and_folded_oldest_first() {
    let database = Server::shared().await;
    let mut busy = options(&database.url());
    busy.housekeeping = false;
    let store = Postgres::open(busy).await.expect("opens");
    let mut last = None;
    for number in 0..40 {
        let lease = take(&store, ask(&number.to_string(), "ann")).await;
        let released = store.release(LeaseRef::from(&lease)).await;
        assert!(released.expect("answered"));
        last = last.max(Some(lease.token));
        // The oldest are told by the time of their end.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let mut forgetful = options(&database.url());
    forgetful.idle_keys = 10;
    let _leader = Postgres::open(forgetful).await.expect("opens");
    wait::until(LIMIT, "old tokens to be folded", async || {
        let left = database.psql("SELECT count(*) FROM lease_fences").await;
        left == "10"
    })
    .await;
    let first = "SELECT min(split_part(key, ':', 2)::int) FROM lease_fences";
    assert_eq!(database.psql(first).await, "30", "the newest stay");
    let again = take(&store, ask("0", "ann")).await;
    assert!(
        Some(again.token) > last,
        "above every token that was folded"
    );
}
