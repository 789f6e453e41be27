//! Intents and sessions, `/api/v3`. The API records what is wanted and answers 202; workers do it.

mod events;
mod heartbeat;
mod hls;
mod intents;
mod metrics;
mod probe;
mod profiles;
mod relay;
mod sessions;
mod start;

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use axum::Extension;
use lease::{Invalid, Key, Ttl, session};
use leasehold_client::Trust;
use secrecy::SecretString;
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

use crate::{App, Reject, metrics::Metrics};

/// Settings of the sessions that every API of an installation shares.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// How long a session lives without a heartbeat, in ms.
    pub lease_ttl_ms: u64,
    /// How often clients are asked to send one, in ms.
    pub heartbeat_interval_ms: u64,
    /// Phase 1: the API itself tries the service's lease and answers 409 when it is busy.
    pub api_leases: bool,
    /// The profiles that may be asked for.
    pub profiles: BTreeSet<String>,
    /// Where workers on this machine write playlists and segments.
    pub output_dir: Option<PathBuf>,
    /// What workers on other machines ask for before they serve their streams.
    pub worker_secret: Option<SecretString>,
    /// Which certificates of such workers are trusted.
    pub worker_trust: Trust,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            lease_ttl_ms: 60_000,
            heartbeat_interval_ms: 5_000,
            api_leases: false,
            profiles: ["auto", "high", "low", "virtual"].map(String::from).into(),
            output_dir: None,
            worker_secret: None,
            worker_trust: Trust::Machine,
        }
    }
}

impl SessionOptions {
    /// Refuses settings under which sessions would expire by themselves.
    pub fn validate(&self) -> Result<(), Invalid> {
        Ttl::from_millis(self.lease_ttl_ms)
            .map_err(|invalid| Invalid::new("sessions.lease_ttl", invalid.expected))?;
        if self.heartbeat_interval_ms == 0 {
            return Err(Invalid::new("sessions.heartbeat_interval", "more than 0"));
        }
        if self.heartbeat_interval_ms > self.lease_ttl_ms / 3 {
            return Err(Invalid::new(
                "sessions.heartbeat_interval",
                "at most a third of sessions.lease_ttl, so that two lost heartbeats do no harm",
            ));
        }
        for profile in &self.profiles {
            session::check_profile(profile)?;
        }
        Ok(())
    }

    /// For clients, in whole seconds and never none.
    fn heartbeat_seconds(&self) -> u64 {
        (self.heartbeat_interval_ms / 1000).max(1)
    }
}

/// What the session routes share.
struct Shared {
    options: SessionOptions,
    ttl: Ttl,
    counted: metrics::Counted,
    relay: relay::Relay,
}

/// The routes of `/api/v3`.
pub fn router(options: SessionOptions, metrics: &Metrics) -> Result<OpenApiRouter<App>, Invalid> {
    options.validate()?;
    let counted = metrics::Counted::default();
    metrics.register(|registry| counted.register(registry));
    let shared = Shared {
        ttl: Ttl::from_millis(options.lease_ttl_ms)?,
        relay: relay::Relay::new(options.worker_secret.clone(), options.worker_trust.clone()),
        options,
        counted,
    };
    Ok(OpenApiRouter::new()
        .merge(intents::router())
        .merge(sessions::router())
        .merge(heartbeat::router())
        .merge(events::router())
        .merge(hls::router())
        .merge(profiles::router())
        .layer(Extension(Arc::new(shared))))
}

pub(crate) fn example(metrics: &Metrics) {
    metrics::Counted::example(metrics);
}

/// The key of a session by the id in a path. An id that no session can have is unknown like any other.
fn session_key(id: &str) -> Result<Key, Reject> {
    let id = Uuid::parse_str(id).map_err(|_| no_session())?;
    Ok(session::key(id))
}

fn no_session() -> Reject {
    Reject::new(
        leasehold_api::Code::SessionNotFound,
        "no such session is known",
    )
}
