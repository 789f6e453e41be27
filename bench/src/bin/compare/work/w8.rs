//! W8: what a cycle costs while more and more leases are live.

use anyhow::Result;
use leasehold_bench::rounds::compare;

use super::Sides;
use crate::{
    Plan,
    peers::{
        HELD_SECONDS,
        leasehold_http::{Leasehold, Store as Where},
        redis::{Aof, Redis},
    },
    results::Results,
};

/// Enough that nobody is alone, few enough that queues say little.
const CLIENTS: usize = 16;

pub async fn run(plan: &Plan, results: &mut Results) -> Result<()> {
    let durable = Leasehold::start(Where::Durable).await?;
    let memory = Leasehold::start(Where::Memory).await?;
    let redis = Redis::start(Aof::Always).await?;
    let powers = plan.length.pick(3..=5, 3..=6, 3..=6);
    for power in powers {
        let leases = 10_usize.pow(power);
        // What each step adds is of its own kind: the leases of the steps before stay.
        let more = leases - if power == 3 { 0 } else { leases / 10 };
        let kind = format!("step-{power}");
        let mut sides = Sides::new(plan);
        redis
            .fill(&kind, more, "holder", HELD_SECONDS * 1000)
            .await?;
        sides
            .over_sockets(
                "Redis, AOF always",
                redis.processes(),
                1,
                redis.cycles(CLIENTS),
            )
            .await?;
        for (name, server) in [
            ("Leasehold HTTP, durable", &durable),
            ("Leasehold HTTP, in memory", &memory),
        ] {
            server.fill(&kind, more, more.div_ceil(1_000)).await?;
            sides
                .over_sockets(name, server.processes(), 1, server.cycles(CLIENTS))
                .await?;
        }
        let figures = compare(&mut sides.sides, plan.length.pace()).await?;
        results.add_figures("W8", &format!("{leases} leases live"), &figures);
    }
    Ok(())
}
