//! W5: how late 10,000 expiries at the same moment are seen by somebody who watches.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use lease::{Clock as _, UnixMillis};
use leasehold_api::{Time, paths};
use leasehold_bench::rounds::driver;
use leasehold_clock::System;
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use crate::{
    Plan,
    peers::{
        HELD_SECONDS,
        etcd::{self, Etcd},
        leasehold_http::{self, Leasehold, Store as Where, TOKEN},
        redis::{Aof, Connection, Redis, Reply},
        wire::Wire,
    },
    results::Results,
};

const EXPIRING: usize = 10_000;
/// How long the leases take to expire: long enough to take them all before.
const AHEAD: Duration = Duration::from_secs(4);
/// How long after that moment the last is waited for. What is not seen by then counts as that late: Redis looks for
/// what has expired at random, and beside a million other keys takes many minutes to find it all.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is read of an event.
#[derive(serde::Deserialize)]
struct Due {
    expires_at: Time,
}

/// How late each was, in ms.
type Lateness = Histogram<u64>;

pub async fn run(plan: &Plan, results: &mut Results) -> Result<()> {
    for others in plan
        .length
        .pick(vec![0], vec![0, 1_000_000], vec![0, 1_000_000])
    {
        let setting = match others {
            0 => "nothing else live".to_owned(),
            _ => format!("{others} others live"),
        };
        let mut add = |side: &str, mut late: Lateness| {
            let unseen = EXPIRING as u64 - late.len();
            if unseen > 0 {
                late.record_n(PATIENCE.as_millis() as u64, unseen)?;
            }
            let quantile = |quantile| late.value_at_quantile(quantile) as f64;
            let numbers = [
                ("late_p50_ms", quantile(0.5)),
                ("late_p99_ms", quantile(0.99)),
                ("late_max_ms", late.max() as f64),
                ("unseen", unseen as f64),
            ];
            results.add("W5", &setting, side, numbers);
            anyhow::Ok(())
        };
        if plan.wants("Leasehold") {
            let server = Leasehold::start(Where::Durable).await?;
            server.fill("other", others, 1_000).await?;
            add("Leasehold", ours(&server).await?)?;
        }
        if plan.wants("Redis") {
            let redis = Redis::start(Aof::Always).await?;
            let ttl_ms = HELD_SECONDS * 1000;
            redis.fill("other", others, "holder", ttl_ms).await?;
            add("Redis, keyspace events", of_redis(&redis).await?)?;
        }
        // A million leases take etcd a quarter of an hour to grant, and even these some seconds.
        if plan.wants("etcd") && others == 0 && plan.length.pick(false, true, true) {
            let etcd = Etcd::start().await?;
            add("etcd, watch", of_etcd(&etcd).await?)?;
        }
    }
    Ok(())
}

async fn ours(server: &Leasehold) -> Result<Lateness> {
    let (ready, watched) = oneshot::channel();
    let watcher = driver().spawn(watch(server.address, ready));
    watched.await.context("the watcher has failed")?;
    let moment = System.unix().plus(AHEAD.as_millis() as u64);
    leasehold_http::fill_until(server.address, "short", EXPIRING, moment).await?;
    finish(watcher).await
}

/// Reads the stream of events. HTTP/1.0, so that it comes as it is and not in chunks.
async fn watch(address: SocketAddr, ready: oneshot::Sender<()>) -> Result<Lateness> {
    let mut wire = Wire::open(address).await?;
    let request = format!(
        "GET {}?kind=short&type=lease_expired&renewals=false HTTP/1.0\r\nhost: {address}\r\nauthorization: Bearer {TOKEN}\r\n\r\n",
        paths::EVENT_STREAM
    );
    wire.send(request.as_bytes()).await?;
    wire.fill().await?;
    ensure!(
        wire.input().starts_with(b"HTTP/1.0 200") || wire.input().starts_with(b"HTTP/1.1 200"),
        "no stream: {}",
        String::from_utf8_lossy(wire.input())
    );
    let _ = ready.send(());
    let deadline = Instant::now() + AHEAD + PATIENCE;
    let mut late = Lateness::new(3)?;
    while late.len() < EXPIRING as u64 {
        let Some(end) = wire.input().iter().position(|byte| *byte == b'\n') else {
            match timeout_at(deadline, wire.fill()).await {
                Ok(filled) => filled?,
                Err(_) => break,
            }
            continue;
        };
        let line = std::str::from_utf8(&wire.input()[..end])?;
        if let Some(data) = line.strip_prefix("data:")
            && let Ok(due) = serde_json::from_str::<Due>(data)
        {
            late.record(System.unix().since(due.expires_at.0))?;
        }
        wire.advance(end + 1);
    }
    Ok(late)
}

async fn of_redis(redis: &Redis) -> Result<Lateness> {
    let (ready, watched) = oneshot::channel();
    let moment = System.unix().plus(AHEAD.as_millis() as u64);
    let address = redis.address();
    let watcher = driver().spawn(async move {
        let mut connection = Connection::open(address).await?;
        connection
            .call(&["CONFIG", "SET", "notify-keyspace-events", "Ex"])
            .await?;
        connection
            .call(&["SUBSCRIBE", "__keyevent@0__:expired"])
            .await?;
        let _ = ready.send(());
        let deadline = Instant::now() + AHEAD + PATIENCE;
        let mut late = Lateness::new(3)?;
        while late.len() < EXPIRING as u64 {
            let Ok(reply) = timeout_at(deadline, connection.reply()).await else {
                break;
            };
            if matches!(reply?, Reply::List(_)) {
                late.record(System.unix().since(moment))?;
            }
        }
        Ok(late)
    });
    watched.await.context("the watcher has failed")?;
    let mut connection = Connection::open(address).await?;
    let at = moment.get().to_string();
    for number in 0..EXPIRING {
        let key = format!("short:{number}");
        connection.queue(&["SET", &key, "holder", "NX", "PXAT", &at]);
    }
    connection.send().await?;
    for _ in 0..EXPIRING {
        connection.reply().await?;
    }
    finish(watcher).await
}

async fn of_etcd(etcd: &Etcd) -> Result<Lateness> {
    const PREFIX: &str = "short/";
    const TTL_SECONDS: u64 = 12;
    let mut client = etcd.connect().await?;
    let mut watch = client.watch(PREFIX).await?;
    // Each was due its ttl after it was granted.
    let held = etcd.fill("short", EXPIRING, "holder", TTL_SECONDS).await?;
    let watcher = tokio::spawn(async move {
        let due: HashMap<Vec<u8>, UnixMillis> = held
            .into_iter()
            .map(|held| (held.key.into_bytes(), held.expires_at))
            .collect();
        let deadline = Instant::now() + Duration::from_secs(TTL_SECONDS) + PATIENCE;
        let mut late = Lateness::new(3)?;
        while late.len() < EXPIRING as u64 {
            let Ok(answer) = timeout_at(deadline, watch.next()).await else {
                break;
            };
            let now = System.unix();
            for key in etcd::deleted(&answer?) {
                if let Some(due) = due.get(key.as_ref()) {
                    late.record(now.since(*due))?;
                }
            }
        }
        Ok(late)
    });
    finish(watcher).await
}

async fn finish(watcher: JoinHandle<Result<Lateness>>) -> Result<Lateness> {
    watcher.await.context("the watcher panicked")?
}
