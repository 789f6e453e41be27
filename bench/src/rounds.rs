//! Sides of a comparison, measured in turns: each side works for a short while, then the next one, and
//! again, so that a slow moment of the machine falls on all of them. A side's rate is the median of its
//! rounds.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use comfy_table::{CellAlignment, Table};
use futures_util::future::BoxFuture;
use hdrhistogram::Histogram;
use tokio::time::Instant;

/// One piece of work: which caller does it, and how many it did before.
pub type Work = Arc<dyn Fn(usize, usize) -> BoxFuture<'static, anyhow::Result<()>> + Send + Sync>;

/// Makes work of a function.
pub fn work<F>(function: impl Fn(usize, usize) -> F + Send + Sync + 'static) -> Work
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    Arc::new(move |caller, turn| Box::pin(function(caller, turn)))
}

/// How it is measured.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Pace {
    /// How long one round of one side takes, in ms.
    #[arg(long, default_value_t = 1000)]
    pub round_ms: u64,
    /// How many rounds each side works.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
}

/// What a side did.
pub struct Figures {
    /// Its name.
    pub name: &'static str,
    /// Pieces of work per second, in its median round.
    pub rate: f64,
    /// How long each took, in µs.
    pub latency: Histogram<u64>,
}

/// Lets the sides work in turns. The first round of each is for warming up and does not count.
pub async fn compare(
    sides: &[(&'static str, Work)],
    callers: usize,
    pace: Pace,
) -> anyhow::Result<Vec<Figures>> {
    let span = Duration::from_millis(pace.round_ms);
    let mut rates = vec![Vec::new(); sides.len()];
    let mut latencies = Vec::new();
    for (_, work) in sides {
        round(work, callers, span / 4).await?;
        latencies.push(Histogram::<u64>::new(3)?);
    }
    for _ in 0..pace.rounds {
        for (place, (_, work)) in sides.iter().enumerate() {
            let (rate, latency) = round(work, callers, span).await?;
            rates[place].push(rate);
            latencies[place].add(&latency)?;
        }
    }
    let figures = sides.iter().zip(rates).zip(latencies);
    Ok(figures
        .map(|(((name, _), mut rates), latency)| {
            rates.sort_by(f64::total_cmp);
            Figures {
                name,
                rate: rates.get(rates.len() / 2).copied().unwrap_or_default(),
                latency,
            }
        })
        .collect())
}

async fn round(
    work: &Work,
    callers: usize,
    span: Duration,
) -> anyhow::Result<(f64, Histogram<u64>)> {
    let began = Instant::now();
    let until = began + span;
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let work = work.clone();
            tokio::spawn(async move {
                let mut latency = Histogram::<u64>::new(3)?;
                let mut turn = 0;
                while Instant::now() < until {
                    let sent = Instant::now();
                    work(caller, turn).await?;
                    latency.record(u64::try_from(sent.elapsed().as_micros())?.max(1))?;
                    turn += 1;
                }
                anyhow::Ok(latency)
            })
        })
        .collect();
    let mut all = Histogram::<u64>::new(3)?;
    for task in tasks {
        all.add(&task.await.context("a caller panicked")??)?;
    }
    Ok((all.len() as f64 / began.elapsed().as_secs_f64(), all))
}

/// A table of comparisons. The last side of each is ours, and every other row says how many times its
/// cost ours is.
pub struct Report(Table);

impl Default for Report {
    fn default() -> Self {
        let mut table = Table::new();
        table.load_style(comfy_table::presets::ASCII_MARKDOWN);
        table.set_header([
            "work",
            "callers",
            "side",
            "per second",
            "median µs",
            "p99 µs",
            "ours costs",
        ]);
        for column in [1, 3, 4, 5, 6] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Self(table)
    }
}

impl Report {
    /// Adds a comparison.
    pub fn add(&mut self, work: &str, callers: usize, sides: &[Figures]) {
        let ours = sides.last().map_or(0.0, |ours| ours.rate);
        for (place, side) in sides.iter().enumerate() {
            let is_ours = place + 1 == sides.len();
            self.0.add_row([
                work.to_owned(),
                callers.to_string(),
                side.name.to_owned(),
                format!("{:.0}", side.rate),
                side.latency.value_at_quantile(0.5).to_string(),
                side.latency.value_at_quantile(0.99).to_string(),
                if is_ours {
                    String::new()
                } else {
                    format!("{:.2} x", side.rate / ours)
                },
            ]);
        }
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
