//! PostgreSQL decides as the kernel's engine does, to the millisecond: random sequences on both. The
//! database's time is held still by a last time far ahead, which the authority never goes behind.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use lease::Authority;
use leasehold_store::{
    conformance::{
        Flip, Harness, Pace, Step, granting,
        mutants::{self, By, Mutant},
        oracle,
    },
    postgres::{Options, Postgres},
};
use leasehold_testkit::Postgres as Server;
use tokio_postgres::Client;

/// The year 2100.
const START_MS: u64 = 4_102_444_800_000;

/// Forgets every key that has no lease.
const FORGET: &str = r#"{"forget":{"most":1000,"history_ms":999999999,"history_events":1000000,"idle_ms":999999999,"idle_until":9007199254740991,"from":""}}"#;

/// One server for all stores of a test, each in a schema of its own.
struct Shared {
    url: String,
    client: Arc<Client>,
    _server: Server,
}

impl Shared {
    async fn start() -> Self {
        let server = Server::options().fsync(false).start().await;
        let url = server.url();
        let connected = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
        let (client, connection) = connected.expect("the server answers");
        tokio::spawn(connection);
        Self {
            url,
            client: Arc::new(client),
            _server: server,
        }
    }
}

struct Still {
    client: Arc<Client>,
    schema: String,
    authority: Arc<Postgres>,
    entry_point: String,
    /// Whether every idle key is forgotten when time passes.
    forgets: bool,
}

