//! Publishes every event to RabbitMQ. The history is the outbox: an event is written in the same atomic step as
//! its change, and a cursor beside it records how far the broker has confirmed. One replica publishes at a
//! time: the leader, which has the lease `leadership:outbox`.

mod heartbeats;
mod publisher;
mod routing;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use lease::{Authority, Clock};
use leasehold_broker::Broker;
use leasehold_client::Leadership;
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use secrecy::SecretString;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use heartbeats::Heartbeat;

use crate::metrics::Metrics;

/// The durable topic exchange that everything goes to.
pub const EXCHANGE: &str = "leasehold.events";

/// Heartbeats that wait for the broker. They are news, not history: what does not fit is dropped.
const HEARTBEATS: usize = 1024;

/// What the publisher counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    connected: Gauge,
    lag: Gauge,
    published: Counter,
    /// Whether this replica publishes for all of them.
    leads: Arc<AtomicBool>,
}

impl Figures {
    pub fn register(&self, registry: &mut Registry) {
        leasehold_api::register_metrics!(registry, self;
            connected: "leasehold_outbox_connected",
                "1 while this server reaches the broker; servers without a broker do not have it";
            lag: "leasehold_outbox_lag_events",
                "Events that the broker has not confirmed yet, seen by the server that publishes";
            published: "leasehold_outbox_published", "Events that the broker confirmed";
        );
    }
}

/// Where routes leave what is published beside the history.
#[derive(Clone, Default)]
pub(crate) struct Outbox {
    heartbeats: Option<mpsc::Sender<Heartbeat>>,
    figures: Figures,
}

impl Outbox {
    /// Whether the broker is reached; `None` without one.
    pub fn is_connected(&self) -> Option<bool> {
        self.heartbeats
            .as_ref()
            .map(|_| self.figures.connected.get() == 1)
    }

    /// Whether this replica publishes for all that share the store.
    pub fn is_publishing(&self) -> bool {
        self.figures.leads.load(Ordering::Relaxed)
    }

    /// Publishes a runner's heartbeat, if there is a broker and it keeps up.
    pub fn heartbeat(&self, heartbeat: impl FnOnce() -> Heartbeat) {
        if let Some(sender) = &self.heartbeats
            && let Ok(place) = sender.try_reserve()
        {
            place.send(heartbeat());
        }
    }
}

/// What the publisher's tasks take with them when they start.
pub(crate) struct Pending {
    broker: Broker,
    heartbeats: mpsc::Receiver<Heartbeat>,
    figures: Figures,
}

/// The outbox for a broker, and its tasks, which do not run yet.
pub(crate) fn prepare(
    url: SecretString,
    metrics: &Metrics,
) -> Result<(Outbox, Pending), lease::Invalid> {
    let broker = Broker::new("amqp", url)?;
    let (sender, receiver) = mpsc::channel(HEARTBEATS);
    let figures = Figures::default();
    metrics.register(|registry| figures.register(registry));
    let outbox = Outbox {
        heartbeats: Some(sender),
        figures: figures.clone(),
    };
    let pending = Pending {
        broker,
        heartbeats: receiver,
        figures,
    };
    Ok((outbox, pending))
}

impl Pending {
    /// Publishes until the server stops.
    pub fn start(
        self,
        authority: Arc<dyn Authority>,
        clock: Arc<dyn Clock>,
        closing: &CancellationToken,
        tasks: &TaskTracker,
    ) -> Result<(), lease::Invalid> {
        let leadership = Leadership::new(
            authority.clone(),
            clock.clone(),
            publisher::leader_key()?,
            publisher::leader_ttl()?,
        )?;
        let heartbeats = heartbeats::run(self.heartbeats, self.broker.clone(), clock.clone());
        tasks.spawn(closing.clone().run_until_cancelled_owned(heartbeats));
        let (broker, closing, figures) = (self.broker, closing.clone(), self.figures);
        tasks.spawn(async move {
            let publishing = publisher::run(authority, clock, &leadership, &broker, &figures);
            closing.run_until_cancelled(publishing).await;
            // The next replica goes on immediately, not when the lease has lapsed.
            if let Err(error) = leadership.resign().await {
                tracing::warn!(%error, "leadership of the outbox not given up; it expires with its ttl");
            }
        });
        Ok(())
    }
}
