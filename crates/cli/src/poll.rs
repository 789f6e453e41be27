//! `leasehold poll`.

use std::{process::ExitCode, sync::Arc};

use lease::Authority;
use leasehold_agents::poller::program;
use leasehold_clock::System;
use leasehold_store::Store;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    config::{Config, wrong},
    connect,
    exit::{Exit, Failure, Outcome},
};

/// Poll targets, together with every other instance that does
///
/// Each target is polled by exactly one instance. An instance that starts gets its share, and one
/// that ends leaves it to the others. What is polled, how often and where results go is in the
/// section `poll` of the configuration.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold poll --config poll.yaml
  leasehold poll --config poll.yaml --store redis://localhost:6379/
  leasehold poll --config poll.yaml --server https://leases.example    # over HTTP

The smallest configuration; targets are the keys session:{id} in that Redis:
  poll:
    store: redis://localhost:6379/
    url: https://api.example/saves/{id}

Results go to standard output, one JSON object per line, unless `sinks` says otherwise. `leasehold
nodes` shows who polls what, `leasehold config show` every setting.")]
pub struct Arguments {
    /// Where the state lives: redis://…, postgres://…, embedded:DIR, memory: [default: the server]
    #[arg(long, value_name = "URL", conflicts_with = "server")]
    store: Option<String>,
}

/// Polls until it is told to stop, and stops in good order.
pub async fn run(arguments: Arguments, config: Config) -> Outcome {
    let mut settings = config.poll.clone();
    settings.store = arguments.store.or(settings.store);
    settings.check().map_err(wrong)?;
    let (authority, store) = authority(settings.store.as_deref(), &config).await?;
    let stop = stop_signal()?;
    let polled = program::run(settings, authority, Arc::new(System), stop).await;
    let closed = match store {
        Some(store) => store.close().await,
        None => Ok(()),
    };
    polled.map_err(|error| match error {
        program::Error::Config(message) => wrong(message),
        program::Error::Coordinator(error) => Failure::new(Exit::Failed, error),
    })?;
    closed?;
    Ok(ExitCode::SUCCESS)
}

/// The store that a URL names, or the configured server.
pub async fn authority(
    store: Option<&str>,
    config: &Config,
) -> Result<(Arc<dyn Authority>, Option<Store>), Failure> {
    let Some(url) = store else {
        return Ok((connect::authority(config)?, None));
    };
    let url = url.parse().map_err(wrong)?;
    let store = leasehold_store::open(&url, leasehold_store::Options::default(), Arc::new(System))
        .await
        .map_err(|error| Failure::new(Exit::Unreachable, error))?;
    Ok((store.authority(), Some(store)))
}

/// Resolves when a person or a service manager asks for the end.
fn stop_signal() -> Result<impl Future<Output = ()>, Failure> {
    let listen = |kind| {
        signal(kind).map_err(|error| {
            Failure::new(Exit::Failed, format!("cannot listen for signals: {error}"))
        })
    };
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
