//! W2: renew held leases.

use anyhow::Result;
use leasehold_bench::{rounds::compare, usage::Processes};

use super::Sides;
use crate::{
    Plan,
    peers::{
        HELD_SECONDS,
        etcd::{self, Etcd},
        leasehold_http::{Leasehold, Store as Where},
        leasehold_store::Store,
        leasehold_stream,
        postgres::{self, Postgres},
        redis::{self, Aof, Redis},
    },
    results::Results,
};

/// How many connections or streams each peer may use at the same time.
const LANES: usize = 4;
/// How many holders there are where there are many.
const HOLDERS: usize = 100;

pub async fn run(plan: &Plan, results: &mut Results) -> Result<()> {
    for leases in plan
        .length
        .pick(vec![10_000], vec![10_000, 100_000], vec![10_000, 100_000])
    {
        let mut sides = Sides::new(plan);
        let redis = Redis::start(Aof::Always).await?;
        redis
            .fill("held", leases, "holder-0", HELD_SECONDS * 1000)
            .await?;
        let callers = redis.renewals("held", leases, "holder-0", LANES);
        let name = "Redis, AOF always, pipelined by 100";
        sides
            .over_sockets(name, redis.processes(), redis::PIPELINE, callers)
            .await?;
        let volatile = Redis::start(Aof::Off).await?;
        volatile
            .fill("held", leases, "holder-0", HELD_SECONDS * 1000)
            .await?;
        let callers = volatile.renewals("held", leases, "holder-0", LANES);
        let name = "Redis, no AOF, pipelined by 100";
        sides
            .over_sockets(name, volatile.processes(), redis::PIPELINE, callers)
            .await?;
        let etcd = Etcd::start().await?;
        if plan.wants("etcd, keep-alive streams") {
            let ids = etcd.fill("held", leases, "holder-0", HELD_SECONDS).await?;
            let callers = etcd.renewals(&ids, LANES);
            let name = "etcd, keep-alive streams";
            sides
                .over_sockets(name, etcd.processes(), etcd::WINDOW, callers)
                .await?;
        }
        let postgres = Postgres::start().await?;
        postgres.fill("held", leases, "").await?;
        let callers = postgres.renewals("held", LANES);
        let name = "PostgreSQL, batches of 1,000";
        sides
            .over_sockets(name, postgres.processes(), postgres::BATCH, callers)
            .await?;
        let server = Leasehold::start(Where::Durable).await?;
        server.fill("held", leases, 1).await?;
        let callers = server.renewals(1, 1);
        let name = "Leasehold HTTP, one holder";
        sides
            .over_sockets(name, server.processes(), leases, callers)
            .await?;
        let callers = leasehold_stream::renewals(server.address, 1, None);
        let name = "Leasehold stream, one holder";
        sides
            .over_sockets(name, server.processes(), leases, callers)
            .await?;
        let many = Leasehold::start(Where::Durable).await?;
        many.fill("held", leases, HOLDERS).await?;
        let callers = many.renewals(HOLDERS, LANES);
        let name = "Leasehold HTTP, 100 holders";
        sides
            .over_sockets(name, many.processes(), leases / HOLDERS, callers)
            .await?;
        let callers = leasehold_stream::renewals(many.address, HOLDERS, None);
        let name = "Leasehold stream, 100 holders";
        sides
            .over_sockets(name, many.processes(), leases / HOLDERS, callers)
            .await?;
        for (name, holders) in [
            ("Leasehold in process, one holder", 1),
            ("Leasehold in process, 100 holders", HOLDERS),
        ] {
            let store = Store::durable().await?;
            store.fill("held", leases, holders).await?;
            let callers = async { store.renewals(holders, LANES.min(holders)) };
            sides
                .inside(name, Processes::this(), leases / holders, callers)
                .await?;
        }
        let figures = compare(&mut sides.sides, plan.length.pace()).await?;
        results.add_figures("W2", &format!("{leases} leases"), &figures);
    }
    Ok(())
}
