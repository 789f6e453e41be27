//! Holders that renew at their own pace, and what that costs their server.

use std::time::Duration;

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use leasehold_bench::{
    rounds::{Callers, driver},
    usage::Processes,
};
use tokio::time::{Instant, MissedTickBehavior};

/// What keeping them cost.
pub struct Kept {
    turns: u64,
    seconds: f64,
    server_cpu: f64,
    driver_cpu: f64,
    latency: Histogram<u64>,
    resident: u64,
}

impl Kept {
    /// As numbers of a row; each turn renewed so many leases.
    pub fn numbers(&self, leases: usize) -> Vec<(&'static str, f64)> {
        let renewals = (self.turns * leases as u64) as f64;
        let quantile = |quantile| self.latency.value_at_quantile(quantile) as f64;
        vec![
            ("operations_per_second", renewals / self.seconds),
            ("p50_us", quantile(0.5)),
            ("p99_us", quantile(0.99)),
            ("p999_us", quantile(0.999)),
            ("server_cores", self.server_cpu / self.seconds),
            ("driver_cores", self.driver_cpu / self.seconds),
            (
                "server_cpu_per_100k",
                self.server_cpu * 1e5 / renewals.max(1.0),
            ),
            ("resident_bytes", self.resident as f64),
        ]
    }
}

/// Each caller does so many turns in every interval, at a place of its own in it.
pub async fn keep(
    callers: Callers,
    turns: usize,
    server: &Processes,
    every: Duration,
    span: Duration,
) -> Result<Kept> {
    let this = Processes::this();
    let count = u32::try_from(callers.len().max(1))?;
    let before = (server.cpu_seconds()?, this.cpu_seconds()?);
    let began = Instant::now();
    let tasks: Vec<_> = callers
        .into_iter()
        .enumerate()
        .map(|(number, mut caller)| {
            driver().spawn(async move {
                let first = began + every * u32::try_from(number)? / count;
                let mut ticks = tokio::time::interval_at(first, every);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                let mut latency = Histogram::<u64>::new(3)?;
                loop {
                    tokio::select! {
                        _ = ticks.tick() => {}
                        () = tokio::time::sleep_until(began + span) => return anyhow::Ok(latency),
                    }
                    for _ in 0..turns {
                        let sent = Instant::now();
                        caller.turn().await?;
                        latency.record(u64::try_from(sent.elapsed().as_micros())?.max(1))?;
                    }
                }
            })
        })
        .collect();
    let mut latency = Histogram::<u64>::new(3)?;
    for task in tasks {
        latency.add(&task.await.context("a caller panicked")??)?;
    }
    Ok(Kept {
        turns: latency.len(),
        seconds: began.elapsed().as_secs_f64(),
        server_cpu: server.cpu_seconds()? - before.0,
        driver_cpu: this.cpu_seconds()? - before.1,
        latency,
        resident: server.resident_bytes()?,
    })
}
