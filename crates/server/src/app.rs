//! The state shared by every route.

use std::sync::Arc;

use lease::{Authority, Clock};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Limits,
    auth::{Credentials, Failures, Networks},
    metrics::Metrics,
    outbox::Outbox,
    pictures::Pictures,
    recent::Recent,
    registry::view::Sites,
    shed::Shed,
    streams::{Hub, Rooms},
};

/// What every route has at hand. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Parts>);

pub(crate) struct Parts {
    pub authority: Arc<dyn Authority>,
    pub clock: Arc<dyn Clock>,
    pub credentials: Arc<Credentials>,
    pub guard: Networks,
    pub failures: Failures,
    pub metrics: Metrics,
    pub shed: Shed,
    pub hub: Hub,
    pub rooms: Rooms,
    pub sites: Sites,
    pub recent: Recent,
    pub pictures: Pictures,
    pub limits: Limits,
    pub outbox: Outbox,
    /// Whether connections are encrypted: decides over `Secure` cookies.
    pub encrypted: bool,
    /// Cancelled when the server begins to stop: streams and waits end.
    pub closing: CancellationToken,
    /// Tasks that outlive the request that began them; the server waits for them at its end.
    pub tasks: TaskTracker,
}

impl App {
    pub(crate) fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// Who decides.
    pub fn authority(&self) -> &dyn Authority {
        &*self.0.authority
    }

    /// Who decides, for tasks that outlive a request.
    pub fn shared_authority(&self) -> Arc<dyn Authority> {
        self.0.authority.clone()
    }

    /// Where time comes from.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.clock
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Cancelled when the server begins to stop.
    pub fn closing(&self) -> &CancellationToken {
        &self.0.closing
    }

    /// Tasks that the server waits for at its end.
    pub fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }

    pub(crate) fn sites(&self) -> &Sites {
        &self.0.sites
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.0
    }
}
