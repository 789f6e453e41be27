//! W9: what a holder costs in fleets of different sizes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use leasehold_bench::rounds::driver;

use super::{entered, fleet::keep, w7::EVERY};
use crate::{
    Plan,
    peers::{
        leasehold_http::{Leasehold, Store as Where},
        leasehold_stream,
    },
    results::Results,
};

pub async fn run(plan: &Plan, results: &mut Results) -> Result<()> {
    let span = Duration::from_secs(plan.length.pick(4, 15, 30));
    let sizes = plan.length.pick(
        vec![10, 1_000],
        vec![10, 100, 1_000, 10_000],
        vec![10, 100, 1_000, 10_000],
    );
    for holders in sizes {
        let setting = format!("{holders} holders, one lease each");
        for (name, streamed) in [
            ("Leasehold, plain HTTP", false),
            ("Leasehold, streams", true),
        ] {
            if !plan.wants(name) {
                continue;
            }
            let server = Leasehold::start(Where::Durable).await?;
            server.fill("held", holders, holders).await?;
            let bytes = Arc::new(AtomicU64::new(0));
            let callers = async {
                if streamed {
                    leasehold_stream::renewals(server.address, holders, Some(&bytes)).await
                } else {
                    server
                        .counted_renewals(holders, holders, Some(&bytes))
                        .await
                }
            };
            let callers = match entered(driver(), callers).await {
                Ok(callers) => callers,
                Err(error) => {
                    eprintln!("{name} is left out: {error:#}");
                    continue;
                }
            };
            let kept = keep(callers, 1, &server.processes(), EVERY, span).await?;
            let mut numbers = kept.numbers(1);
            let moved = bytes.load(Ordering::Relaxed) as f64;
            let per_holder = moved / span.as_secs_f64() / holders as f64;
            numbers.push(("bytes_per_holder", per_holder));
            results.add("W9", &setting, name, numbers);
        }
    }
    Ok(())
}
