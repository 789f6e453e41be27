//! Messages on their way out: to RabbitMQ with publisher confirms, or as JSON lines to standard output.
//!
//! The queue is bounded, and a message whose tenure is over is dropped at the last moment before it is
//! sent: a broker that was away does not get under an old token what it missed.

use std::{collections::VecDeque, io::Write as _, sync::Arc, time::Duration};

use lease::{Clock, Invalid};
use leasehold_broker::{Broker, Error, Link};
use secrecy::SecretString;
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

/// Where messages go.
#[derive(Clone, Debug)]
pub enum Sink {
    /// To this RabbitMQ broker.
    Broker(Broker),
    /// To standard output, one JSON object per line.
    Lines,
}

impl Sink {
    /// To the broker at this address.
    pub fn broker(url: SecretString) -> Result<Self, Invalid> {
        Broker::new("amqp", url).map(Self::Broker)
    }
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
    clock: Arc<dyn Clock>,
) -> (Publisher, impl Future<Output = ()> + Send + 'static) {
    let (queue, waiting) = mpsc::channel(WAITING);
    let publisher = Publisher {
        queue,
        metrics: metrics.clone(),
    };
    let task = async move {
        match sink {
            Sink::Broker(broker) => to_broker(&broker, waiting, &metrics, &*clock).await,
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

async fn to_broker(
    broker: &Broker,
    mut queue: mpsc::Receiver<Message>,
    metrics: &Metrics,
    clock: &dyn Clock,
) {
    let exchanges = Topic::ALL.map(Topic::exchange);
    let mut waiting: VecDeque<Message> = VecDeque::new();
    let mut pauses = leasehold_broker::backoff();
    loop {
        let Some(link) = reach(broker, &exchanges, &mut queue, &mut waiting, clock).await else {
            return;
        };
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
            match send(&link, &mut waiting, metrics).await {
                Ok(()) => pauses.reset(),
                Err(error) => {
                    tracing::warn!(%error, unconfirmed = waiting.len(), "broker lost");
                    break;
                }
            }
        }
        // A broker that takes connections and no messages is not asked without a pause.
        pauses.pause(clock).await;
    }
}

/// Reaches the broker, unless nobody is left who wants something sent.
async fn reach(
    broker: &Broker,
    exchanges: &[&str],
    queue: &mut mpsc::Receiver<Message>,
    waiting: &mut VecDeque<Message>,
    clock: &dyn Clock,
) -> Option<Link> {
    let reaching = broker.reach(exchanges, clock);
    tokio::pin!(reaching);
    let mut open = true;
    loop {
        tokio::select! {
            link = &mut reaching => return Some(link),
            message = queue.recv(), if open && waiting.len() < BATCH => match message {
                Some(message) => waiting.push_back(message),
                None if waiting.is_empty() => return None,
                None => open = false,
            },
        }
    }
}

/// Sends all that wait, in order, and keeps what the broker has not confirmed.
async fn send(
    link: &Link,
    waiting: &mut VecDeque<Message>,
    metrics: &Metrics,
) -> Result<(), Error> {
    let mut confirms = Vec::with_capacity(waiting.len());
    for message in waiting.iter() {
        if !message.tenure.may_publish() {
            confirms.push(None);
            continue;
        }
        let sent = link.publish(leasehold_broker::Message {
            exchange: message.topic.exchange(),
            routing_key: &message.routing_key,
            body: &message.body,
            id: Some(&message.id),
            ..leasehold_broker::Message::default()
        });
        confirms.push(Some(sent.await?));
    }
    for sent in confirms {
        let outcome = match sent {
            None => "fenced",
            Some(sent) => {
                sent.confirmed().await?;
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
