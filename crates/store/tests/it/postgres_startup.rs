//! What the store refuses before it is trusted.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::time::Duration;

use lease::{Acquire, Acquired, Authority as _, Error, Holder, LeaseQuery, LeaseRef, Status, Ttl};
use leasehold_store::{
    conformance::Flip,
    postgres::{Options, Postgres},
};
use leasehold_testkit::{Postgres as Server, wait};

async fn open(url: &str) -> Result<Postgres, Error> {
    Postgres::open(url.parse::<Options>().expect("a well-formed URL")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsafe_settings_are_refused_unless_named() {
    let server = Server::options()
        .fsync(false)
        .set("synchronous_commit", "off")
        .start()
        .await;
    for (allowed, missing) in [
        ("", "leasehold_allow=fsync_off"),
        (
            "?leasehold_allow=fsync_off",
            "leasehold_allow=synchronous_commit_off",
        ),
        (
            "?leasehold_allow=synchronous_commit_off",
            "leasehold_allow=fsync_off",
        ),
    ] {
        let refused = open(&format!("{}{allowed}", server.url())).await;
        let Err(Error::Broken(why)) = refused.map(|_| ()) else {
            panic!("{allowed} must not be enough")
        };
        assert!(why.contains(missing), "{why}");
    }
    let tables = server
        .psql("SELECT count(*) FROM pg_tables WHERE tablename = 'leases'")
        .await;
    assert_eq!(tables, "0", "a refused server is left as it was");
    let url = format!(
        "{}?leasehold_allow=fsync_off,synchronous_commit_off",
        server.url()
    );
    let store = open(&url).await.expect("accepted by the operator");
    let promises = store.capabilities();
    assert!(!promises.durable && promises.shared && !promises.time_stops);
    assert!(
        promises.caveats.iter().any(|it| it.contains("fsync")),
        "{promises:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_or_newer_schema_is_refused() {
    let database = Server::shared().await;
    drop(open(&database.url()).await.expect("opens"));
    database
        .psql("UPDATE leasehold_migrations SET checksum = 'other' WHERE step = 1")
        .await;
    let Err(Error::Broken(why)) = open(&database.url()).await.map(|_| ()) else {
        panic!("a changed step must be refused")
    };
    assert!(why.contains("V1__tables"), "{why}");
    let newer = format!("{}?schema=newer", database.url());
    drop(open(&newer).await.expect("opens"));
    database
        .psql("INSERT INTO newer.leasehold_migrations VALUES (999, 'V999__future', 'x')")
        .await;
    let Err(Error::Broken(why)) = open(&newer).await.map(|_| ()) else {
        panic!("a newer schema must be refused")
    };
    assert!(why.contains("V999__future"), "{why}");
}

/// A server of another version: its functions have another text, and decide the same.
async fn open_other(url: &str) -> Postgres {
    let mut options: Options = url.parse().expect("a well-formed URL");
    options.flip = Some(Flip::new("-- Giving back (L16).", "-- Given back (L16)."));
    Postgres::open(options).await.expect("opens")
}

/// Somebody waits at the second store for what the first one granted, and gets it when that is released.
async fn hand_on(first: &Postgres, second: &Postgres, key: &str) {
    let ask = |name: &str| {
        let holder = Holder::new(name, "1").unwrap();
        Acquire::one(key.parse().unwrap(), holder, Ttl::from_secs(60).unwrap())
    };
    let Acquired::Granted { leases, .. } = first.acquire(ask("ann")).await.unwrap() else {
        panic!("the key is free")
    };
    let mut patient = ask("bob");
    patient.wait_ms = 60_000;
    let waiting = second.acquire(patient);
    let releasing = async {
        let pending = || LeaseQuery {
            status: Some(Status::Pending),
            limit: 1,
            ..LeaseQuery::default()
        };
        wait::until(Duration::from_secs(60), "somebody waits", async || {
            !first.leases(pending()).await.unwrap().items.is_empty()
        })
        .await;
        first.release(LeaseRef::from(&leases[0])).await.unwrap()
    };
    let (granted, released) = tokio::join!(waiting, releasing);
    assert!(released);
    let Acquired::Granted { leases: next, .. } = granted.unwrap() else {
        panic!("the waiter is served")
    };
    assert!(next[0].token > leases[0].token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_versions_of_the_functions_share_a_database() {
    let database = Server::shared().await;
    let url = format!("{}?schema=upgraded", database.url());
    let psql = async |sql: &str| database.psql(sql).await.trim().to_owned();
    let versions = "SELECT count(*) FROM upgraded.leasehold_functions";
    let functions = "SELECT count(*) FROM pg_proc \
        WHERE pronamespace = 'upgraded'::regnamespace AND starts_with(proname, 'lh_apply_')";
    let older = open_other(&url).await;
    let newer = open(&url).await.expect("opens");
    assert_eq!(psql(versions).await, "2");
    hand_on(&older, &newer, "camera:a").await;
    hand_on(&newer, &older, "camera:b").await;
    older.tick().await.expect("the tick of the older version");
    newer.tick().await.expect("the tick of the newer version");
    // The same set again changes nothing, and neither goes while it is used.
    drop(open(&url).await.expect("opens"));
    assert_eq!(psql(functions).await, "2");
    // The servers of the older version were away for long, and one started meanwhile.
    psql("UPDATE upgraded.leasehold_functions SET used_at = now() - interval '25 hours'").await;
    newer.keep_functions().await.expect("recorded");
    drop(open(&url).await.expect("opens"));
    assert_eq!(psql(functions).await, "1");
    older.tick().await.expect_err("its functions are gone");
    older.keep_functions().await.expect("installed again");
    assert_eq!(psql(functions).await, "2");
    hand_on(&older, &newer, "camera:c").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sets_of_functions_that_nobody_uses_are_bounded() {
    let database = Server::shared().await;
    let url = format!("{}?schema=bounded", database.url());
    drop(open(&url).await.expect("opens"));
    database
        .psql(
            "INSERT INTO bounded.leasehold_functions (version, used_at) \
             SELECT 'v' || i, now() - interval '2 hours' - i * interval '1 minute' \
             FROM generate_series(1, 20) i; \
             CREATE FUNCTION bounded.lh_apply_v20() RETURNS text LANGUAGE sql AS 'SELECT NULL::text'; \
             CREATE FUNCTION bounded.lh_apply_v1() RETURNS text LANGUAGE sql AS 'SELECT NULL::text'",
        )
        .await;
    drop(open(&url).await.expect("opens"));
    let left = database
        .psql(
            "SELECT count(*), max(version), (SELECT count(*) FROM pg_proc WHERE proname = 'lh_apply_v1'), \
             (SELECT count(*) FROM pg_proc WHERE proname = 'lh_apply_v20') \
             FROM bounded.leasehold_functions WHERE starts_with(version, 'v')",
        )
        .await;
    assert_eq!(left.trim(), "8|v8|1|0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemas_of_one_database_know_nothing_of_each_other() {
    let database = Server::shared().await;
    let one = open(&format!("{}?schema=one", database.url()))
        .await
        .unwrap();
    let two = open(&format!("{}?schema=two", database.url()))
        .await
        .unwrap();
    let key: lease::Key = "camera:a".parse().unwrap();
    for store in [&one, &two] {
        let holder = lease::Holder::new("ann", "1").unwrap();
        let ttl = lease::Ttl::from_secs(60).unwrap();
        let request = lease::Acquire::one(key.clone(), holder, ttl);
        let answer = store.acquire(request).await.unwrap();
        assert!(matches!(
            answer,
            lease::Acquired::Granted { fresh: true, .. }
        ));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_is_told_as_unavailable() {
    let port = leasehold_testkit::port::free();
    let refused = open(&format!("postgres://postgres@127.0.0.1:{port}/postgres")).await;
    assert!(matches!(refused.map(|_| ()), Err(Error::Unavailable(_))));
}
