//! Messages on their way out: to RabbitMQ with publisher confirms, or as JSON lines to standard output.
//!
//! The queue is bounded, and a message whose tenure is over is dropped at the last moment before it is
//! sent: a broker that was away does not get under an old token what it missed.

use std::{collections::VecDeque, io::Write as _, sync::Arc, time::Duration};

use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind,
    options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions},
    types::FieldTable,
};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use serde_json::json;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{message::Topic, metrics::Metrics, tenure::Tenure};

/// Messages that wait for the broker; what does not fit is dropped and counted.
const WAITING: usize = 4096;
/// How many are on their way to the broker simultaneously.
const BATCH: usize = 256;
/// How long the broker may take for one step.
const BROKER_TIMEOUT: Duration = Duration::from_secs(10);
/// The shortest and the longest pause between attempts to reach the broker.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// AMQP's word for "keep it on disk".
const PERSISTENT: u8 = 2;

/// Where messages go.
#[derive(Clone, Debug)]
pub enum Sink {
    /// To this RabbitMQ broker.
    Broker(SecretString),
    /// To standard output, one JSON object per line.
    Lines,
}

/// One message.
struct Message {
    topic: Topic,
    routing_key: String,
    id: String,
    body: Vec<u8>,
    tenure: Arc<Tenure>,
    /// Whoever waits until it was sent or dropped.
    done: Option<oneshot::Sender<()>>,
}

/// Where messages are left. Cheap to clone.
#[derive(Clone)]
pub(super) struct Publisher {
    queue: mpsc::Sender<Message>,
    metrics: Arc<Metrics>,
}

/// A message and where it goes.
pub(super) struct Letter<'a, T> {
    pub topic: Topic,
    pub tenant: &'a str,
    pub site: &'a str,
    pub camera: &'a str,
    pub message_id: String,
    pub body: &'a T,
}

impl Publisher {
    /// Leaves a message to be sent while its tenure lasts; it is dropped when too many wait already.
    pub fn publish<T: Serialize>(&self, letter: &Letter<'_, T>, tenure: &Arc<Tenure>) {
        self.push(letter, tenure, None);
    }

    /// The same, and waits until it and all before it were sent or dropped, at most for so long.
    pub async fn publish_and_wait<T: Serialize>(
        &self,
        letter: &Letter<'_, T>,
        tenure: &Arc<Tenure>,
        limit: Duration,
    ) {
        let (done, sent) = oneshot::channel();
        self.push(letter, tenure, Some(done));
        let _ = timeout(limit, sent).await;
    }

    fn push<T: Serialize>(
        &self,
        letter: &Letter<'_, T>,
        tenure: &Arc<Tenure>,
        done: Option<oneshot::Sender<()>>,
    ) {
        let exchange = letter.topic.exchange();
        if !tenure.may_publish() {
            self.metrics.published(exchange, "fenced");
            return;
        }
        let Ok(body) = serde_json::to_vec(letter.body) else {
            self.metrics.published(exchange, "failed");
            return;
        };
        let message = Message {
            topic: letter.topic,
            routing_key: leasehold_api::routing::key(
                letter.topic.head(),
                Some(letter.tenant),
                Some(letter.site),
                letter.camera,
            ),
            id: letter.message_id.clone(),
            body,
            tenure: tenure.clone(),
            done,
        };
        if self.queue.try_send(message).is_err() {
            self.metrics.published(exchange, "dropped");
        }
    }
}

/// The publisher, and the task that sends what is left with it until every clone of it is gone.
pub(super) fn start(
    sink: Sink,
    metrics: Arc<Metrics>,
) -> (Publisher, impl Future<Output = ()> + Send + 'static) {
    let (queue, waiting) = mpsc::channel(WAITING);
    let publisher = Publisher {
        queue,
        metrics: metrics.clone(),
    };
    let task = async move {
        match sink {
            Sink::Broker(url) => to_broker(&url, waiting, &metrics).await,
            Sink::Lines => to_lines(waiting, &metrics).await,
        }
    };
    (publisher, task)
}

