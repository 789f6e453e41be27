//! W6: the holder is killed, and somebody waits.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use leasehold_bench::rounds::driver;
use tokio::time::Instant;

use crate::{
    Plan,
    peers::{
        SOON,
        etcd::{self, Etcd},
        holder::{self, Way},
        leasehold_http::{Leasehold, Store as Where},
        lock::{Advisory, Etcd as EtcdLock, Lock, OverHttp, Redis as RedisLock},
        postgres::Postgres,
        redis::{Aof, Redis},
    },
    results::Results,
};

pub async fn run(plan: &Plan, results: &mut Results) -> Result<()> {
    let redis = Redis::start(Aof::Always).await?;
    let etcd = Etcd::start().await?;
    let postgres = Postgres::start().await?;
    let server = Leasehold::start(Where::Durable).await?;
    let ways = [
        (
            "PostgreSQL advisory lock",
            Way::Advisory,
            postgres.address(),
        ),
        ("Redis, polling", Way::Redis, redis.address()),
        ("etcd lock service", Way::Etcd, etcd.address()),
        ("Leasehold, no stream", Way::Http, server.address),
        (
            "Leasehold, stream (linger 250 ms)",
            Way::Stream,
            server.address,
        ),
    ];
    let mut taken: Vec<_> = ways
        .iter()
        .map(|_| Histogram::<u64>::new(3))
        .collect::<Result<_, _>>()?;
    for round in 0..plan.length.pick(2, 8, 20) {
        // Those that wait for a ttl do so at the same time: nothing else happens meanwhile.
        let rounds = ways
            .iter()
            .enumerate()
            .map(|(place, (name, way, address))| async move {
                if !plan.wants(name) {
                    return Ok(None);
                }
                let number = round * ways.len() + place;
                let taken = take_over(*way, *address, number).await;
                anyhow::Ok(Some(taken.with_context(|| (*name).to_owned())?))
            });
        for (place, micros) in futures_util::future::try_join_all(rounds)
            .await?
            .into_iter()
            .enumerate()
        {
            if let Some(micros) = micros {
                taken[place].record(micros)?;
            }
        }
    }
    for ((name, ..), taken) in ways.iter().zip(taken) {
        if taken.is_empty() {
            continue;
        }
        let numbers = [
            ("p50_ms", taken.value_at_quantile(0.5) as f64 / 1000.0),
            ("max_ms", taken.max() as f64 / 1000.0),
        ];
        results.add("W6", "ttl 5 s", name, numbers);
    }
    Ok(())
}

/// Kills a holder. How long until the next one has it, in µs.
async fn take_over(way: Way, address: SocketAddr, number: usize) -> Result<u64> {
    let mut first = holder::start(way, address, number).await?;
    let key = holder::key(number);
    let next = driver().spawn(async move {
        let mut lock: Box<dyn Lock> = match way {
            Way::Redis => Box::new(RedisLock::open(address, &key, "second").await?),
            Way::Etcd => {
                let client = etcd::Client::open(address).await?;
                Box::new(EtcdLock::open(client, &key, 60).await?)
            }
            Way::Advisory => {
                let client = Postgres::connect_to(address).await?;
                Box::new(Advisory::open(client, i64::try_from(number)?).await?)
            }
            Way::Http | Way::Stream => Box::new(OverHttp::open(address, &key, "second").await?),
        };
        lock.lock().await?;
        let at = Instant::now();
        lock.unlock().await?;
        anyhow::Ok(at)
    });
    // Long enough for the next one to be in the queue, and another time in each round: a renewal must
    // not always be equally old.
    let wait = std::time::Duration::from_millis(700 + number as u64 * 331 % 1_600);
    tokio::time::sleep(wait).await;
    let killed = Instant::now();
    tokio::task::spawn_blocking(move || first.kill9()).await?;
    let at = tokio::time::timeout(SOON, next).await???;
    Ok(u64::try_from((at - killed).as_micros())?.max(1))
}
