//! Sides of a comparison, measured in turns: each side works for a short while, then the next one, and
//! again, so that a slow moment of the machine falls on all of them. A side's best round counts, and the
//! others say how far it spreads.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Context as _;
use futures_util::future::BoxFuture;
use hdrhistogram::Histogram;
use tokio::{runtime::Handle, time::Instant};

use crate::usage::Processes;

/// One of a side's callers. It does one piece of work after the other.
pub trait Caller: Send {
    /// Does one piece of work.
    fn turn(&mut self) -> BoxFuture<'_, anyhow::Result<()>>;
}

/// Callers, ready to work.
pub type Callers = Vec<Box<dyn Caller>>;

/// How it is measured.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long one round of one side takes.
    pub round: Duration,
    /// How many rounds each side works.
    pub rounds: usize,
}

/// One side of a comparison.
pub struct Side {
    /// Its name.
    pub name: String,
    /// Who works.
    pub callers: Callers,
    /// How many operations one turn is.
    pub operations: u64,
    /// The processes that serve it.
    pub server: Processes,
    /// Where its callers run: [`driver`] for those that talk over sockets.
    pub runtime: Handle,
}

/// What a side did.
#[derive(Clone)]
pub struct Figures {
    /// Its name.
    pub name: String,
    /// Operations per second of each round.
    pub rates: Vec<f64>,
    /// How long each turn took, in µs.
    pub latency: Histogram<u64>,
    /// Operations of all rounds.
    pub operations: u64,
    /// How long the rounds took.
    pub seconds: f64,
    /// Processor seconds of the server in the rounds.
    pub server_cpu: f64,
    /// Processor seconds of the driver in the rounds; none when the store is inside the driver.
    pub driver_cpu: Option<f64>,
    /// Resident memory of the server afterwards, in bytes.
    pub resident: u64,
}

impl Figures {
    fn of(side: &Side) -> anyhow::Result<Self> {
        Ok(Self {
            name: side.name.clone(),
            rates: Vec::new(),
            latency: Histogram::new(3)?,
            operations: 0,
            seconds: 0.0,
            server_cpu: 0.0,
            driver_cpu: (!side.server.has_this()).then_some(0.0),
            resident: 0,
        })
    }

    /// Operations per second in the best round.
    pub fn best(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// By how much of the best the worst round is below it: 0 to 1.
    pub fn spread(&self) -> f64 {
        let worst = self.rates.iter().copied().fold(f64::MAX, f64::min);
        let best = self.best();
        if best > 0.0 {
            (best - worst) / best
        } else {
            0.0
        }
    }

    /// Processor seconds of the server for 100,000 operations.
    pub fn cpu_per_100k(&self) -> f64 {
        self.server_cpu * 100_000.0 / (self.operations as f64).max(1.0)
    }
}

/// The runtime of those who drive servers over sockets: one thread that does nothing else, so that no
/// time goes into passing work between threads.
pub fn driver() -> Handle {
    static DRIVER: OnceLock<Handle> = OnceLock::new();
    DRIVER
        .get_or_init(|| {
            let (send, receive) = std::sync::mpsc::channel();
            std::thread::Builder::new()
                .name("driver".into())
                .spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .expect("a runtime can be made");
                    let _ = send.send(runtime.handle().clone());
                    runtime.block_on(std::future::pending::<()>());
                })
                .expect("a thread can be started");
            receive.recv().expect("the driver's thread has begun")
        })
        .clone()
}

/// Lets the sides work in turns. The first, short round of each is for warming up and does not count. A
/// side that fails is reported and left out.
pub async fn compare(sides: &mut Vec<Side>, pace: Pace) -> anyhow::Result<Vec<Figures>> {
    let mut figures = Vec::new();
    let mut place = 0;
    while place < sides.len() {
        let side = &mut sides[place];
        match round(side, pace.round / 4).await {
            Ok(_) => {
                figures.push(Figures::of(side)?);
                place += 1;
            }
            Err(error) => drop_out(sides, place, &error),
        }
    }
    let this = Processes::this();
    for _ in 0..pace.rounds {
        let mut place = 0;
        while place < sides.len() {
            let (side, figures_of) = (&mut sides[place], &mut figures[place]);
            let before = (side.server.cpu_seconds()?, this.cpu_seconds()?);
            let (seconds, latency) = match round(side, pace.round).await {
                Ok(done) => done,
                Err(error) => {
                    drop_out(sides, place, &error);
                    figures.remove(place);
                    continue;
                }
            };
            let operations = latency.len() * side.operations;
            figures_of.rates.push(operations as f64 / seconds);
            figures_of.operations += operations;
            figures_of.seconds += seconds;
            figures_of.latency.add(&latency)?;
            figures_of.server_cpu += side.server.cpu_seconds()? - before.0;
            if let Some(driver) = &mut figures_of.driver_cpu {
                *driver += this.cpu_seconds()? - before.1;
            }
            place += 1;
        }
    }
    for (side, figures) in sides.iter().zip(&mut figures) {
        figures.resident = side.server.resident_bytes()?;
    }
    Ok(figures)
}

fn drop_out(sides: &mut Vec<Side>, place: usize, error: &anyhow::Error) {
    let side = sides.remove(place);
    eprintln!("{} is left out: {error:#}", side.name);
}

/// One round: how long it took, and how long each turn.
async fn round(side: &mut Side, span: Duration) -> anyhow::Result<(f64, Histogram<u64>)> {
    let callers = std::mem::take(&mut side.callers);
    let runtime = side.runtime.clone();
    let started = Arc::new(tokio::sync::Barrier::new(callers.len() + 1));
    let tasks: Vec<_> = callers
        .into_iter()
        .map(|mut caller| {
            let started = started.clone();
            runtime.spawn(async move {
                started.wait().await;
                let until = Instant::now() + span;
                let mut latency = Histogram::<u64>::new(3)?;
                let mut sent = Instant::now();
                while sent < until {
                    caller.turn().await?;
                    let now = Instant::now();
                    latency.record(u64::try_from((now - sent).as_micros())?.max(1))?;
                    sent = now;
                }
                anyhow::Ok((caller, latency))
            })
        })
        .collect();
    started.wait().await;
    let began = Instant::now();
    let mut all = Histogram::<u64>::new(3)?;
    for task in tasks {
        let (caller, latency) = task.await.context("a caller panicked")??;
        side.callers.push(caller);
        all.add(&latency)?;
    }
    Ok((began.elapsed().as_secs_f64(), all))
}
