//! What the store on PostgreSQL costs beside the same work done by hand: the same tables, the same
//! server, the same number of callers, statements as a careful person would write them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::Parser;
use comfy_table::Table;
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use lease::{
    Acquire, Acquired, Authority as _, Holder, Key, LeaseRef, Renew, Renewal, Renewals, Ttl,
};
use leasehold_store::postgres::{Options, Postgres};
use leasehold_testkit::Postgres as Server;
use tokio::{sync::Mutex, time::Instant};
use tokio_postgres::{Client, NoTls};

/// PostgreSQL as a home beside hand-written SQL.
#[derive(Parser)]
struct Arguments {
    /// How long each measurement takes.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// How many callers work at once.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32")]
    callers: Vec<usize>,
    /// How many leases one renewal keeps.
    #[arg(long, default_value_t = 100)]
    renewed: usize,
}

/// One line of the table.
struct Measured {
    what: &'static str,
    callers: usize,
    per_second: f64,
    latency_us: Histogram<u64>,
}

/// As little as keeps the rules, without an order over all changes: each statement commits alone.
const ACQUIRE: &str = "WITH lease AS ( \
    INSERT INTO leases (lease_id, key, runner_id, incarnation, token, ttl_ms, on_outage, withheld_ms, \
        release_on_death, acquired_ms, expires_ms, status, labels, timer_ms) \
    SELECT gen_random_uuid(), $1, $2, '1', greatest(coalesce((SELECT token FROM lease_fences \
            WHERE key = $1), 0) + 1, n), 60000, '{\"policy\": \"fail_closed\"}', 0, false, n, \
        n + 60000, 'active', '{}', n + 60000 \
    FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS n) clock \
    ON CONFLICT (key) WHERE status = 'active' DO NOTHING RETURNING *), \
 event AS (INSERT INTO lease_events (revision, lease_id, event_type, at_ms, key, token, runner_id, \
        incarnation, expires_ms, labels) \
    SELECT nextval('hand'), lease_id, 'lease_acquired', acquired_ms, key, token, runner_id, \
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
    SELECT nextval('hand'), lease_id, 'lease_released', ended_ms, key, token, runner_id, \
        incarnation, expires_ms, labels FROM lease) \
 SELECT token FROM lease";

const RENEW: &str = "UPDATE leases SET renewed_ms = n, expires_ms = greatest(expires_ms, n + ttl_ms) \
 FROM unnest($1::text[], $2::bigint[]) AS asked (k, t), \
    (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS n) clock \
 WHERE key = k AND status = 'active' AND token = t AND runner_id = $3 AND expires_ms > n \
 RETURNING key, token, expires_ms";

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let server = Server::start().await;
    let span = Duration::from_secs(arguments.seconds);
    let store = open(&server, "ours").await?;
    // The same tables, used by hand only.
    drop(open(&server, "hand").await?);
    server.psql("CREATE SEQUENCE hand.hand").await;
    let mut lines = Vec::new();
    for &callers in &arguments.callers {
        let by_hand = hand_acquire(&server, callers, span).await?;
        lines.push((by_hand, our_acquire(&store, callers, span).await?));
        let by_hand = hand_renew(&server, callers, arguments.renewed, span).await?;
        let ours = our_renew(&store, callers, arguments.renewed, span).await?;
        lines.push((by_hand, ours));
    }
    let watched = watched_acquire(&store, *arguments.callers.last().unwrap_or(&8), span).await?;
    print(&lines, &watched);
    Ok(())
}

async fn open(server: &Server, schema: &str) -> Result<Arc<Postgres>> {
    let url = format!("{}?schema={schema}", server.url());
    let mut options: Options = url.parse().context("the URL")?;
    options.duties = false;
    Ok(Arc::new(Postgres::open(options).await?))
}

/// Repeats `round` for each caller until the time is over.
async fn measure<F>(
    what: &'static str,
    callers: usize,
    span: Duration,
    round: impl Fn(usize) -> F,
) -> Result<Measured>
where
    F: Future<Output = Result<()>>,
{
    let until = Instant::now() + span;
    let latency = Mutex::new(Histogram::new(3)?);
    let count = AtomicU64::new(0);
    let started = Instant::now();
    try_join_all((0..callers).map(async |caller| {
        while Instant::now() < until {
            let before = Instant::now();
            round(caller).await?;
            let took = u64::try_from(before.elapsed().as_micros()).unwrap_or(u64::MAX);
            latency.lock().await.record(took.max(1))?;
            count.fetch_add(1, Ordering::Relaxed);
        }
        anyhow::Ok(())
    }))
    .await?;
    Ok(Measured {
        what,
        callers,
        per_second: count.into_inner() as f64 / started.elapsed().as_secs_f64(),
        latency_us: latency.into_inner(),
    })
}

async fn connections(server: &Server, count: usize) -> Result<Vec<Client>> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute("SET search_path = hand").await?;
        clients.push(client);
    }
    Ok(clients)
}

