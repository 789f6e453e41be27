//! `leasehold poll`.

use std::{process::ExitCode, sync::Arc};

use lease::Authority;
use leasehold_agents::poller::{self, program};
use leasehold_clock::{Backoff, System};
use leasehold_store::{OpenError, Store};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    config::{Config, wrong},
    connect,
    exit::{Exit, Failure, Outcome},
};

/// The first and the longest pause between attempts to reach the store, in ms.
const PAUSE_MS: (u64, u64) = (100, 5_000);

/// Poll targets, shared with all other instances
///
/// Each target is polled by exactly one instance. An instance that starts gets its share, and one
/// that ends leaves it to the others. What is polled, how often and where results go is in the
/// section `poll` of the configuration.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold poll --config poll.yaml
  leasehold poll --config poll.yaml --store redis://localhost:6379/
  leasehold poll --server https://leases.example   # over HTTP

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

/// Polls until it is asked to stop, and stops gracefully.
pub async fn run(arguments: Arguments, config: Config) -> Outcome {
    let mut settings = config.poll.clone();
    settings.store = arguments.store.or(settings.store);
    settings.check().map_err(wrong)?;
    let mut stop = Box::pin(stop_signal()?);
    let opened = tokio::select! {
        opened = wait_for_authority(settings.store.as_deref(), &config) => opened?,
        () = &mut stop => return Ok(ExitCode::SUCCESS),
    };
    let (authority, store) = opened;
    let polled = program::run(settings, authority, Arc::new(System), stop).await;
    let closed = match store {
        Some(store) => store.close().await,
        None => Ok(()),
    };
    polled.map_err(|error| match error {
        program::Error::Config(message) => wrong(message),
        program::Error::Coordinator(error) => failed(error),
    })?;
    closed?;
    Ok(ExitCode::SUCCESS)
}

/// What a coordinator's error means for the binary.
pub fn failed(error: poller::Error) -> Failure {
    match error {
        poller::Error::Store(error) => error.into(),
        poller::Error::Invalid(invalid) => wrong(invalid),
        poller::Error::Targets(_) => Failure::new(Exit::Config, error),
        poller::Error::Stopped => Failure::new(Exit::Failed, error),
    }
}

/// The same as [`authority`], once it can be reached: a fleet that starts together with its store must
/// not fail because it was faster.
async fn wait_for_authority(
    store: Option<&str>,
    config: &Config,
) -> Result<(Arc<dyn Authority>, Option<Store>), Failure> {
    let mut backoff = Backoff::new(PAUSE_MS.0, PAUSE_MS.1);
    loop {
        match authority(store, config).await {
            Err(failure) if failure.exit == Exit::Unreachable => {
                tracing::warn!(reason = %failure, "the store cannot be reached yet; trying again");
            }
            opened => return opened,
        }
        backoff.pause(&System).await;
    }
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
    let store = leasehold_store::open(&url, config.server.store_options(), Arc::new(System))
        .await
        .map_err(|error| {
            let exit = match &error {
                OpenError::Url(_) => Exit::Config,
                OpenError::Store(error) if error.is_retryable() => Exit::Unreachable,
                OpenError::Store(lease::Error::Denied(_)) => Exit::Denied,
                OpenError::Store(_) | OpenError::Embedded(_) | OpenError::Maintenance(_) => {
                    Exit::Broken
                }
            };
            Failure::new(exit, error)
        })?;
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
