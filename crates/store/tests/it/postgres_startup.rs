//! What the store refuses before it is trusted.

use lease::{Authority as _, Error};
use leasehold_store::postgres::{Options, Postgres};
use leasehold_testkit::Postgres as Server;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_of_another_version_are_replaced_as_a_set() {
    let database = Server::shared().await;
    let url = format!("{}?schema=upgraded", database.url());
    drop(open(&url).await.expect("opens"));
    // What an older version could have left behind: other bodies, other parameters, other names.
    database
        .psql(
            "SET search_path = upgraded; DROP FUNCTION lh_tick; \
             CREATE FUNCTION lh_tick(most bigint) RETURNS text LANGUAGE sql AS 'SELECT NULL::text'; \
             CREATE FUNCTION lh_older() RETURNS text LANGUAGE sql AS 'SELECT NULL::text'; \
             UPDATE leasehold_functions SET checksum = 'older'",
        )
        .await;
    let store = open(&url).await.expect("opens");
    store.tick().await.expect("the tick of this version");
    let names = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'upgraded'::regnamespace";
    let left = format!("{names} AND proname = 'lh_older'");
    assert_eq!(database.psql(&left).await, "0");
    // The same set again changes nothing.
    let oldest = format!(
        "SELECT min(oid) FROM pg_proc WHERE oid IN ({})",
        names.replace("count(*)", "oid")
    );
    let before = database.psql(&oldest).await;
    drop(open(&url).await.expect("opens"));
    assert_eq!(database.psql(&oldest).await, before);
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
