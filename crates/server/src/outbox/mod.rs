//! Every event to RabbitMQ. The history is the outbox: an event is there in the same atomic step as
//! its change, and a cursor beside it says how far the broker has confirmed. One replica publishes at a
//! time: its leader, who has the lease `duty:outbox`.

mod heartbeats;
mod publisher;
mod routing;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lapin::{
    Channel, Connection, ConnectionProperties, ExchangeKind, options::ConfirmSelectOptions,
    options::ExchangeDeclareOptions, types::FieldTable, uri::AMQPUri,
};
use lease::{Authority, Clock};
use leasehold_client::Leadership;
use leasehold_clock::Backoff;
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use heartbeats::Heartbeat;

use crate::metrics::Metrics;

/// The durable topic exchange that everything goes to.
pub const EXCHANGE: &str = "leasehold.events";

/// How long the broker may take for one step.
const BROKER_TIMEOUT: Duration = Duration::from_secs(10);
/// The shortest and the longest pause between attempts to reach the broker.
const PAUSE_MS: (u64, u64) = (100, 5_000);
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
        registry.register(
            "leasehold_outbox_connected",
            "1 while this server reaches the broker; servers without a broker do not have it",
            self.connected.clone(),
        );
        registry.register(
            "leasehold_outbox_lag_events",
            "Events that the broker has not confirmed yet, seen by the server that publishes",
            self.lag.clone(),
        );
        registry.register(
            "leasehold_outbox_published",
            "Events that the broker confirmed",
            self.published.clone(),
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

    /// Tells of a runner's heartbeat, if anybody is to be told and the broker keeps up.
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
    url: Arc<SecretString>,
    heartbeats: mpsc::Receiver<Heartbeat>,
    figures: Figures,
}

/// The outbox for a broker, and its tasks, which do not run yet.
pub(crate) fn prepare(
    url: SecretString,
    metrics: &Metrics,
) -> Result<(Outbox, Pending), lease::Invalid> {
    let scheme = url
        .expose_secret()
        .split_once("://")
        .map(|(scheme, _)| scheme);
    if !matches!(scheme, Some("amqp" | "amqps")) || url.expose_secret().parse::<AMQPUri>().is_err()
    {
        return Err(lease::Invalid::new(
            "amqp",
            "amqp://HOST, or amqps://HOST for an encrypted connection",
        ));
    }
    let (sender, receiver) = mpsc::channel(HEARTBEATS);
    let figures = Figures::default();
    metrics.register(|registry| figures.register(registry));
    let outbox = Outbox {
        heartbeats: Some(sender),
        figures: figures.clone(),
    };
    let pending = Pending {
        url: Arc::new(url),
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
        let heartbeats = heartbeats::run(self.heartbeats, self.url.clone(), clock.clone());
        tasks.spawn(closing.clone().run_until_cancelled_owned(heartbeats));
        let (url, closing, figures) = (self.url, closing.clone(), self.figures);
        tasks.spawn(async move {
            let publishing = publisher::run(authority, clock, &leadership, &url, &figures);
            closing.run_until_cancelled(publishing).await;
            // The next replica goes on immediately, not when the lease has lapsed.
            if let Err(error) = leadership.resign().await {
                tracing::warn!(%error, "the leadership of the outbox ends with its ttl");
            }
        });
        Ok(())
    }
}

/// A connection that is kept as long as its channel is used.
struct Link {
    _connection: Connection,
    channel: Channel,
}

/// Reaches the broker, declares the exchange and asks for confirms.
async fn connect(url: &SecretString) -> Result<Link, lapin::Error> {
    let properties = ConnectionProperties::default();
    let connection = Connection::connect(url.expose_secret(), properties).await?;
    let channel = connection.create_channel().await?;
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    channel
        .exchange_declare(
            EXCHANGE.into(),
            ExchangeKind::Topic,
            durable,
            FieldTable::default(),
        )
        .await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    Ok(Link {
        _connection: connection,
        channel,
    })
}

/// The same, until it works.
async fn reach(url: &SecretString, clock: &dyn Clock) -> Link {
    let mut backoff = Backoff::new(PAUSE_MS.0, PAUSE_MS.1);
    let mut away = false;
    loop {
        // The address may hold a password, so only the kind of failure is logged, and once.
        let reason = match tokio::time::timeout(BROKER_TIMEOUT, connect(url)).await {
            Ok(Ok(link)) => {
                tracing::info!("broker connected");
                return link;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it does not answer".to_owned(),
        };
        if !std::mem::replace(&mut away, true) {
            tracing::warn!(reason, "broker out of reach");
        }
        backoff.pause(clock).await;
    }
}