async fn hand_acquire(server: &Server, callers: usize, span: Duration) -> Result<Measured> {
    let clients = connections(server, callers).await?;
    let mut prepared = Vec::new();
    for client in &clients {
        prepared.push((
            client.prepare(ACQUIRE).await?,
            client.prepare(RELEASE).await?,
        ));
    }
    measure("acquire + release", callers, span, async |caller| {
        let (key, name) = (format!("camera:{caller}"), format!("runner-{caller}"));
        let (acquire, release) = &prepared[caller];
        let row = clients[caller].query_one(acquire, &[&key, &name]).await?;
        let token: i64 = row.get(0);
        clients[caller]
            .query_one(release, &[&key, &token, &name])
            .await?;
        Ok(())
    })
    .await
}

async fn our_acquire(store: &Postgres, callers: usize, span: Duration) -> Result<Measured> {
    measure("acquire + release", callers, span, async |caller| {
        let lease = take(store, format!("camera:{caller}"), caller).await?;
        store.release(lease).await?;
        Ok(())
    })
    .await
}

/// The same while somebody watches, so that every batch notifies.
async fn watched_acquire(store: &Postgres, callers: usize, span: Duration) -> Result<Measured> {
    let watch = store.watch(None).await?;
    let measured = our_acquire(store, callers, span).await?;
    drop(watch);
    Ok(Measured {
        what: "acquire + release, watched (NOTIFY)",
        ..measured
    })
}

async fn take(store: &Postgres, key: String, caller: usize) -> Result<LeaseRef> {
    let key: Key = key.parse()?;
    let request = Acquire::one(key, holder(caller)?, Ttl::from_secs(60)?);
    match store.acquire(request).await? {
        Acquired::Granted { leases, .. } => Ok(LeaseRef::from(&leases[0])),
        Acquired::Refused(refusal) => anyhow::bail!("refused: {refusal:?}"),
    }
}

fn holder(caller: usize) -> Result<Holder> {
    Ok(Holder::new(&format!("runner-{caller}"), "1")?)
}

async fn hand_renew(
    server: &Server,
    callers: usize,
    many: usize,
    span: Duration,
) -> Result<Measured> {
    let clients = connections(server, callers).await?;
    let mut work = Vec::new();
    for (caller, client) in clients.iter().enumerate() {
        let name = format!("runner-{caller}");
        let keys: Vec<String> = (0..many)
            .map(|it| format!("kept:{callers}-{caller}-{it}"))
            .collect();
        let mut tokens: Vec<i64> = Vec::new();
        for key in &keys {
            tokens.push(client.query_one(ACQUIRE, &[key, &name]).await?.get(0));
        }
        work.push((client.prepare(RENEW).await?, keys, tokens, name));
    }
    measure("renewal of many", callers, span, async |caller| {
        let (renew, keys, tokens, name) = &work[caller];
        let rows = clients[caller].query(renew, &[keys, tokens, name]).await?;
        anyhow::ensure!(rows.len() == keys.len(), "all are kept");
        Ok(())
    })
    .await
}

async fn our_renew(
    store: &Postgres,
    callers: usize,
    many: usize,
    span: Duration,
) -> Result<Measured> {
    let mut work = Vec::new();
    for caller in 0..callers {
        let mut leases = Vec::new();
        for it in 0..many {
            let lease = take(store, format!("kept:{callers}-{caller}-{it}"), caller).await?;
            leases.push(Renewal {
                key: lease.key,
                token: lease.token,
                ttl: None,
                stats: None,
            });
        }
        work.push(Renew {
            holder: holder(caller)?,
            leases: Renewals::These(leases),
        });
    }
    measure("renewal of many", callers, span, async |caller| {
        let renewed = store.renew(work[caller].clone()).await?;
        anyhow::ensure!(renewed.iter().all(|it| it.outcome.is_ok()), "all are kept");
        Ok(())
    })
    .await
}

fn print(lines: &[(Measured, Measured)], watched: &Measured) {
    let mut table = Table::new();
    table.set_header([
        "work",
        "callers",
        "by hand/s",
        "p99 ms",
        "ours/s",
        "p99 ms",
        "by hand : ours",
    ]);
    let p99 = |it: &Measured| {
        format!(
            "{:.1}",
            it.latency_us.value_at_quantile(0.99) as f64 / 1000.0
        )
    };
    for (by_hand, ours) in lines {
        table.add_row([
            by_hand.what.to_owned(),
            by_hand.callers.to_string(),
            format!("{:.0}", by_hand.per_second),
            p99(by_hand),
            format!("{:.0}", ours.per_second),
            p99(ours),
            format!("{:.2}", by_hand.per_second / ours.per_second),
        ]);
    }
    table.add_row([
        watched.what.to_owned(),
        watched.callers.to_string(),
        String::new(),
        String::new(),
        format!("{:.0}", watched.per_second),
        p99(watched),
        String::new(),
    ]);
    println!("{table}");
}
