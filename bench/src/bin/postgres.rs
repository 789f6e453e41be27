//! What the store on PostgreSQL costs beside the same work done by hand: the same tables and indexes on
//! the same server (every commit reaches the disk), the same number of callers, statements as a careful
//! person would write them.
//!
//! * **by hand** has a connection and prepared statements per caller, and each command is one statement
//!   that commits by itself. Acquire inserts the lease unless the key has a live one, with a token above
//!   the key's last, and an event; release locks and ends the lease of that owner and token, keeps its
//!   token, and inserts an event; renewal moves the expiry of each lease of that owner and token. Events
//!   are numbered by a sequence: a reader that resumes from a number can miss one that commits late.
//! * **in order** is the same with the numbers from one row that every change locks, as ours are: then
//!   numbers are in the order of the commits, and a reader misses nothing (L20).
//!
//! Neither knows waiters, pools, limits, policies, records or reasons of a loss.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Parser;
use futures_util::StreamExt as _;
use lease::{
    Acquire, Acquired, Authority as _, Holder, Key, LeaseRef, Renew, Renewal, Renewals, Ttl,
};
use leasehold_bench::rounds::{Pace, Report, Work, compare, work};
use leasehold_store::postgres::{Options, Postgres};
use leasehold_testkit::Postgres as Server;
use tokio_postgres::{Client, NoTls, Statement};

/// PostgreSQL as a home beside hand-written SQL.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    pace: Pace,
    /// How many callers work at once.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32])]
    callers: Vec<usize>,
    /// How many leases one renewal keeps.
    #[arg(long, default_value_t = 100)]
    renewed: usize,
}

/// How the events of a peer are numbered.
const SEQUENCE: &str = "(SELECT nextval('hand'))";
const IN_ORDER: &str = "(SELECT revision FROM clock)";

fn numbered(number: &str, statement: &str) -> String {
    let clock = if number == IN_ORDER {
        "WITH clock AS (UPDATE lease_clock SET revision = revision + 1 RETURNING revision), "
    } else {
        "WITH "
    };
    clock.to_owned() + &statement.replace("NUMBER", number)
}

const ACQUIRE: &str = "lease AS ( \
    INSERT INTO leases (lease_id, key, runner_id, incarnation, token, ttl_ms, on_outage, withheld_ms, \
        release_on_death, acquired_ms, expires_ms, status, labels, timer_ms) \
    SELECT gen_random_uuid(), $1, $2, '1', greatest(coalesce((SELECT token FROM lease_fences \
            WHERE key = $1), 0) + 1, n), 60000, '{\"policy\": \"fail_closed\"}', 0, false, n, \
        n + 60000, 'active', '{}', n + 60000 \
    FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS n) clock_now \
    ON CONFLICT (key) WHERE status = 'active' DO NOTHING RETURNING *), \
 event AS (INSERT INTO lease_events (revision, lease_id, event_type, at_ms, key, token, runner_id, \
        incarnation, expires_ms, labels) \
    SELECT NUMBER, lease_id, 'lease_acquired', acquired_ms, key, token, runner_id, \
        incarnation, expires_ms, labels FROM lease) \
 SELECT token, expires_ms FROM lease";

const RELEASE: &str = "lease AS (UPDATE leases SET status = 'released', loss = 'released', \
        ended_ms = floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint \
    WHERE key = $1 AND status = 'active' AND token = $2 AND runner_id = $3 RETURNING *), \
 fence AS (INSERT INTO lease_fences (key, token, lease_id, loss, ended_ms) \
    SELECT key, token, lease_id, 'released', ended_ms FROM lease \
    ON CONFLICT (key) DO UPDATE SET token = excluded.token, lease_id = excluded.lease_id, \
        loss = excluded.loss, ended_ms = excluded.ended_ms), \
 event AS (INSERT INTO lease_events (revision, lease_id, event_type, at_ms, key, token, runner_id, \
        incarnation, expires_ms, labels) \
    SELECT NUMBER, lease_id, 'lease_released', ended_ms, key, token, runner_id, \
        incarnation, expires_ms, labels FROM lease) \
 SELECT token FROM lease";

/// The owner is compared in a way that leads to no index of owners, since each lease would be compared
/// with each.
const RENEW: &str = "UPDATE leases SET renewed_ms = n, expires_ms = greatest(expires_ms, n + ttl_ms) \
 FROM unnest($1::text[], $2::bigint[]) AS asked (k, t), \
    (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS n) clock_now \
 WHERE key = k AND status = 'active' AND token = t AND runner_id || '' = $3 AND expires_ms > n \
 RETURNING key, token, expires_ms";

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let server = Server::start().await;
    let store = open(&server, "ours").await?;
    // The same tables, used by hand only.
    for schema in ["hand", "ordered"] {
        drop(open(&server, schema).await?);
        let sequence = format!("CREATE SEQUENCE {schema}.hand");
        server.psql(&sequence).await;
    }
    let mut report = Report::default();
    for &callers in &arguments.callers {
        let sides = [
            ("by hand", turns(&server, "hand", SEQUENCE, callers).await?),
            (
                "by hand, in order",
                turns(&server, "ordered", IN_ORDER, callers).await?,
            ),
            ("store", our_turns(&store)),
        ];
        let figures = compare(&sides, callers, arguments.pace).await?;
        report.add("acquire + release", callers, &figures);
    }
    for &callers in &arguments.callers {
        let many = arguments.renewed;
        let sides = [
            ("by hand", renewals(&server, callers, many).await?),
            ("store", our_renewals(&store, callers, many).await?),
        ];
        let figures = compare(&sides, callers, arguments.pace).await?;
        report.add(&format!("renewal of {many}"), callers, &figures);
    }
    watched(&server, &store, &arguments, &mut report).await?;
    println!("{report}");
    Ok(())
}

