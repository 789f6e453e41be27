//! PostgreSQL as a lock: a row per key, taken by an upsert that returns a token and given back by a
//! delete; and, for the store on PostgreSQL, statements that a careful engineer would write for the same
//! guarantees on the same tables and indexes.
//!
//! **By hand** means: acquire inserts the lease unless the key has a live one, with a token above the
//! key's last, and an event; release locks and ends the lease of that owner and token, keeps its token,
//! and inserts an event. Each command is one prepared statement that commits by itself, and events are
//! numbered by a sequence (a reader that resumes from a number can miss one that commits late; ours are
//! numbered in the order of the commits). It knows no waiters, pools, limits, policies or reasons of a
//! loss.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use futures_util::future::BoxFuture;
use leasehold_bench::{
    rounds::{Caller, Callers},
    usage::Processes,
};
use leasehold_testkit::Postgres as Server;
use tokio_postgres::{Client, NoTls, Statement};

use super::{Keys, leasehold_store::Store};

const TABLE: &str = "CREATE SEQUENCE tokens; \
    CREATE TABLE locks (key text PRIMARY KEY, holder text NOT NULL, metadata text, \
        token bigint NOT NULL DEFAULT nextval('tokens'), expires timestamptz NOT NULL)";
const TAKE: &str = "INSERT INTO locks (key, holder, expires) VALUES ($1, $2, now() + interval '1 minute') \
    ON CONFLICT (key) DO UPDATE SET holder = excluded.holder, token = excluded.token, \
        expires = excluded.expires WHERE locks.expires < now() RETURNING token";
const GIVE_BACK: &str = "DELETE FROM locks WHERE key = $1 AND token = $2";
const KEEP: &str = "UPDATE locks SET expires = now() + interval '1 hour' \
    FROM unnest($1::text[], $2::bigint[]) AS asked (k, t) WHERE key = k AND token = t AND holder = $3";

const ACQUIRE: &str = "WITH lease AS ( \
    INSERT INTO leases (lease_id, key, runner_id, incarnation, token, ttl_ms, on_outage, withheld_ms, \
        release_on_death, acquired_ms, expires_ms, status, labels, timer_ms) \
    SELECT gen_random_uuid(), $1, $2, '1', greatest(coalesce((SELECT token FROM lease_fences \
            WHERE key = $1), 0) + 1, n), 60000, '{\"policy\": \"fail_closed\"}', 0, false, n, \
        n + 60000, 'active', '{}', n + 60000 \
    FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS n) clock_now \
    ON CONFLICT (key) WHERE status = 'active' DO NOTHING RETURNING *), \
 event AS (INSERT INTO lease_events (revision, lease_id, event_type, at_ms, key, token, runner_id, \
        incarnation, expires_ms, labels) \
    SELECT (SELECT nextval('hand')), lease_id, 'lease_acquired', acquired_ms, key, token, runner_id, \
        incarnation, expires_ms, labels FROM lease) \
 SELECT token, expires_ms FROM lease";

const RELEASE: &str = "WITH lease AS (UPDATE leases SET status = 'released', loss = 'released', \
        ended_ms = floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint \
    WHERE key = $1 AND status = 'active' AND token = $2 AND runner_id = $3 RETURNING *), \
 fence AS (INSERT INTO lease_fences (key, token, lease_id, loss, ended_ms) \
    SELECT key, token, lease_id, 'released', ended_ms FROM lease \
    ON CONFLICT (key) DO UPDATE SET token = excluded.token, lease_id = excluded.lease_id, \
        loss = excluded.loss, ended_ms = excluded.ended_ms), \
 event AS (INSERT INTO lease_events (revision, lease_id, event_type, at_ms, key, token, runner_id, \
        incarnation, expires_ms, labels) \
    SELECT (SELECT nextval('hand')), lease_id, 'lease_released', ended_ms, key, token, runner_id, \
        incarnation, expires_ms, labels FROM lease) \
 SELECT token FROM lease";

/// How many renewals one statement keeps.
pub const BATCH: usize = 1_000;

/// A server whose commits reach the disk, unless a caller wants otherwise.
pub struct Postgres {
    server: Server,
    pid: u32,
}

impl Postgres {
    pub async fn start() -> Result<Self> {
        // A connection per caller, for several kinds of callers.
        let options = Server::options().set("max_connections", "1000");
        let mut server = options.try_start().await?;
        let pid = server.child().pid();
        let this = Self { server, pid };
        this.connect().await?.batch_execute(TABLE).await?;
        Ok(this)
    }

    /// The tables of the store, to be used by hand only.
    pub async fn prepare_by_hand(&self) -> Result<()> {
        drop(Store::postgres(&self.store_url("hand")).await?);
        let client = self.connect().await?;
        Ok(client
            .batch_execute("CREATE SEQUENCE hand.hand START 1000000")
            .await?)
    }

    /// The URL of a store in its own schema.
    pub fn store_url(&self, schema: &str) -> String {
        format!("{}?schema={schema}", self.server.url())
    }

    pub fn processes(&self) -> Processes {
        Processes::with_children(self.pid)
    }

