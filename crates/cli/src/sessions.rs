//! The worker and the reaper of sessions, put together from the configuration.

use std::{path::PathBuf, sync::Arc};

use lease::{Authority, Clock, HolderName, Ttl};
use leasehold_agents::{
    orchestrator::{Metrics, Options, Orchestrator, Reaper, ReaperOptions},
    supervise::Launcher,
};
use leasehold_client::Trust;
use leasehold_server::SessionOptions;

use crate::{
    config::{Config, wrong},
    connect,
    exit::{Exit, Failure},
    holder,
};

/// What the routes need to know about sessions.
pub fn routes(config: &Config, folder: Option<&PathBuf>) -> Result<SessionOptions, Failure> {
    let sessions = &config.sessions;
    sessions.check()?;
    let options = SessionOptions {
        lease_ttl_ms: sessions.lease_ttl.millis(),
        heartbeat_interval_ms: sessions.heartbeat_interval.millis(),
        api_leases: sessions.api_leases,
        profiles: sessions.all_profiles().into_keys().collect(),
        output_dir: Some(output_dir(config, folder)),
        worker_secret: sessions.worker_secret.clone(),
        worker_trust: match &sessions.worker_ca_file {
            Some(file) => connect::issued_by(file)?,
            None => Trust::Machine,
        },
    };
    options.validate().map_err(wrong)?;
    Ok(options)
}

/// How this machine's worker runs sessions.
pub fn worker(config: &Config, folder: Option<&PathBuf>) -> Result<Options, Failure> {
    let sessions = &config.sessions;
    let name = match &sessions.worker_name {
        Some(name) => HolderName::new(name).map_err(wrong)?,
        None => HolderName::new(format!("worker-{}", holder::default_name())).map_err(wrong)?,
    };
    let mut options = Options::new(name, output_dir(config, folder));
    options.default_name = sessions.worker_name.is_none();
    options.tuner_slots.clone_from(&sessions.tuner_slots);
    options.profiles = sessions.all_profiles();
    options
        .source_template
        .clone_from(&sessions.source_template);
    options.scan_interval_ms = sessions.expiry_check_interval.millis();
    options.lease_ttl = Ttl::from_millis(sessions.worker_ttl.millis()).map_err(|invalid| {
        wrong(format!(
            "sessions.worker_ttl: expected {}",
            invalid.expected
        ))
    })?;
    options.concurrent_starts = sessions.concurrent_starts;
    options.start_limit_ms = sessions.start_limit.millis();
    options.stop_limit_ms = sessions.stop_limit.millis();
    options.stall_limit_ms = sessions.stall_limit.millis();
    options.validate().map_err(wrong)?;
    Ok(options)
}

fn output_dir(config: &Config, folder: Option<&PathBuf>) -> PathBuf {
    let configured = config.sessions.output_dir.clone();
    configured.unwrap_or_else(|| match folder {
        Some(folder) => folder.join("sessions"),
        None => std::env::temp_dir().join("leasehold-sessions"),
    })
}

/// The agents that end and run sessions.
pub struct Agents {
    reaper: Option<Reaper>,
    worker: Option<Orchestrator>,
}

impl Agents {
    /// Starts the reaper, and the worker where one is wanted.
    pub async fn start(
        config: &Config,
        worker: Option<Options>,
        reaper: bool,
        authority: Arc<dyn Authority>,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
    ) -> Result<Self, Failure> {
        let options = ReaperOptions {
            interval_ms: config.sessions.expiry_check_interval.millis(),
            remember_ms: config.sessions.remember.millis(),
        };
        let reaper = reaper
            .then(|| Reaper::start(authority.clone(), clock.clone(), options, metrics.clone()));
        let worker = match worker {
            Some(options) => {
                let launcher = Launcher::this_binary();
                let started = Orchestrator::start(authority, clock, options, launcher, metrics);
                Some(started.await.map_err(|error| {
                    Failure::new(Exit::Failed, format!("cannot start the worker: {error}"))
                })?)
            }
            None => None,
        };
        Ok(Self { reaper, worker })
    }

    /// The worker's name, which may differ from the default one when that is in use.
    pub fn worker_name(&self) -> Option<&HolderName> {
        self.worker.as_ref().map(Orchestrator::name)
    }

    /// Ends every session of the worker in order, then stops.
    pub async fn stop(self) {
        if let Some(worker) = self.worker
            && let Err(error) = worker.stop().await
        {
            tracing::warn!(%error, "the worker did not stop gracefully");
        }
        if let Some(reaper) = self.reaper {
            reaper.stop().await;
        }
    }
}
