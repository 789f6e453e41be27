//! A paused owner wakes up late and writes to a store: refused with the fence, and done without it.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use leasehold_fences::postgres::{DOCUMENTS_SQL, FENCE_SQL};
use leasehold_testkit::{Postgres, Redis};

use crate::support::{Course, Server};

const KEY: &str = "document:report";
const VALUE: &str = "SELECT value FROM documents";

#[tokio::test]
async fn postgres_refuses_a_paused_owner_and_without_the_fence_its_write_gets_through() {
    let (server, postgres) = tokio::join!(Server::start(), Postgres::start());
    let mut databases = Vec::new();
    for name in ["fenced", "forgotten", "control"] {
        databases.push(postgres.create_database(name).await);
        postgres.psql_in(name, FENCE_SQL).await;
        postgres.psql_in(name, DOCUMENTS_SQL).await;
    }
    postgres
        .psql_in("control", "DROP TRIGGER fenced ON documents")
        .await;
    let course = |key, database: usize, fenced| Course {
        key,
        sink: &databases[database],
        fenced,
    };

    let fenced = course("document:a", 0, true);
    let forgotten = course("document:b", 1, false);
    let control = course("document:c", 2, false);
    let (fenced, forgotten, control) = tokio::join!(
        fenced.late_write(&server),
        forgotten.late_write(&server),
        control.late_write(&server),
    );

    assert!(
        fenced.starts_with("refused stale fencing token"),
        "{fenced}"
    );
    assert_eq!(postgres.psql_in("fenced", VALUE).await, "second");
    // Somebody who forgot to show its token does not get past the trigger either.
    assert!(forgotten.starts_with("failed"), "{forgotten}");
    assert_eq!(postgres.psql_in("forgotten", VALUE).await, "second");
    // And this is what the fence is for.
    assert_eq!(control, "written late");
    assert_eq!(postgres.psql_in("control", VALUE).await, "late");
}

#[tokio::test]
async fn postgres_lets_nothing_by_the_trigger_without_a_pass_in_the_same_transaction() {
    let database = Postgres::start().await;
    database.psql(FENCE_SQL).await;
    database.psql(DOCUMENTS_SQL).await;
    let refused = async |sql: &str, word: &str| {
        let error = database.try_psql("postgres", sql).await.unwrap_err();
        assert!(error.to_string().contains(word), "{sql}: {error}");
    };
    let pass = |key: &str, token: u64| format!("SELECT fence_pass('{key}', {token});");
    let insert = "INSERT INTO documents VALUES ('d:1', 'x'), ('d:2', 'x');";

    refused(insert, "fence_pass()").await;
    // One `--command` is one transaction.
    refused(&format!("{} {insert}", pass("d:1", 5)), "fence_pass()").await;
    let both = format!("{} {} {insert}", pass("d:1", 5), pass("d:2", 5));
    database.psql(&both).await;
    refused(
        "UPDATE documents SET value = 'y' WHERE key = 'd:1'",
        "fence_pass()",
    )
    .await;
    refused("DELETE FROM documents WHERE key = 'd:1'", "fence_pass()").await;
    // A pass for one key is none for another, also not when a row is moved.
    let moved = format!(
        "{} UPDATE documents SET key = 'd:3' WHERE key = 'd:1'",
        pass("d:1", 5)
    );
    refused(&moved, "fence_pass()").await;
    // The same owner writes again, a newer one takes over, and the older one is out.
    let change = "UPDATE documents SET value = 'z' WHERE key = 'd:1'";
    database.psql(&format!("{} {change}", pass("d:1", 5))).await;
    database.psql(&format!("{} {change}", pass("d:1", 6))).await;
    refused(
        &format!("{} {change}", pass("d:1", 5)),
        "stale fencing token 5",
    )
    .await;
    // What was refused left no trace, and a pass does not outlive its transaction.
    let two = format!("BEGIN; {} COMMIT; {change}", pass("d:1", 6));
    refused(&two, "fence_pass()").await;
    assert_eq!(
        database
            .psql("SELECT token FROM fence WHERE key = 'd:1'")
            .await,
        "6"
    );
    database
        .psql(&format!(
            "{} DELETE FROM documents WHERE key = 'd:1'",
            pass("d:1", 6)
        ))
        .await;
}

#[tokio::test]
async fn redis_refuses_a_paused_owner_and_without_the_fence_its_write_gets_through() {
    let (server, fenced, control) = tokio::join!(Server::start(), Redis::start(), Redis::start());
    let course = |key, redis: &Redis, fenced| {
        let sink = redis.url();
        let server = &server;
        async move {
            let sink = &sink;
            Course { key, sink, fenced }.late_write(server).await
        }
    };
    let (reported, past) = tokio::join!(
        course(KEY, &fenced, true),
        course("document:other", &control, false)
    );

    assert!(reported.starts_with("refused"), "{reported}");
    assert_eq!(value(&fenced, KEY).await, "second");
    assert_eq!(past, "written late");
    assert_eq!(value(&control, "document:other").await, "late");
}

#[tokio::test]
async fn redis_takes_equal_and_newer_tokens_and_no_nonsense() {
    let redis = Redis::start().await;
    let client = redis::Client::open(redis.url()).unwrap();
    let key: lease::Key = KEY.parse().unwrap();
    let write = async |token: u64, value: &str| {
        let token = lease::Token::new(token).unwrap();
        leasehold_fences::redis::write(&client, &key, token, value).await
    };
    write(9_007_199_254_740_990, "a").await.unwrap();
    write(9_007_199_254_740_990, "b").await.unwrap();
    // The largest numbers are told apart exactly.
    let stale = write(9_007_199_254_740_989, "c").await.unwrap_err();
    assert!(
        matches!(&stale, leasehold_fences::WriteError::Stale(why) if why.contains("9007199254740990")),
        "{stale}"
    );
    write(9_007_199_254_740_991, "d").await.unwrap();
    let nonsense = write(0, "e").await.unwrap_err();
    assert!(matches!(nonsense, leasehold_fences::WriteError::Failed(_)));
    assert_eq!(value(&redis, KEY).await, "d");
}

async fn value(redis: &Redis, key: &str) -> String {
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    redis::cmd("GET")
        .arg(format!("document:{{{key}}}"))
        .query_async(&mut connection)
        .await
        .unwrap()
}

#[tokio::test]
async fn postgres_ends_the_transaction_of_a_writer_that_was_paused_inside_it() {
    let database = Postgres::start().await;
    database.psql(FENCE_SQL).await;
    database.psql(DOCUMENTS_SQL).await;
    database
        .psql("ALTER DATABASE postgres SET idle_in_transaction_session_timeout = '500ms'")
        .await;
    let connect = async || {
        let url = database.url();
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        client
    };
    let (mut old, mut new) = (connect().await, connect().await);
    let paused = old.transaction().await.unwrap();
    paused
        .execute("SELECT fence_pass('document:report', 5)", &[])
        .await
        .unwrap();
    // The successor waits for the old one's transaction, and no longer than the timeout.
    let key: lease::Key = KEY.parse().unwrap();
    let token = lease::Token::new(6).unwrap();
    let write = leasehold_fences::postgres::write(&mut new, &key, token, "second");
    let written = tokio::time::timeout(std::time::Duration::from_secs(20), write).await;
    written.expect("the lock is given up").unwrap();
    assert!(paused.commit().await.is_err(), "it was ended");
    assert_eq!(database.psql(VALUE).await, "second");
}
