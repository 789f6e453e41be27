//! W7: a fleet that keeps what it has: 200 holders, 500 leases each, a ttl of 10 s.

use std::time::Duration;

use anyhow::Result;
use leasehold_bench::rounds::driver;

use super::{entered, fleet::keep};
use crate::{
    Plan,
    peers::{
        HELD_SECONDS,
        etcd::{self, Etcd},
        leasehold_http::{Leasehold, Store as Where},
        leasehold_stream,
        postgres::{self, Postgres},
        redis::{self, Aof, Redis},
    },
    results::Results,
};

const HOLDERS: usize = 200;
const LEASES: usize = 500;
const ALL: usize = HOLDERS * LEASES;
/// A third of the ttl.
pub const EVERY: Duration = Duration::from_millis(3_333);
const SETTING: &str = "100,000 leases kept";

pub async fn run(plan: &Plan, results: &mut Results) -> Result<()> {
    let span = Duration::from_secs(plan.length.pick(4, 20, 60));
    let name = "Leasehold, plain HTTP";
    if plan.wants(name) {
        let server = Leasehold::start(Where::Durable).await?;
        server.fill("held", ALL, HOLDERS).await?;
        let callers = entered(driver(), server.renewals(HOLDERS, HOLDERS)).await?;
        let kept = keep(callers, 1, &server.processes(), EVERY, span).await?;
        results.add("W7", SETTING, name, kept.numbers(LEASES));
    }
    let name = "Leasehold, streams";
    if plan.wants(name) {
        let server = Leasehold::start(Where::Durable).await?;
        server.fill("held", ALL, HOLDERS).await?;
        let callers = leasehold_stream::renewals(server.address, HOLDERS, None);
        match entered(driver(), callers).await {
            Ok(callers) => {
                let kept = keep(callers, 1, &server.processes(), EVERY, span).await?;
                results.add("W7", SETTING, name, kept.numbers(LEASES));
            }
            Err(error) => eprintln!("{name} is left out: {error:#}"),
        }
    }
    let name = "Redis, AOF always, pipelined by 100";
    if plan.wants(name) {
        let redis = Redis::start(Aof::Always).await?;
        redis
            .fill("held", ALL, "holder", HELD_SECONDS * 1000)
            .await?;
        let callers = redis.renewals("held", ALL, "holder", HOLDERS);
        let callers = entered(driver(), callers).await?;
        let turns = LEASES / redis::PIPELINE;
        let kept = keep(callers, turns, &redis.processes(), EVERY, span).await?;
        results.add("W7", SETTING, name, kept.numbers(redis::PIPELINE));
    }
    let name = "PostgreSQL, batches of 1,000";
    if plan.wants(name) {
        let postgres = Postgres::start().await?;
        postgres.fill("held", ALL, "").await?;
        // A batch is the leases of two holders.
        let callers = postgres.renewals("held", ALL / postgres::BATCH);
        let callers = entered(driver(), callers).await?;
        let kept = keep(callers, 1, &postgres.processes(), EVERY, span).await?;
        results.add("W7", SETTING, name, kept.numbers(postgres::BATCH));
    }
    let name = "etcd, a lease per key";
    // Granting them takes longer than the rest.
    if plan.wants(name) && plan.length.pick(false, true, true) {
        let etcd = Etcd::start().await?;
        let held = etcd.fill("held", ALL, "holder", HELD_SECONDS).await?;
        let callers = entered(driver(), etcd.renewals(&held, HOLDERS)).await?;
        let turns = LEASES / etcd::WINDOW;
        let kept = keep(callers, turns, &etcd.processes(), EVERY, span).await?;
        results.add("W7", SETTING, name, kept.numbers(etcd::WINDOW));
    }
    Ok(())
}
