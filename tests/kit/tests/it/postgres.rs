//! A private PostgreSQL: restarts keep what was committed, pauses are total, databases are fresh.

use std::time::Duration;

use leasehold_testkit::{Postgres, wait};
use tokio_postgres::NoTls;

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("the server accepts");
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn committed_rows_survive_a_stop_and_a_kill() {
    let mut postgres = Postgres::start().await;
    assert_eq!(postgres.psql("SHOW fsync").await, "on");
    assert_eq!(postgres.psql("SHOW max_connections").await, "200");
    postgres.psql("CREATE TABLE facts (fact text)").await;
    postgres.psql("INSERT INTO facts VALUES ('stop')").await;

    postgres.restart().await;
    postgres.psql("INSERT INTO facts VALUES ('kill')").await;

    // With a client connected: its process must go too, or the restart finds the data in use.
    let client = connect(&postgres.url()).await;
    postgres.kill9();
    assert!(client.simple_query("SELECT 1").await.is_err());
    postgres.restart().await;
    let facts = postgres.psql("SELECT fact FROM facts ORDER BY 1").await;
    assert_eq!(facts, "kill\nstop");
}

#[tokio::test]
async fn a_paused_server_is_silent_on_open_and_new_connections() {
    let mut postgres = Postgres::options().fsync(false).start().await;
    assert_eq!(postgres.psql("SHOW fsync").await, "off");
    let client = connect(&postgres.url()).await;

    postgres.pause();
    let patience = Duration::from_millis(300);
    let open = tokio::time::timeout(patience, client.simple_query("SELECT 1")).await;
    assert!(open.is_err(), "an open connection was answered");
    let new = tokio::time::timeout(patience, connect(&postgres.url())).await;
    assert!(new.is_err(), "a new connection was answered");

    postgres.resume();
    wait::until(
        Duration::from_secs(30),
        "the server answers again",
        async || client.simple_query("SELECT 1").await.is_ok(),
    )
    .await;
}

#[tokio::test]
async fn databases_of_the_shared_server_are_fresh_and_apart() {
    let first = Postgres::shared().await;
    let second = Postgres::shared().await;
    assert_ne!(first.name(), second.name());
    assert_eq!(first.addr(), second.addr());

    connect(&first.url())
        .await
        .batch_execute("CREATE TABLE facts (fact text)")
        .await
        .unwrap();

    let tables = "SELECT count(*) FROM pg_tables WHERE tablename = 'facts'";
    assert_eq!(first.psql(tables).await, "1");
    assert_eq!(second.psql(tables).await, "0");
}

#[tokio::test]
async fn dropping_ends_every_process_also_when_paused() {
    for paused in [false, true] {
        let mut postgres = Postgres::options().fsync(false).start().await;
        let url = postgres.create_database("odd \"name").await;
        assert!(url.contains("odd"));
        let client = connect(&postgres.url()).await;
        let row = client.query_one("SELECT pg_backend_pid()", &[]).await;
        let backend: i32 = row.unwrap().get(0);
        let folder = postgres.dir().path().to_path_buf();
        if paused {
            postgres.pause();
        }

        drop(postgres);

        wait::until(Duration::from_secs(30), "the backend is gone", async || {
            let status = std::fs::read_to_string(format!("/proc/{backend}/status"));
            status.map_or(true, |status| status.contains("State:\tZ"))
        })
        .await;
        assert!(!folder.exists());
    }
}
