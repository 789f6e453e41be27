//! A complete polling program: HTTP(S) polls of owned targets at their intervals, results to sinks.

mod fetch;
mod gate;
mod listen;
mod metrics;
mod pace;
mod report;
mod settings;
mod sink;
mod template;
mod worker;

use std::{collections::HashSet, future::Future, sync::Arc};

use lease::{Authority, Clock};
use tokio::{sync::Semaphore, task::JoinSet};

use super::{Coordinator, LeaseState, Targets};
use gate::Gate;
use metrics::Metrics;
use sink::Sink;

pub use fetch::{FENCE, KEY};
pub use report::Report;
pub use settings::{LeaseSettings, Settings, SinkSettings};

/// Why the program could not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is wrong.
    #[error("{0}")]
    Config(String),
    /// The coordinator could not start or stop.
    #[error(transparent)]
    Coordinator(#[from] super::Error),
}

impl From<lease::Invalid> for Error {
    fn from(invalid: lease::Invalid) -> Self {
        Self::Config(invalid.to_string())
    }
}

/// Every metric with made-up figures: for the reference page, and for checks of what is written.
#[doc(hidden)]
pub fn metrics_example() -> String {
    Metrics::example()
}

/// What the tasks of all targets share.
struct Program {
    settings: Settings,
    coordinator: Coordinator,
    clock: Arc<dyn Clock>,
    client: fetch::HttpClient,
    gate: Gate,
    headers: http::HeaderMap,
    sinks: Vec<Sink>,
    slots: Semaphore,
    metrics: Metrics,
}

/// Polls until `stop` resolves, then ends gracefully. Ends with an error when the store definitely
/// refuses this instance.
pub async fn run(
    settings: Settings,
    authority: Arc<dyn Authority>,
    clock: Arc<dyn Clock>,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let options = settings.check()?;
    let gate = Gate::new(clock.clone());
    let client = fetch::client(&gate).map_err(Error::Config)?;
    let headers = fetch::headers(&settings.headers).map_err(Error::Config)?;
    let mut sinks = Vec::new();
    for sink in &settings.sinks {
        let store = settings.store.as_deref();
        sinks.push(Sink::open(sink, store, &client, &clock).map_err(Error::Config)?);
    }
    let targets = settings
        .targets_file
        .clone()
        .map_or(Targets::Store, Targets::File);
    // A file that is not there now is a mistake; one that vanishes later is waited for.
    targets.check().await.map_err(Error::Config)?;
    let coordinator = Coordinator::start(authority, clock.clone(), targets, options).await?;
    tracing::info!(instance = %coordinator.instance_id(), event = "started", "polling");
    let program = Arc::new(Program {
        slots: Semaphore::new(settings.concurrency),
        metrics: Metrics::new(),
        settings,
        coordinator,
        clock,
        client,
        gate,
        headers,
        sinks,
    });
    let mut workers = Workers::default();
    let served = serve_metrics(&program);
    let mut refused = None;
    tokio::select! {
        () = workers.follow(&program) => {}
        error = served => return Err(error),
        denied = program.coordinator.denied() => refused = Some(denied),
        () = stop => {}
    }
    // The coordinator waits for running polls, since each holds its permit until its result is out, and
    // breaks off what takes too long.
    workers.tasks.detach_all();
    if let Err(error) = program.coordinator.stop().await {
        tracing::warn!(instance = %program.coordinator.instance_id(), %error, "stopped without an answer from the store; remaining leases expire with their ttl");
    }
    refused.map_or(Ok(()), |error| Err(super::Error::Store(error).into()))
}

async fn serve_metrics(program: &Arc<Program>) -> Error {
    match program.settings.metrics_listen {
        None => std::future::pending().await,
        Some(address) => {
            let served = listen::serve(program, address).await;
            let why = served
                .err()
                .map_or_else(String::new, |error| error.to_string());
            Error::Config(format!("poll.metrics_listen {address}: {why}"))
        }
    }
}

/// One task per owned target.
#[derive(Default)]
struct Workers {
    tasks: JoinSet<String>,
    busy: HashSet<String>,
    /// Targets whose task has ended and whose figures are still shown.
    ended: HashSet<String>,
}

impl Workers {
    async fn follow(&mut self, program: &Arc<Program>) {
        let mut changes = program.coordinator.changes();
        loop {
            let owned = program.coordinator.owned();
            program.metrics.owns(owned.len());
            for target in owned {
                self.ended.remove(&target);
                if self.busy.insert(target.clone()) {
                    let program = program.clone();
                    self.tasks.spawn(async move {
                        worker::poll_while_owned(&program, &target).await;
                        target
                    });
                }
            }
            tokio::select! {
                // The coordinator lives in the program.
                _ = changes.changed() => {}
                Some(ended) = self.tasks.join_next() => if let Ok(target) = ended {
                    self.busy.remove(&target);
                    self.ended.insert(target);
                },
            }
            // A hand-over that comes to nothing leaves the figures as they are.
            self.ended.retain(|target| {
                let state = program.coordinator.lease_info(target).state;
                let kept = matches!(state, LeaseState::Owned | LeaseState::Uncertain);
                if !kept {
                    program.metrics.forget(target);
                }
                kept
            });
        }
    }
}
