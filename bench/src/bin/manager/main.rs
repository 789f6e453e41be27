//! What managers and workers promise, in figures: real servers, managers and worker processes that are
//! killed, drained, replaced and cut off. Workers write down every message with its time and its fencing
//! token, and everything that is said about owners is computed from those lines.
//!
//! It takes the binary `leasehold` beside its own.

mod crashes;
mod idle;
mod moves;
mod outages;
mod report;

use anyhow::Result;
use clap::{Parser, ValueEnum};

use report::Times;

/// How long cameras are without a worker, whatever happens to workers, managers and the control plane.
///
/// A sample is one camera: from the event to the first message of the process that has it next. The
/// worker is a small one in Python, so that the start of its interpreter is part of every crash.
#[derive(Parser)]
struct Arguments {
    /// How long it measures: `quick` takes some ten minutes, `full` an hour
    #[arg(long, value_enum, default_value_t = Length::Quick)]
    length: Length,
    /// Measures these parts only
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
}

/// How long it measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Length {
    /// Control plane away for 30 s; twenty samples or more of each time.
    Quick,
    /// Control plane away for 300 s; a hundred samples or more of most times.
    Full,
}

impl Length {
    fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// Workers that are killed
    Workers,
    /// Managers that are killed, and hosts that are lost
    Managers,
    /// Drain, balance, blue/green, another command
    Moves,
    /// Cameras that are added, and a start with 64
    Acquisition,
    /// The control plane is away, with 64 cameras
    Outage,
    /// One of two managers is cut off, with 64 cameras
    Isolation,
    /// Processor time of a manager with 64 idle cameras
    Idle,
}

#[tokio::main]
async fn main() -> Result<()> {
    let Arguments { length, only } = Arguments::parse();
    let wanted = |part| only.is_empty() || only.contains(&part);
    let build = if cfg!(debug_assertions) {
        "unoptimised"
    } else {
        "release"
    };
    println!("managers and workers: {length:?} run, {build} build, embedded store");
    let mut times = Times::new();
    if wanted(Part::Workers) {
        crashes::workers(length, &mut times).await?;
    }
    if wanted(Part::Managers) {
        crashes::managers(length, &mut times).await?;
    }
    if wanted(Part::Moves) {
        moves::drains(length, &mut times).await?;
        moves::versions(length, &mut times).await?;
        moves::commands(length, &mut times).await?;
    }
    if wanted(Part::Acquisition) {
        moves::acquisition(length, &mut times).await?;
    }
    times.print();
    if wanted(Part::Outage) {
        outages::control_plane(length).await?;
    }
    if wanted(Part::Isolation) {
        outages::isolation(length).await?;
    }
    if wanted(Part::Idle) {
        idle::measure(length).await?;
    }
    Ok(())
}