    pub fn address(&self) -> SocketAddr {
        self.server.addr()
    }

    pub async fn connect(&self) -> Result<Client> {
        Self::connect_to(self.address()).await
    }

    pub async fn connect_to(address: SocketAddr) -> Result<Client> {
        let url = format!("postgres://postgres@{address}/postgres");
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute("SET jit = off").await?;
        Ok(client)
    }

    /// Callers that acquire and release; their commits wait for the disk, or not.
    pub async fn cycles(&self, callers: usize, synchronous: bool) -> Result<Callers> {
        let mut all: Callers = Vec::new();
        let setting = if synchronous { "on" } else { "off" };
        for caller in 0..callers {
            let client = self.connect().await?;
            let set = format!("SET synchronous_commit = {setting}");
            client.batch_execute(&set).await?;
            all.push(Box::new(Cycle {
                take: client.prepare(TAKE).await?,
                give_back: client.prepare(GIVE_BACK).await?,
                client,
                keys: Keys::new(caller, callers),
                owner: format!("client-{caller}"),
            }));
        }
        Ok(all)
    }

    /// Callers with statements written by hand.
    pub async fn by_hand(&self, callers: usize) -> Result<Callers> {
        let mut all: Callers = Vec::new();
        for caller in 0..callers {
            let client = self.connect().await?;
            client.batch_execute("SET search_path = hand").await?;
            all.push(Box::new(ByHand {
                acquire: client.prepare(ACQUIRE).await?,
                release: client.prepare(RELEASE).await?,
                client,
                keys: Keys::new(caller, callers),
                owner: format!("client-{caller}"),
            }));
        }
        Ok(all)
    }

    /// Holds keys.
    pub async fn fill(&self, kind: &str, leases: usize, metadata: &str) -> Result<()> {
        let client = self.connect().await?;
        let statement = "INSERT INTO locks (key, holder, metadata, expires) \
            SELECT $1 || ':lease-' || to_char(n, 'FM000000000'), 'holder', $2, now() + interval '1 hour' \
            FROM generate_series(0, $3::bigint - 1) n";
        let count = i64::try_from(leases)?;
        client
            .execute(statement, &[&kind, &metadata, &count])
            .await?;
        client.batch_execute("ANALYZE locks").await?;
        Ok(())
    }

    /// What the keys take, their index included.
    pub async fn table_bytes(&self) -> Result<u64> {
        let client = self.connect().await?;
        let row = client
            .query_one("SELECT pg_total_relation_size('locks')", &[])
            .await?;
        Ok(u64::try_from(row.get::<_, i64>(0))?)
    }

    /// Callers that keep what was filled, a batch at a time; each has its share.
    pub async fn renewals(&self, kind: &str, lanes: usize) -> Result<Callers> {
        let client = self.connect().await?;
        let query = "SELECT key, token FROM locks WHERE key LIKE $1 || ':%' ORDER BY key";
        let rows = client.query(query, &[&kind]).await?;
        let mut shares = vec![Vec::new(); lanes];
        for (place, batch) in rows.chunks(BATCH).enumerate() {
            let keys: Vec<String> = batch.iter().map(|row| row.get(0)).collect();
            let tokens: Vec<i64> = batch.iter().map(|row| row.get(1)).collect();
            shares[place % lanes].push((keys, tokens));
        }
        let mut all: Callers = Vec::new();
        for batches in shares.into_iter().filter(|share| !share.is_empty()) {
            let client = self.connect().await?;
            all.push(Box::new(Renewal {
                keep: client.prepare(KEEP).await?,
                client,
                batches,
                turn: 0,
            }));
        }
        Ok(all)
    }
}

struct Cycle {
    client: Client,
    take: Statement,
    give_back: Statement,
    keys: Keys,
    owner: String,
}

impl Caller for Cycle {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let key = format!("job:{}", self.keys.next());
            let client = &self.client;
            let row = client.query_one(&self.take, &[&key, &self.owner]).await?;
            let token: i64 = row.get(0);
            let deleted = client.execute(&self.give_back, &[&key, &token]).await?;
            ensure!(deleted == 1, "{key} was lost");
            Ok(())
        })
    }
}

struct ByHand {
    client: Client,
    acquire: Statement,
    release: Statement,
    keys: Keys,
    owner: String,
}

impl Caller for ByHand {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let key = format!("job:{}", self.keys.next());
            let client = &self.client;
            let row = client
                .query_one(&self.acquire, &[&key, &self.owner])
                .await?;
            let token: i64 = row.get(0);
            client
                .query_one(&self.release, &[&key, &token, &self.owner])
                .await?;
            Ok(())
        })
    }
}

struct Renewal {
    client: Client,
    keep: Statement,
    batches: Vec<(Vec<String>, Vec<i64>)>,
    turn: usize,
}

impl Caller for Renewal {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let (keys, tokens) = &self.batches[self.turn % self.batches.len()];
            self.turn += 1;
            let client = &self.client;
            let kept = client
                .execute(&self.keep, &[keys, tokens, &"holder"])
                .await?;
            ensure!(kept == keys.len() as u64, "a lock was lost");
            Ok(())
        })
    }
}
