//! PostgreSQL decides as the kernel's engine does, to the millisecond: random sequences on both. The
//! database's time is held still by a last time far ahead, which the authority never goes behind.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use lease::Authority;
use leasehold_store::{
    conformance::{Harness, Pace, Step, oracle},
    postgres::{Options, Postgres},
};
use leasehold_testkit::Postgres as Server;
use tokio_postgres::Client;

/// The year 2100.
const START_MS: u64 = 4_102_444_800_000;

struct Still {
    client: Arc<Client>,
    schema: String,
    authority: Arc<Postgres>,
}

impl Still {
    async fn new(url: &str, client: Arc<Client>) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let schema = format!("still_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let url =
            format!("{url}?schema={schema}&leasehold_connections=2&leasehold_allow=fsync_off");
        let mut options: Options = url.parse().expect("a well-formed URL");
        // The test itself is the timer.
        options.duties = false;
        let authority = Arc::new(Postgres::open(options).await.expect("the store opens"));
        let still = Self {
            client,
            schema,
            authority,
        };
        still
            .sql(&format!("UPDATE lease_clock SET at_ms = {START_MS}"))
            .await;
        still
    }

    async fn sql(&self, sql: &str) {
        let sql = format!("SET search_path = {}; {sql}", self.schema);
        let done = self.client.batch_execute(&sql).await;
        done.expect("the server does as it is told");
    }
}

impl Harness for Still {
    fn authority(&self) -> Arc<dyn Authority> {
        self.authority.clone()
    }

    fn pace(&self) -> Pace {
        Pace::VIRTUAL
    }

    fn pass(&self, millis: u64) -> Step<'_, ()> {
        Box::pin(async move {
            self.pass_without_tick(millis).await;
            self.authority.tick().await.expect("the server answers");
        })
    }

    fn pass_without_tick(&self, millis: u64) -> Step<'_, bool> {
        Box::pin(async move {
            self.sql(&format!(
                "UPDATE lease_clock SET at_ms = at_ms + {millis}; \
                 UPDATE lease_replicas SET seen_ms = seen_ms + {millis}"
            ))
            .await;
            true
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgresql_agrees_with_the_engine_on_random_sequences() {
    let server = Server::options().fsync(false).start().await;
    let url = server.url();
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .expect("the server answers");
    tokio::spawn(connection);
    let client = Arc::new(client);
    oracle::check(async || Still::new(&url, client.clone()).await).await;
}