async fn to_lines(mut waiting: mpsc::Receiver<Message>, metrics: &Metrics) {
    while let Some(message) = waiting.recv().await {
        let exchange = message.topic.exchange();
        if !message.tenure.may_publish() {
            metrics.published(exchange, "fenced");
            continue;
        }
        let body: serde_json::Value = serde_json::from_slice(&message.body).unwrap_or_default();
        let line = json!({
            "exchange": exchange,
            "routing_key": message.routing_key,
            "message": body,
        });
        // Whoever reads may be slow; nothing else of the worker waits for that.
        let written = tokio::task::spawn_blocking(move || {
            let mut stdout = std::io::stdout().lock();
            stdout
                .write_all(format!("{line}\n").as_bytes())
                .and_then(|()| stdout.flush())
        });
        let outcome = match written.await {
            Ok(Ok(())) => "sent",
            Ok(Err(_)) | Err(_) => "failed",
        };
        metrics.published(exchange, outcome);
        finish(message);
    }
}

fn finish(message: Message) {
    if let Some(done) = message.done {
        let _ = done.send(());
    }
}

async fn to_broker(url: &SecretString, mut queue: mpsc::Receiver<Message>, metrics: &Metrics) {
    let mut waiting: VecDeque<Message> = VecDeque::new();
    let mut pause = PAUSE.0;
    loop {
        let link = match timeout(BROKER_TIMEOUT, connect(url)).await {
            Ok(Ok(link)) => link,
            // The address may hold a password, so only the kind of failure is logged.
            failed => {
                let error = match failed {
                    Ok(Err(error)) => error.to_string(),
                    _ => "no answer".to_owned(),
                };
                tracing::warn!(error, "broker unreachable");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
                // Nobody is left who could want it sent.
                if queue.is_closed() && queue.is_empty() {
                    return;
                }
                continue;
            }
        };
        tracing::info!("broker connected");
        pause = PAUSE.0;
        loop {
            if waiting.is_empty() {
                match queue.recv().await {
                    Some(message) => waiting.push_back(message),
                    None => return,
                }
            }
            while waiting.len() < BATCH
                && let Ok(message) = queue.try_recv()
            {
                waiting.push_back(message);
            }
            if let Err(error) = send(&link, &mut waiting, metrics).await {
                tracing::warn!(error, unconfirmed = waiting.len(), "broker lost");
                break;
            }
        }
    }
}

/// A connection that is kept as long as its channel is used.
struct Link {
    _connection: Connection,
    channel: Channel,
}

async fn connect(url: &SecretString) -> Result<Link, lapin::Error> {
    let properties = ConnectionProperties::default();
    let connection = Connection::connect(url.expose_secret(), properties).await?;
    let channel = connection.create_channel().await?;
    for topic in Topic::ALL {
        let durable = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        channel
            .exchange_declare(
                topic.exchange().into(),
                ExchangeKind::Topic,
                durable,
                FieldTable::default(),
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

/// Sends all that wait, in order, and keeps what the broker has not confirmed.
async fn send(
    link: &Link,
    waiting: &mut VecDeque<Message>,
    metrics: &Metrics,
) -> Result<(), String> {
    let mut confirms = Vec::with_capacity(waiting.len());
    for message in waiting.iter() {
        if !message.tenure.may_publish() {
            confirms.push(None);
            continue;
        }
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(PERSISTENT)
            .with_message_id(message.id.as_str().into());
        let published = link.channel.basic_publish(
            message.topic.exchange().into(),
            message.routing_key.as_str().into(),
            BasicPublishOptions::default(),
            &message.body,
            properties,
        );
        let confirm = timeout(BROKER_TIMEOUT, published)
            .await
            .map_err(|_| "no answer".to_owned())?
            .map_err(|error| error.to_string())?;
        confirms.push(Some(confirm));
    }
    for confirm in confirms {
        let outcome = match confirm {
            None => "fenced",
            Some(confirm) => {
                let confirmed = timeout(BROKER_TIMEOUT, confirm)
                    .await
                    .map_err(|_| "no confirmation".to_owned())?
                    .map_err(|error| error.to_string())?;
                if !confirmed.is_ack() {
                    return Err("not confirmed".to_owned());
                }
                "sent"
            }
        };
        if let Some(message) = waiting.pop_front() {
            metrics.published(message.topic.exchange(), outcome);
            finish(message);
        }
    }
    Ok(())
}
