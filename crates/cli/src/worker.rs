//! `leasehold worker`.

use std::{path::Path, process::ExitCode, sync::Arc};

use lease::Authority;
use leasehold_agents::{Streams, Tls, orchestrator::Metrics, serve_worker};
use leasehold_clock::System;
use leasehold_server::Certificate;
use leasehold_store::Store;
use prometheus_client::registry::Registry;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    cli::Shared,
    config::{Config, wrong},
    connect, data_dir,
    exit::{Exit, Failure, Outcome},
    print,
    serve::{Stop, reload_on_hangup},
    sessions::{self, Agents},
    settings::refuse_unknown_variables,
};

/// Run sessions as a process of its own, apart from the API
///
/// Only workers own the leases of channels and tuners. Restarted under the same name, a worker frees
/// immediately what its predecessor held. SIGTERM ends its sessions gracefully; SIGHUP reads the
/// certificate again.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold worker --server https://leases.example:8740    # over HTTP
  leasehold worker --store postgres://db/lh   # on the shared store itself")]
pub struct Arguments {
    /// The shared store, instead of a server
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The worker's stable name [env: LEASEHOLD_SESSIONS_WORKER_NAME] [default: made from the host]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// What streams are served with, where the worker's address says that they are encrypted.
fn certificate(config: &Config, folder: Option<&Path>) -> Result<Option<Tls>, Failure> {
    let url = config.sessions.worker_url.as_deref();
    if !url.is_some_and(|url| url.starts_with("https://")) {
        return Ok(None);
    }
    if !config.server.tls.is_wanted() {
        return Err(wrong(
            "sessions.worker_url: https needs a certificate: set server.tls.certificate and server.tls.key",
        ));
    }
    let certificate = Certificate::load(&config.server.tls, folder).map_err(wrong)?;
    tokio::spawn(reload_on_hangup(certificate.clone())?);
    Ok(Some(Arc::new(move || certificate.http1())))
}

/// Runs until it is asked to stop.
pub async fn run(arguments: Arguments, shared: &Shared, mut config: Config) -> Outcome {
    refuse_unknown_variables(shared)?;
    config.sessions.worker_name = arguments.name.or(config.sessions.worker_name.take());
    config.sessions.check()?;
    let folder = data_dir::find(&config);
    let mut options = sessions::worker(&config, folder.as_ref())?;
    options.streams_url.clone_from(&config.sessions.worker_url);
    let streams = config.sessions.worker_url.is_some().then(|| Streams {
        output_dir: options.output_dir.clone(),
        secret: config.sessions.worker_secret.clone(),
    });
    let tls = certificate(&config, folder.as_deref())?;
    let stop = Stop::listen()?;
    let clock = Arc::new(System);
    let (authority, store): (Arc<dyn Authority>, Option<Store>) = match &arguments.store {
        Some(url) => {
            let url = url
                .parse()
                .map_err(|error| wrong(format!("--store: {error}")))?;
            let store = leasehold_store::open(&url, config.server.store_options(), clock.clone())
                .await
                .map_err(|error| {
                    Failure::new(Exit::Failed, format!("cannot open {url}: {error}"))
                })?;
            (store.authority(), Some(store))
        }
        None => (connect::authority(&config)?, None),
    };
    let metrics = Metrics::default();
    let served = config.sessions.worker_listen.map(|address| {
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        leasehold_store::register_metrics(&mut registry);
        AbortOnDropHandle::new(tokio::spawn(serve_worker(address, registry, streams, tls)))
    });
    let agents = Agents::start(&config, Some(options), false, authority, clock, metrics).await?;
    if let Some(name) = agents.worker_name() {
        print::line(&format!("worker {name} takes sessions"))?;
    }
    match served {
        Some(served) => tokio::select! {
            () = stop.asked() => {}
            ended = served => {
                agents.stop().await;
                let why = match ended {
                    Ok(Err(error)) => error.to_string(),
                    _ => "it ended".to_owned(),
                };
                return Err(Failure::new(
                    Exit::Failed,
                    format!("metrics cannot be served: {why}"),
                ));
            }
        },
        None => stop.asked().await,
    }
    agents.stop().await;
    if let Some(store) = store {
        crate::serve::close(&store).await?;
    }
    Ok(ExitCode::SUCCESS)
}
