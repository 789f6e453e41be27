//! Consumes Leasehold's events into a file.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use leasehold_consumer::{Settings, Store, run};
use tracing_subscriber::EnvFilter;

/// Consume Leasehold's events, each once and in order.
#[derive(Parser)]
struct Arguments {
    /// The broker, such as amqp://user:password@host:5672/%2f
    #[arg(long, env = "LEASEHOLD_CONSUMER_AMQP", hide_env_values = true)]
    amqp: String,
    /// The queue of this consumer.
    #[arg(long, default_value = "leasehold.consumer")]
    queue: String,
    /// The file that remembers.
    #[arg(long, default_value = "consumer.sqlite3")]
    state: PathBuf,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let arguments = Arguments::parse();
    let store = Store::open(&arguments.state)
        .with_context(|| format!("open {}", arguments.state.display()))?;
    let settings = Settings {
        amqp: arguments.amqp,
        queue: arguments.queue,
    };
    tokio::select! {
        outcome = run(settings, store) => outcome?,
        signal = tokio::signal::ctrl_c() => signal?,
    }
    Ok(())
}
