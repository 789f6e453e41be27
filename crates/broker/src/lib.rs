//! RabbitMQ: how Leasehold reaches a broker and publishes with confirms. What is published, and when it may
//! be, is decided by whoever publishes.

use std::time::Duration;

use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind, PublisherConfirm,
    options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions},
    types::FieldTable,
    uri::AMQPUri,
};
use lease::{Clock, Invalid};
use leasehold_clock::Backoff;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::timeout;

/// How long the broker may take for one step.
const STEP: Duration = Duration::from_secs(10);
/// The shortest and the longest pause between attempts to reach the broker.
const PAUSE_MS: (u64, u64) = (100, 5_000);
/// AMQP's word for "keep it on disk".
const PERSISTENT: u8 = 2;

/// The pauses between attempts of whoever publishes.
pub fn backoff() -> Backoff {
    Backoff::new(PAUSE_MS.0, PAUSE_MS.1)
}

/// Why the broker did not take something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection or the channel failed.
    #[error("{0}")]
    Failed(#[from] lapin::Error),
    /// Nothing came back in time.
    #[error("no answer")]
    NoAnswer,
    /// It said no.
    #[error("not confirmed")]
    NotConfirmed,
}

/// Where a broker is.
#[derive(Clone, Debug)]
pub struct Broker(SecretString);

impl Broker {
    /// A broker by its address; `field` is what the address is called where it was set.
    pub fn new(field: &'static str, url: SecretString) -> Result<Self, Invalid> {
        let text = url.expose_secret();
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        if matches!(scheme, Some("amqp" | "amqps")) && text.parse::<AMQPUri>().is_ok() {
            return Ok(Self(url));
        }
        let expected = "amqp://HOST, or amqps://HOST for an encrypted connection";
        Err(Invalid::new(field, expected))
    }

    /// Connects, declares the durable topic exchanges and asks for confirms, again and again until it works.
    pub async fn reach(&self, exchanges: &[&str], clock: &dyn Clock) -> Link {
        let mut backoff = backoff();
        let mut away = false;
        loop {
            let reason = match timeout(STEP, self.connect(exchanges)).await {
                Ok(Ok(link)) => {
                    tracing::info!("broker connected");
                    return link;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => Error::NoAnswer.to_string(),
            };
            // The address may hold a password, so only the kind of failure is logged, and once.
            if !std::mem::replace(&mut away, true) {
                tracing::warn!(reason, "broker unreachable");
            }
            backoff.pause(clock).await;
        }
    }

    async fn connect(&self, exchanges: &[&str]) -> Result<Link, lapin::Error> {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(self.0.expose_secret(), properties).await?;
        let channel = connection.create_channel().await?;
        for exchange in exchanges {
            let durable = ExchangeDeclareOptions {
                durable: true,
                ..ExchangeDeclareOptions::default()
            };
            let nothing_more = FieldTable::default();
            channel
                .exchange_declare(
                    (*exchange).into(),
                    ExchangeKind::Topic,
                    durable,
                    nothing_more,
                )
                .await?;
        }
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        Ok(Link {
            _connection: connection,
            channel,
        })
    }
}

/// A connection that is kept as long as its channel is used.
pub struct Link {
    _connection: Connection,
    channel: Channel,
}

/// One JSON message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Message<'a> {
    /// Where it goes.
    pub exchange: &'a str,
    /// Which queues get it.
    pub routing_key: &'a str,
    /// What it says.
    pub body: &'a [u8],
    /// What consumers know it by. One that has an id is kept on the broker's disk.
    pub id: Option<&'a str>,
    /// What kind of message it is.
    pub kind: Option<&'a str>,
    /// When it happened, in seconds since 1970.
    pub at: Option<u64>,
}

impl Link {
    /// Sends a message. That the broker has it is what [`Sent::confirmed`] waits for.
    pub async fn publish(&self, message: Message<'_>) -> Result<Sent, Error> {
        let mut properties =
            BasicProperties::default().with_content_type("application/json".into());
        if let Some(id) = message.id {
            properties = properties
                .with_delivery_mode(PERSISTENT)
                .with_message_id(id.into());
        }
        if let Some(kind) = message.kind {
            properties = properties.with_type(kind.into());
        }
        if let Some(at) = message.at {
            properties = properties.with_timestamp(at);
        }
        let published = self.channel.basic_publish(
            message.exchange.into(),
            message.routing_key.into(),
            BasicPublishOptions::default(),
            message.body,
            properties,
        );
        let confirm = timeout(STEP, published)
            .await
            .map_err(|_| Error::NoAnswer)??;
        Ok(Sent(confirm))
    }
}

/// A message on its way.
pub struct Sent(PublisherConfirm);

impl Sent {
    /// Waits until the broker has it, on disk where it keeps it there.
    pub async fn confirmed(self) -> Result<(), Error> {
        let confirmation = timeout(STEP, self.0).await.map_err(|_| Error::NoAnswer)??;
        if confirmation.is_ack() {
            Ok(())
        } else {
            Err(Error::NotConfirmed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_broker_s_address_is_taken() {
        for right in ["amqp://h", "amqps://user:secret@h:5671/%2f"] {
            let broker = Broker::new("amqp", right.to_owned().into()).unwrap();
            assert!(!format!("{broker:?}").contains("secret"), "{broker:?}");
        }
        for wrong in ["http://x", "https://x", "x", "amqp:", "redis://h", ""] {
            let refused = Broker::new("amqp", wrong.to_owned().into()).unwrap_err();
            assert_eq!(refused.field, "amqp", "{wrong}");
        }
    }
}
