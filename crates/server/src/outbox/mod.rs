//! Every event to RabbitMQ. The history is the outbox: an event is there in the same atomic step as
//! its change, and a cursor beside it says how far the broker has confirmed. One replica publishes at a
//! time, and that duty is a lease.

mod heartbeats;
mod publisher;
mod routing;

use std::{sync::Arc, time::Duration};

use lapin::{
    Channel, Connection, ConnectionProperties, ExchangeKind, options::ConfirmSelectOptions,
    options::ExchangeDeclareOptions, types::FieldTable, uri::AMQPUri,
};
use lease::Authority;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use heartbeats::Heartbeat;

/// The durable topic exchange that everything goes to.
pub const EXCHANGE: &str = "leasehold.events";

/// How long the broker may take for one step.
const BROKER_TIMEOUT: Duration = Duration::from_secs(10);
/// The shortest and the longest pause between attempts to reach the broker.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Heartbeats that wait for the broker. They are news, not history: what does not fit is dropped.
const HEARTBEATS: usize = 1024;

/// Where doors leave what is published beside the history.
#[derive(Clone, Default)]
pub(crate) struct Outbox {
    heartbeats: Option<mpsc::Sender<Heartbeat>>,
}

impl Outbox {
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
}

/// The outbox for a broker, and its tasks, which do not run yet.
pub(crate) fn prepare(url: SecretString) -> Result<(Outbox, Pending), lease::Invalid> {
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
    let outbox = Outbox {
        heartbeats: Some(sender),
    };
    let pending = Pending {
        url: Arc::new(url),
        heartbeats: receiver,
    };
    Ok((outbox, pending))
}

impl Pending {
    /// Publishes until the server stops.
    pub fn start(
        self,
        authority: Arc<dyn Authority>,
        closing: &CancellationToken,
        tasks: &TaskTracker,
    ) {
        let events = publisher::run(authority, self.url.clone());
        let heartbeats = heartbeats::run(self.heartbeats, self.url);
        for task in [
            Box::pin(events) as std::pin::Pin<Box<dyn Future<Output = ()> + Send>>,
            Box::pin(heartbeats),
        ] {
            tasks.spawn(closing.clone().run_until_cancelled_owned(task));
        }
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
async fn reach(url: &SecretString) -> Link {
    let mut pause = PAUSE.0;
    loop {
        match tokio::time::timeout(BROKER_TIMEOUT, connect(url)).await {
            Ok(Ok(link)) => return link,
            // The address may hold a password, so only the kind of failure is told.
            Ok(Err(error)) => tracing::warn!(%error, "the broker cannot be reached"),
            Err(_) => tracing::warn!("the broker does not answer"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}