impl Still {
    async fn new(server: &Shared, flip: Option<Flip>, forgets: bool) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let schema = format!("still_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let url = format!(
            "{}?schema={schema}&leasehold_connections=2&leasehold_allow=fsync_off",
            server.url
        );
        let mut options: Options = url.parse().expect("a well-formed URL");
        // The test itself is the timer.
        options.housekeeping = false;
        options.timed_waits = false;
        options.flip = flip;
        let entry_point = options.entry_point();
        let authority = Arc::new(Postgres::open(options).await.expect("the store opens"));
        let still = Self {
            client: server.client.clone(),
            schema,
            authority,
            entry_point,
            forgets,
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
            if self.forgets {
                self.sql(&format!(
                    "SELECT {}('test', false, false, 'live', '[{FORGET}]', '{{}}', '{{}}')",
                    self.entry_point
                ))
                .await;
            }
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
    let server = Shared::start().await;
    oracle::check(async || Still::new(&server, None, false).await).await;
}

/// The sequences come one command at a time: these are decided as if they had come with others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgresql_agrees_with_the_engine_on_random_sequences_in_batches() {
    let server = Shared::start().await;
    let lone = "lone boolean := cardinality(acquires) + cardinality(releases) = 1";
    let in_batches = Flip::new(lone, "lone boolean := false");
    oracle::check(async || Still::new(&server, Some(in_batches.clone()), false).await).await;
    assert!(in_batches.was_planted(), "no text has {lone:?} any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l3_a_forgotten_key_never_sees_a_smaller_token_on_postgresql() {
    let server = Shared::start().await;
    let still = Still::new(&server, None, true).await;
    granting::l3_a_forgotten_key_never_sees_a_smaller_token(&still).await;
}

/// Bugs in the functions. The first few are planted in every run.
const MUTANTS: &[Mutant] = &[
    (
        "the last token of a key is ignored, fast path",
        "greatest((SELECT token FROM lease_fences WHERE key = k) + 1, least_token)",
        "least_token",
        By::Oracle,
    ),
    (
        "a renewal is accepted 1 ms late, fast path",
        "AND expires_ms + withheld_ms > (SELECT n FROM clock)",
        "AND expires_ms + withheld_ms >= (SELECT n FROM clock)",
        By::Oracle,
    ),
    (
        "the floor is ignored, fast path",
        "least_token := greatest(c.floor + 1, n)",
        "least_token := n",
        By::Floor,
    ),
    (
        "the last token of a key is ignored",
        "greatest(greatest(last, current_setting('leasehold.floor')::bigint) + 1, n)",
        "greatest(current_setting('leasehold.floor')::bigint + 1, n)",
        By::Oracle,
    ),
    (
        "a lease lapses 1 ms late",
        "RETURN coalesce(l.expires_ms + l.withheld_ms <= n, false)",
        "RETURN coalesce(l.expires_ms + l.withheld_ms < n, false)",
        By::Oracle,
    ),
    (
        "the floor is ignored",
        "greatest(greatest(last, current_setting('leasehold.floor')::bigint) + 1, n)",
        "greatest(last + 1, n)",
        By::Floor,
    ),
    (
        "forgotten tokens are not folded into the floor",
        "greatest(top, current_setting('leasehold.floor')::bigint)::text",
        "current_setting('leasehold.floor')",
        By::Floor,
    ),
    (
        "a handoff loses the labels",
        "l.release_on_death, l.labels,\n",
        "l.release_on_death, '{}',\n",
        By::Oracle,
    ),
    (
        "a handoff loses the policy",
        "l.ttl_ms, l.on_outage, l.release_on_death",
        "l.ttl_ms, '{\"policy\":\"fail_closed\"}', l.release_on_death",
        By::Oracle,
    ),
    (
        "a limit counts lapsed leases",
        "AND kind = split_part(first_key, ':', 1) AND expires_ms + withheld_ms > n",
        "AND kind = split_part(first_key, ':', 1)",
        By::Oracle,
    ),
    (
        "a batch counts as one lease",
        "RETURN held + new > most",
        "RETURN held + 1 > most",
        By::Oracle,
    ),
    (
        "a namesake in another tenant is the same holder",
        "l.incarnation = inc AND l.tenant_id IS NOT DISTINCT FROM tenant THEN",
        "l.incarnation = inc THEN",
        By::Oracle,
    ),
    (
        "the last waiter is served first",
        "ORDER BY queue.ticket\n",
        "ORDER BY queue.ticket DESC\n",
        By::Oracle,
    ),
    (
        "a waiter with a definite refusal waits on",
        "        IF NOT is_held THEN\n            PERFORM lh_answer",
        "        IF answered::json -> 'granted' IS NOT NULL THEN\n            PERFORM lh_answer",
        By::Oracle,
    ),
    (
        "expiry moves backwards",
        "expires_ms = greatest(expires_ms, n + coalesce(new_ttl, ttl_ms))",
        "expires_ms = n + coalesce(new_ttl, ttl_ms)",
        By::Oracle,
    ),
    (
        "the grace of hold is ignored",
        "    IF outage ->> 'policy' = 'hold' THEN",
        "    IF false THEN",
        By::Oracle,
    ),
    (
        "a transaction overtakes waiters",
        "        PERFORM lh_settle_waited(lh_keys(r -> 'acquire'), n);\n",
        "",
        By::Oracle,
    ),
    (
        "a proven death releases what did not ask for it",
        "AND (release_on_death OR how <> 'died')",
        "",
        By::Oracle,
    ),
    (
        "a stranger may renew and release",
        "ELSIF l.runner_id <> holder ->> 'name' OR l.incarnation <> holder ->> 'incarnation' THEN",
        "ELSIF false THEN",
        By::Oracle,
    ),
    (
        "a revision is left out",
        "(current_setting('leasehold.revision')::bigint + 1)::text",
        "(current_setting('leasehold.revision')::bigint + 2)::text",
        By::Oracle,
    ),
    (
        "a transaction ignores what it expects",
        "IF actual IS DISTINCT FROM (item ->> 'revision')::bigint THEN",
        "IF false THEN",
        By::Oracle,
    ),
    (
        "a pool passes lapsed slots over",
        "WHERE key = slot AND status = 'active' AND expires_ms + withheld_ms > n)",
        "WHERE key = slot AND status = 'active')",
        By::Oracle,
    ),
    (
        "a pool takes one request of a holder for another",
        "AND labels ->> 'request' = request_id)",
        "AND labels ? 'request')",
        By::Oracle,
    ),
    (
        "a repeated request gets another slot",
        "IF request_id IS NOT NULL THEN",
        "IF false THEN",
        By::Oracle,
    ),
    (
        "a stolen lease is told as unknown",
        "lost.loss := CASE WHEN held_token < l.token THEN 'stolen' ELSE 'unknown' END",
        "lost.loss := 'unknown'",
        By::Oracle,
    ),
    (
        "a lone release overtakes those who wait",
        "IF waiters > 0 AND EXISTS (SELECT FROM lease_waiter_keys WHERE key = k) THEN",
        "IF false THEN",
        By::Oracle,
    ),
    (
        "a lone release is accepted 1 ms late",
        "AND expires_ms + withheld_ms > n\n        RETURNING",
        "AND expires_ms + withheld_ms >= n\n        RETURNING",
        By::Oracle,
    ),
    (
        "a release needs no token, fast path",
        "AND token = held AND runner_id = name",
        "AND runner_id = name",
        By::Oracle,
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_bugs_are_noticed_on_postgresql() {
    let server = Shared::start().await;
    let make = async |flip, forgets| Still::new(&server, Some(flip), forgets).await;
    mutants::check("postgresql", MUTANTS, make).await;
}
