//! The live stream of this replica: one connection for all its watchers.

use std::sync::Arc;

use ::redis::aio::PubSubStream;
use futures_util::StreamExt;
use lease::{Error, Event};
use tokio::{
    sync::{broadcast, oneshot},
    time::{Duration, timeout},
};

use super::{Inner, events};

/// How many messages a watcher may be behind before it has to read the history instead.
const ROOM: usize = 8192;
/// How often the stream is checked when it says nothing.
const LOOK: Duration = Duration::from_secs(1);
/// The pause between attempts to listen again.
const AGAIN: Duration = Duration::from_millis(200);

/// What watchers get.
#[derive(Clone)]
pub(super) enum News {
    /// Changes, in order.
    Events(Arc<Vec<Event>>),
    /// Something may have been missed: read the history.
    Look,
}

/// The live stream.
pub(super) struct Feed {
    sender: broadcast::Sender<News>,
}

impl Feed {
    pub fn subscribe(&self) -> broadcast::Receiver<News> {
        self.sender.subscribe()
    }
}

/// Subscribes to a channel on a connection apart, at the server that decides now.
pub(super) async fn subscribe(
    inner: &Inner,
    channel: String,
) -> Result<(PubSubStream, u64), Error> {
    let (client, generation) = inner.link.client().await?;
    let attempt = async {
        let mut subscription = client.get_async_pubsub().await?;
        subscription.subscribe(channel).await?;
        Ok::<_, ::redis::RedisError>(subscription.into_on_message())
    };
    match timeout(inner.link.connect_timeout(), attempt).await {
        Ok(Ok(stream)) => Ok((stream, generation)),
        Ok(Err(error)) => Err(super::failure::not_sent(&error)),
        Err(_) => Err(Error::Unavailable("no subscription in time".into())),
    }
}

/// Begins to listen, and returns once it does, or with why it could not.
pub(super) async fn start(inner: &Arc<Inner>) -> Result<Feed, Error> {
    let (sender, _) = broadcast::channel(ROOM);
    let (ready, listening) = oneshot::channel();
    let stop = inner.stop.clone();
    let task = listen(inner.clone(), sender.clone(), ready);
    let listener = inner.runtime.spawn(async move {
        stop.run_until_cancelled(task).await;
    });
    match timeout(inner.link.connect_timeout() * 2, listening).await {
        Ok(Ok(Ok(()))) => Ok(Feed { sender }),
        Ok(Ok(Err(error))) => {
            listener.abort();
            Err(error)
        }
        Ok(Err(_)) | Err(_) => {
            listener.abort();
            Err(Error::Unavailable("no subscription in time".into()))
        }
    }
}

async fn listen(
    inner: Arc<Inner>,
    sender: broadcast::Sender<News>,
    ready: oneshot::Sender<Result<(), Error>>,
) {
    let mut ready = Some(ready);
    loop {
        match subscribe(&inner, inner.keys.news()).await {
            Ok((stream, generation)) => {
                if let Some(ready) = ready.take() {
                    let _ = ready.send(Ok(()));
                }
                pass_on(&inner, &sender, stream, generation).await;
            }
            Err(error) => {
                tracing::debug!(%error, "not listening for news");
                if let Some(ready) = ready.take() {
                    let _ = ready.send(Err(error));
                    return;
                }
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Passes messages on until the channel ends or another server decides.
async fn pass_on(
    inner: &Inner,
    sender: &broadcast::Sender<News>,
    mut stream: PubSubStream,
    generation: u64,
) {
    // Nobody listening is no failure: the last watcher is gone for now.
    let _ = sender.send(News::Look);
    loop {
        match timeout(LOOK, stream.next()).await {
            Ok(Some(message)) => {
                let news = match events::news(message.get_payload_bytes()) {
                    Ok(events) => News::Events(Arc::new(events)),
                    Err(error) => {
                        tracing::warn!(%error, "a message on the live stream");
                        News::Look
                    }
                };
                let _ = sender.send(news);
            }
            Ok(None) => return,
            Err(_) => {
                let _ = sender.send(News::Look);
                if inner.link.generation() != generation {
                    return;
                }
            }
        }
    }
}
