//! The live changes of this replica: one connection for all its watchers. What the channel did not
//! bring is read from the history here, once, so that watchers get every change in order.

use std::sync::Arc;

use ::redis::aio::PubSubStream;
use futures_util::StreamExt;
use lease::{Error, Event, EventKind, Revision};
use tokio::{
    sync::oneshot,
    time::{Duration, timeout},
};

use super::{Inner, events};
use crate::live::Live;

/// How many events a watcher may be behind before it has to begin again.
const ROOM: usize = 8192;
/// How many missed events are read at a time.
const STEP: usize = 1000;
/// How often the history is checked when the channel is silent.
const LOOK: Duration = Duration::from_secs(1);
/// The pause between attempts to listen or to read again.
const AGAIN: Duration = Duration::from_millis(200);

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

/// Ends all watches when the listener does.
struct Closing(Live);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Begins to listen, and returns once it does, or with why it could not.
pub(super) async fn start(inner: &Arc<Inner>) -> Result<Live, Error> {
    let (ready, listening) = oneshot::channel();
    let stop = inner.stop.clone();
    let task = listen(inner.clone(), ready);
    let listener = inner.runtime.spawn(async move {
        stop.run_until_cancelled(task).await;
    });
    match timeout(inner.link.connect_timeout() * 2, listening).await {
        Ok(Ok(Ok(live))) => Ok(live),
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

async fn listen(inner: Arc<Inner>, ready: oneshot::Sender<Result<Live, Error>>) {
    let first = async {
        let subscribed = subscribe(&inner, inner.keys.news()).await?;
        // Listening comes first, so that nothing falls between the history and the stream.
        let bounds = inner.history(u64::MAX, 0).await?;
        Ok((subscribed, Revision::new(bounds.newest)))
    };
    let ((mut stream, mut generation), at) = match first.await {
        Ok(begun) => begun,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let live = Live::new(ROOM, at);
    let mut feed = Feed {
        inner: inner.clone(),
        live: live.clone(),
        at,
    };
    let _closing = Closing(live.clone());
    let _ = ready.send(Ok(live));
    loop {
        feed.pass_on(stream, generation).await;
        (stream, generation) = loop {
            tokio::time::sleep(AGAIN).await;
            match subscribe(&inner, inner.keys.news()).await {
                Ok(subscribed) => break subscribed,
                Err(error) => tracing::debug!(%error, "not listening for changes"),
            }
        };
    }
}

struct Feed {
    inner: Arc<Inner>,
    live: Live,
    /// The last revision that was handed out.
    at: Revision,
}

impl Feed {
    /// Passes messages on until the channel ends or another server decides.
    async fn pass_on(&mut self, mut stream: PubSubStream, generation: u64) {
        // What happened before this channel began.
        self.catch_up().await;
        loop {
            match timeout(LOOK, stream.next()).await {
                Ok(Some(message)) => match events::news(message.get_payload_bytes()) {
                    Ok(events) => self.take(events).await,
                    Err(error) => {
                        tracing::warn!(%error, "unreadable message on the live channel");
                        self.catch_up().await;
                    }
                },
                Ok(None) => return,
                Err(_) => {
                    self.catch_up().await;
                    if self.inner.link.generation() != generation {
                        return;
                    }
                }
            }
        }
    }

    async fn take(&mut self, events: Vec<Event>) {
        for event in events {
            let live = if event.revision == self.at.next() {
                self.at = event.revision;
                true
            } else if event.revision > self.at {
                // The history has it, in its place.
                self.catch_up().await;
                false
            } else {
                // Known already; a renewal that is not kept has the revision it came after.
                event.kind == EventKind::LeaseRenewed && event.revision == self.at
            };
            if live {
                self.live.publish([event]);
            }
        }
    }

    /// Hands out what the history has after the last revision; when it has not all of it, everybody
    /// begins again. Goes on until the store answers.
    async fn catch_up(&mut self) {
        loop {
            let stretch = match self.inner.history(self.at.get(), STEP).await {
                Ok(stretch) => stretch,
                Err(error) => {
                    tracing::debug!(%error, "the live stream waits for the store");
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            };
            if stretch.lacks(self.at) {
                self.at = Revision::new(stretch.newest);
                self.live.begin_again(self.at);
                return;
            }
            if let Some(last) = stretch.entries.last() {
                self.at = last.event.revision;
            } else if self.at == Revision::ZERO {
                self.at = Revision::new(stretch.base);
            }
            let whole = stretch.entries.len() < STEP;
            self.live
                .publish(stretch.entries.into_iter().map(|entry| entry.event));
            if whole {
                return;
            }
        }
    }
}
