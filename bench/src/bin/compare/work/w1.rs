//! W1: acquire and release.

use anyhow::Result;
use leasehold_bench::{rounds::compare, usage::Processes};
use leasehold_testkit::Dir;

use super::Sides;
use crate::{
    Plan,
    peers::{
        echo::{Echo, Kind, Synced},
        etcd::Etcd,
        leasehold_http::{self, Leasehold, Store as Where},
        leasehold_store::Store,
        leasehold_stream,
        postgres::Postgres,
        redis::{Aof, Redis},
    },
    results::Results,
};

pub async fn run(plan: &Plan, results: &mut Results) -> Result<()> {
    let servers = Servers::start().await?;
    let mut numbers = plan.clients.clone();
    if numbers.is_empty() {
        numbers = plan
            .length
            .pick(vec![1, 16, 256], vec![1, 16, 64, 256], vec![1, 16, 64, 256]);
    }
    for clients in numbers {
        let mut sides = Sides::new(plan);
        servers.join(&mut sides, clients).await?;
        let figures = compare(&mut sides.sides, plan.length.pace()).await?;
        results.add_figures("W1", &format!("{clients} clients"), &figures);
    }
    Ok(())
}

struct Servers {
    dir: Dir,
    echo: Echo,
    json: Echo,
    redis: [(&'static str, Redis); 3],
    etcd: Etcd,
    postgres: Postgres,
    http: [(&'static str, Leasehold); 4],
    stores: [(&'static str, Store, Processes); 4],
    /// The store of a server.
    _in_redis: Redis,
}

impl Servers {
    async fn start() -> Result<Self> {
        let off = Redis::start(Aof::Off).await?;
        let postgres = Postgres::start().await?;
        postgres.prepare_by_hand().await?;
        let in_postgres = Leasehold::start(Where::At(postgres.store_url("served"))).await?;
        let in_redis = Redis::start(Aof::Off).await?;
        let this = Processes::this();
        Ok(Self {
            dir: Dir::new("bench-syncs"),
            echo: Echo::start(Kind::Echo).await?,
            json: Echo::start(Kind::Json).await?,
            etcd: Etcd::start().await?,
            http: [
                (
                    "Leasehold HTTP, durable",
                    Leasehold::start(Where::Durable).await?,
                ),
                (
                    "Leasehold HTTP, in memory",
                    Leasehold::start(Where::Memory).await?,
                ),
                ("Leasehold HTTP, on PostgreSQL", in_postgres),
                (
                    "Leasehold HTTP, on Redis",
                    Leasehold::start(Where::At(in_redis.url())).await?,
                ),
            ],
            stores: [
                (
                    "Leasehold in process, durable",
                    Store::durable().await?,
                    this.clone(),
                ),
                (
                    "Leasehold in process, in memory",
                    Store::memory()?,
                    this.clone(),
                ),
                (
                    "Leasehold in process, on PostgreSQL",
                    Store::postgres(&postgres.store_url("ours")).await?,
                    postgres.processes().and(&this),
                ),
                (
                    "Leasehold in process, on Redis",
                    Store::redis(&off.url()).await?,
                    off.processes().and(&this),
                ),
            ],
            redis: [
                ("Redis, no AOF", off),
                ("Redis, AOF everysec", Redis::start(Aof::EverySecond).await?),
                ("Redis, AOF always", Redis::start(Aof::Always).await?),
            ],
            postgres,
            _in_redis: in_redis,
        })
    }

    async fn join(&self, sides: &mut Sides<'_>, clients: usize) -> Result<()> {
        let this = Processes::this();
        let echo = &self.echo;
        sides
            .over_sockets("loopback echo", echo.processes(), 1, echo.callers(clients))
            .await?;
        let json = leasehold_http::cycles(self.json.address, clients);
        sides
            .over_sockets("bare HTTP+JSON", self.json.processes(), 1, json)
            .await?;
        if clients == 1 {
            let file = std::fs::File::create(self.dir.join("syncs"))?;
            let callers = async { Ok(vec![Box::new(Synced(file)) as _]) };
            sides
                .over_sockets("fdatasync", this.clone(), 1, callers)
                .await?;
        }
        for (name, redis) in &self.redis {
            let callers = redis.cycles(clients);
            sides
                .over_sockets(name, redis.processes(), 1, callers)
                .await?;
        }
        let etcd = &self.etcd;
        sides
            .over_sockets("etcd", etcd.processes(), 1, etcd.cycles(clients))
            .await?;
        let postgres = &self.postgres;
        for (name, synchronous) in [("PostgreSQL", true), ("PostgreSQL, async commit", false)] {
            let callers = postgres.cycles(clients, synchronous);
            sides
                .over_sockets(name, postgres.processes(), 1, callers)
                .await?;
        }
        for (name, server) in &self.http {
            sides
                .over_sockets(name, server.processes(), 1, server.cycles(clients))
                .await?;
        }
        for (server, own, shared) in [
            (
                &self.http[0].1,
                "Leasehold stream, durable",
                "Leasehold stream shared, durable",
            ),
            (
                &self.http[1].1,
                "Leasehold stream, in memory",
                "Leasehold stream shared, in memory",
            ),
        ] {
            let callers = leasehold_stream::cycles(server.address, clients);
            sides
                .over_sockets(own, server.processes(), 1, callers)
                .await?;
            let callers = leasehold_stream::shared_cycles(server.address, clients);
            sides
                .over_sockets(shared, server.processes(), 1, callers)
                .await?;
        }
        // Beside each store on a database, the same guarantees by hand with the same client library.
        let [(_, redis), ..] = &self.redis;
        let server = redis.processes().and(&this);
        let callers = redis.by_hand(clients);
        sides.inside("Redis by hand", server, 1, callers).await?;
        let server = postgres.processes().and(&this);
        let callers = postgres.by_hand(clients);
        sides
            .inside("PostgreSQL by hand", server, 1, callers)
            .await?;
        for (name, store, server) in &self.stores {
            let callers = async { store.cycles(clients) };
            sides.inside(name, server.clone(), 1, callers).await?;
        }
        Ok(())
    }
}
