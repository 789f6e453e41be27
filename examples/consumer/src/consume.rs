//! From the broker to the store, for ever.

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::{
    Channel, Connection, ConnectionProperties, Consumer, ExchangeKind,
    message::Delivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions,
        ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable, LongString},
};
use tokio::time::{sleep, timeout};

use crate::{Error, Message, Outcome, Store};

/// The exchange of the server.
const EXCHANGE: &str = "leasehold.events";
/// Every event about leases and records; heartbeats have routing keys of their own.
const EVERY_EVENT: &str = "lease.#";
/// How many messages are on their way to this process at most, and in one transaction.
const PREFETCH: u16 = 128;
/// How long the broker may take to let this process in.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long to pause before the broker is tried again: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Where to consume from.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The broker's address, with user and password.
    pub amqp: String,
    /// The queue of this consumer: durable, and filled also while the consumer is away.
    pub queue: String,
}

/// Why a connection was given up.
#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error("the broker: {0}")]
    Broker(#[from] lapin::Error),
    #[error("the broker does not answer")]
    Silent,
    #[error("the broker ended the delivery")]
    Ended,
    #[error(transparent)]
    Store(#[from] Error),
    #[error("the store's task: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Consumes until the store fails. A broker that fails is connected to again.
pub async fn run(settings: Settings, store: Store) -> Result<(), Error> {
    let mut store = Some(store);
    let mut pause = PAUSE.0;
    loop {
        match session(&settings, &mut store, &mut pause).await {
            Stop::Store(error) => return Err(error),
            stop => tracing::warn!(%stop, "connecting again"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// One connection, from its beginning to its end.
async fn session(settings: &Settings, store: &mut Option<Store>, pause: &mut Duration) -> Stop {
    let Ok(begun) = timeout(CONNECT_LIMIT, begin(settings)).await else {
        return Stop::Silent;
    };
    let (_connection, consumer) = match begun {
        Ok(begun) => begun,
        Err(error) => return error.into(),
    };
    tracing::info!(queue = settings.queue, "consuming");
    *pause = PAUSE.0;
    // What has arrived already is one transaction: one sync for many messages under load.
    let mut deliveries = consumer.ready_chunks(usize::from(PREFETCH));
    while let Some(chunk) = deliveries.next().await {
        if let Err(stop) = handle(chunk, store).await {
            return stop;
        }
    }
    Stop::Ended
}

/// Makes the queue, if it is not there, so that it collects events from now on. [`run`] does that
/// too; this is for those who want to miss nothing before they consume.
pub async fn declare(settings: &Settings) -> Result<(), lapin::Error> {
    open(settings).await.map(|_| ())
}

/// Declares what is needed, and asks for messages.
async fn begin(settings: &Settings) -> Result<(Connection, Consumer), lapin::Error> {
    let (connection, channel) = open(settings).await?;
    channel
        .basic_qos(PREFETCH, BasicQosOptions::default())
        .await?;
    let consumer = channel
        .basic_consume(
            settings.queue.as_str().into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await?;
    Ok((connection, consumer))
}

/// Declares exchange and queues, which does nothing when they are there.
async fn open(settings: &Settings) -> Result<(Connection, Channel), lapin::Error> {
    let connection = Connection::connect(&settings.amqp, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    let none = FieldTable::default;
    channel
        .exchange_declare(EXCHANGE.into(), ExchangeKind::Topic, durable, none())
        .await?;
    declare_queues(&channel, &settings.queue).await?;
    let bind = QueueBindOptions::default();
    let queue = settings.queue.as_str();
    channel
        .queue_bind(
            queue.into(),
            EXCHANGE.into(),
            EVERY_EVENT.into(),
            bind,
            none(),
        )
        .await?;
    Ok((connection, channel))
}

/// The queue, and one beside it for what makes no sense.
async fn declare_queues(channel: &Channel, queue: &str) -> Result<(), lapin::Error> {
    let aside = format!("{queue}.rejected");
    let text = |text: &str| AMQPValue::LongString(LongString::from(text));
    let mut arguments = FieldTable::default();
    // Two at once would undo the order.
    arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
    arguments.insert("x-dead-letter-exchange".into(), text(""));
    arguments.insert("x-dead-letter-routing-key".into(), text(&aside));
    let durable = QueueDeclareOptions::durable;
    channel
        .queue_declare(aside.as_str().into(), durable(), FieldTable::default())
        .await?;
    channel
        .queue_declare(queue.into(), durable(), arguments)
        .await?;
    Ok(())
}

async fn handle(
    chunk: Vec<Result<Delivery, lapin::Error>>,
    store: &mut Option<Store>,
) -> Result<(), Stop> {
    let mut messages = Vec::with_capacity(chunk.len());
    let mut accepted = Vec::with_capacity(chunk.len());
    for delivery in chunk {
        let delivery = delivery?;
        match Message::read(&delivery) {
            Ok(message) => {
                messages.push(message);
                accepted.push(delivery);
            }
            Err(why) => {
                tracing::error!(why, key = %delivery.routing_key, "a message makes no sense");
                delivery.reject(BasicRejectOptions::default()).await?;
            }
        }
    }
    let Some(mut own) = store.take() else {
        return Err(Stop::Ended);
    };
    // The sync to disk must not hold up the connection's heartbeats.
    let task = tokio::task::spawn_blocking(move || {
        let outcomes = own.apply(&messages);
        (own, messages, outcomes)
    });
    let (own, messages, outcomes) = task.await?;
    *store = Some(own);
    for (message, outcome) in messages.iter().zip(outcomes?) {
        let event = &message.event;
        let (id, key, word) = (&message.id, &*event.key, &*event.event_type);
        if outcome == Outcome::Applied {
            tracing::debug!(id, key, token = event.token, word, "applied");
        } else {
            tracing::info!(id, key, token = event.token, word, ?outcome, "dropped");
        }
    }
    // Only now: whatever happens before, the messages come again.
    for delivery in accepted {
        delivery.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}