/// The store beside itself: what it costs to be watched. Another replica listens, so that every batch
/// notifies it, and it reads what happened.
async fn watched(
    server: &Server,
    store: &Arc<Postgres>,
    arguments: &Arguments,
    report: &mut Report,
) -> Result<()> {
    let callers = arguments.callers.last().copied().unwrap_or(8);
    let quiet = compare(&[("unwatched", our_turns(store))], callers, arguments.pace).await?;
    let other = open(server, "ours").await?;
    let mut watch = other.watch(lease::Watching::everything()).await?;
    let reader = tokio::spawn(async move { while watch.next().await.is_some() {} });
    let sides = [("watched, by NOTIFY", our_turns(store))];
    let told = compare(&sides, callers, arguments.pace).await?;
    reader.abort();
    let both: Vec<_> = quiet.into_iter().chain(told).collect();
    report.add("acquire + release", callers, &both);
    Ok(())
}

async fn open(server: &Server, schema: &str) -> Result<Arc<Postgres>> {
    let url = format!("{}?schema={schema}", server.url());
    let mut options: Options = url.parse().context("the URL")?;
    options.duties = false;
    Ok(Arc::new(Postgres::open(options).await?))
}

/// A caller by hand: its own connection, and what it prepared there.
struct Hand {
    client: Client,
    statements: Vec<Statement>,
}

async fn connect(
    server: &Server,
    schema: &str,
    callers: usize,
    statements: &[String],
) -> Result<Arc<Vec<Hand>>> {
    let mut hands = Vec::new();
    for _ in 0..callers {
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
        tokio::spawn(connection);
        let path = format!("SET search_path = {schema}; SET jit = off");
        client.batch_execute(&path).await?;
        let mut prepared = Vec::new();
        for statement in statements {
            prepared.push(client.prepare(statement).await?);
        }
        hands.push(Hand {
            client,
            statements: prepared,
        });
    }
    Ok(Arc::new(hands))
}

async fn turns(server: &Server, schema: &str, number: &str, callers: usize) -> Result<Work> {
    let statements = [ACQUIRE, RELEASE].map(|statement| numbered(number, statement));
    let hands = connect(server, schema, callers, &statements).await?;
    Ok(work(move |caller, _| {
        let hands = hands.clone();
        async move {
            let (key, name) = (format!("camera:{caller}"), format!("runner-{caller}"));
            let Hand { client, statements } = &hands[caller];
            let row = client.query_one(&statements[0], &[&key, &name]).await?;
            let token: i64 = row.get(0);
            client
                .query_one(&statements[1], &[&key, &token, &name])
                .await?;
            Ok(())
        }
    }))
}

fn our_turns(store: &Arc<Postgres>) -> Work {
    let store = store.clone();
    work(move |caller, _| {
        let store = store.clone();
        async move {
            let lease = take(&store, format!("camera:{caller}"), caller).await?;
            anyhow::ensure!(store.release(lease).await?, "not released");
            Ok(())
        }
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

async fn renewals(server: &Server, callers: usize, many: usize) -> Result<Work> {
    let statements = [numbered(SEQUENCE, ACQUIRE), RENEW.to_owned()];
    let hands = connect(server, "hand", callers, &statements).await?;
    let mut held = Vec::new();
    for (caller, hand) in hands.iter().enumerate() {
        let name = format!("runner-{caller}");
        let keys: Vec<String> = (0..many)
            .map(|it| format!("kept:{callers}-{caller}-{it}"))
            .collect();
        let mut tokens: Vec<i64> = Vec::new();
        for key in &keys {
            let row = hand
                .client
                .query_one(&hand.statements[0], &[key, &name])
                .await?;
            tokens.push(row.get(0));
        }
        held.push((keys, tokens, name));
    }
    let held = Arc::new(held);
    Ok(work(move |caller, _| {
        let (hands, held) = (hands.clone(), held.clone());
        async move {
            let Hand { client, statements } = &hands[caller];
            let (keys, tokens, name) = &held[caller];
            let rows = client.query(&statements[1], &[keys, tokens, name]).await?;
            anyhow::ensure!(rows.len() == keys.len(), "all are kept");
            Ok(())
        }
    }))
}

async fn our_renewals(store: &Arc<Postgres>, callers: usize, many: usize) -> Result<Work> {
    let mut held = Vec::new();
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
        held.push(Renew {
            holder: holder(caller)?,
            leases: Renewals::These(leases),
        });
    }
    let (store, held) = (store.clone(), Arc::new(held));
    Ok(work(move |caller, _| {
        let (store, held) = (store.clone(), held.clone());
        async move {
            let renewed = store.renew(held[caller].clone()).await?;
            anyhow::ensure!(renewed.iter().all(|it| it.outcome.is_ok()), "all are kept");
            Ok(())
        }
    }))
}
