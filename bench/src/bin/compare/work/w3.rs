//! W3: many clients, few keys, each held for a moment.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use futures_util::future::BoxFuture;
use hdrhistogram::Histogram;
use leasehold_bench::{
    rounds::{Caller, Callers, Pace, compare},
    usage::Processes,
};
use tokio::time::Instant;

use super::Sides;
use crate::{
    Plan,
    peers::{
        etcd::Etcd,
        leasehold_http::{Leasehold, Store as Where},
        leasehold_store::Store,
        leasehold_stream,
        lock::{Advisory, Etcd as EtcdLock, Inside, Lock, OverHttp, Pause, Redis as RedisLock},
        postgres::Postgres,
        redis::{Aof, Redis},
    },
    results::Results,
};

const CLIENTS: usize = 64;
pub const KEYS: usize = 10;
/// How long a lock is held.
pub const HELD: Duration = Duration::from_millis(1);
const SETTING: &str = "64 clients, 10 keys";

pub async fn run(plan: &Plan, results: &mut Results) -> Result<()> {
    let redis = Redis::start(Aof::Always).await?;
    let etcd = Etcd::start().await?;
    let postgres = Postgres::start().await?;
    let durable = Leasehold::start(Where::Durable).await?;
    let memory = Leasehold::start(Where::Memory).await?;
    let store = Store::durable().await?;
    let mut sides = Sides::new(plan);
    let mut waits: HashMap<&str, Arc<Mutex<Waits>>> = HashMap::new();

    let name = "Redis, polling";
    let callers = async {
        let mut all: Vec<Box<dyn Lock>> = Vec::new();
        for client in 0..CLIENTS {
            let (key, owner) = names(client);
            all.push(Box::new(
                RedisLock::open(redis.address(), &key, &owner).await?,
            ));
        }
        Ok(contend(all, &mut waits, name))
    };
    sides
        .over_sockets(name, redis.processes(), 1, callers)
        .await?;
    let name = "PostgreSQL advisory lock";
    let callers = async {
        let mut all: Vec<Box<dyn Lock>> = Vec::new();
        for client in 0..CLIENTS {
            let key = i64::try_from(client % KEYS)?;
            all.push(Box::new(
                Advisory::open(postgres.connect().await?, key).await?,
            ));
        }
        Ok(contend(all, &mut waits, name))
    };
    sides
        .over_sockets(name, postgres.processes(), 1, callers)
        .await?;
    let name = "etcd lock service";
    let callers = async {
        let mut all: Vec<Box<dyn Lock>> = Vec::new();
        let client = etcd.connect().await?;
        for number in 0..CLIENTS {
            let (key, _) = names(number);
            all.push(Box::new(EtcdLock::open(client.clone(), &key, 3_600).await?));
        }
        Ok(contend(all, &mut waits, name))
    };
    sides
        .over_sockets(name, etcd.processes(), 1, callers)
        .await?;
    for (name, server) in [
        ("Leasehold HTTP, waiting", &durable),
        ("Leasehold HTTP, waiting, in memory", &memory),
    ] {
        let callers = async {
            let mut all: Vec<Box<dyn Lock>> = Vec::new();
            for client in 0..CLIENTS {
                let (key, owner) = names(client);
                all.push(Box::new(
                    OverHttp::open(server.address, &key, &owner).await?,
                ));
            }
            Ok(contend(all, &mut waits, name))
        };
        sides
            .over_sockets(name, server.processes(), 1, callers)
            .await?;
    }
    let name = "Leasehold stream, waiting";
    let callers = async {
        let mut all: Vec<Box<dyn Lock>> = Vec::new();
        for client in 0..CLIENTS {
            let (key, owner) = names(client);
            let lock = leasehold_stream::Waiting::open(durable.address, &key, &owner);
            all.push(Box::new(lock.await?));
        }
        Ok(contend(all, &mut waits, name))
    };
    sides
        .over_sockets(name, durable.processes(), 1, callers)
        .await?;
    let name = "Leasehold in process, waiting";
    let callers = async {
        let mut all: Vec<Box<dyn Lock>> = Vec::new();
        for client in 0..CLIENTS {
            let (key, owner) = names(client);
            all.push(Box::new(Inside::new(store.clone(), &key, &owner)?));
        }
        Ok(contend(all, &mut waits, name))
    };
    sides.inside(name, Processes::this(), 1, callers).await?;

    let pace = Pace {
        round: Duration::from_millis(plan.length.pick(400, 2_000, 5_000)),
        rounds: 3,
    };
    let figures = compare(&mut sides.sides, pace).await?;
    results.add_figures("W3", SETTING, &figures);
    for row in results.rows.iter_mut().filter(|row| row.work == "W3") {
        if let Some(waits) = waits.get(row.side.as_str()) {
            let waits = waits.lock().unwrap_or_else(PoisonError::into_inner);
            row.numbers.extend(waits.numbers()?);
        }
    }
    Ok(())
}

fn names(client: usize) -> (String, String) {
    (format!("key-{}", client % KEYS), format!("client-{client}"))
}

/// How long each client of a side waited for its locks.
#[derive(Default)]
struct Waits(Vec<Option<Histogram<u64>>>);

impl Waits {
    fn numbers(&self) -> Result<[(&'static str, f64); 2]> {
        let clients: Vec<&Histogram<u64>> = self.0.iter().flatten().collect();
        let mut all = Histogram::<u64>::new(3)?;
        let (mut least, mut worst) = (u64::MAX, 0);
        for client in &clients {
            all.add(*client)?;
            least = least.min(client.len());
            worst = worst.max(client.value_at_quantile(0.99));
        }
        let mean_count = all.len() as f64 / clients.len().max(1) as f64;
        Ok([
            ("slowest_share", least as f64 / mean_count),
            ("worst_p99_to_mean", worst as f64 / all.mean().max(1.0)),
        ])
    }
}

/// Callers that contend for these locks.
fn contend(
    locks: Vec<Box<dyn Lock>>,
    waits: &mut HashMap<&'static str, Arc<Mutex<Waits>>>,
    name: &'static str,
) -> Callers {
    let shared = Arc::new(Mutex::new(Waits(vec![None; locks.len()])));
    waits.insert(name, shared.clone());
    let mut all: Callers = Vec::new();
    for (number, lock) in locks.into_iter().enumerate() {
        all.push(Box::new(Contender {
            lock,
            pause: Pause::new(),
            number,
            waits: shared.clone(),
        }));
    }
    all
}

struct Contender {
    lock: Box<dyn Lock>,
    pause: Pause,
    number: usize,
    waits: Arc<Mutex<Waits>>,
}

impl Caller for Contender {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let asked = Instant::now();
            self.lock.lock().await?;
            let waited = u64::try_from(asked.elapsed().as_micros())?;
            self.pause.wait(HELD).await?;
            self.lock.unlock().await?;
            let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
            let mine = waits.0.get_mut(self.number).context("a client too many")?;
            if mine.is_none() {
                *mine = Some(Histogram::new(3)?);
            }
            if let Some(mine) = mine {
                mine.record(waited.max(1))?;
            }
            Ok(())
        })
    }
}
