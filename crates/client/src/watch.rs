//! The authority's changes over HTTP. A connection that breaks is made again from the last revision,
//! so that nothing is missing in between; when that is gone the server says so with a snapshot (L20).

use std::time::Duration;

use futures_util::stream;
use http_body_util::BodyExt;
use lease::{Notice, Revision, Watch};
use leasehold_api::authority::Frame;

use crate::{Client, Error, Remote, sse, transport::Body, wait::Backoff};

/// How long opening may take.
const OPEN_LIMIT: Duration = Duration::from_secs(5);
/// A stream on which nothing comes, not even a sign of life, is dead. Servers send one every
/// 15 seconds or less.
const SILENCE_LIMIT: Duration = Duration::from_secs(45);

/// One connection and how far it got.
struct Follower {
    remote: Remote,
    client: Client,
    last: Revision,
    connection: Option<Connection>,
    backoff: Backoff,
}

struct Connection {
    body: Body,
    reader: sse::Reader,
    ready: std::collections::VecDeque<Frame>,
}

/// Opens a watch from `from`; returns when the server has confirmed it.
pub(crate) async fn open(
    remote: Remote,
    client: Client,
    from: Revision,
) -> Result<Watch, lease::Error> {
    let connection = Connection::open(&remote, &client, from).await?;
    let follower = Follower {
        remote,
        client,
        last: from,
        connection: Some(connection),
        backoff: Backoff::new(50, 5_000),
    };
    let notices = stream::unfold(Some(follower), |follower| async {
        let mut follower = follower?;
        Some(match follower.next().await {
            Ok(notice) => (Ok(notice), Some(follower)),
            Err(error) => (Err(error), None),
        })
    });
    Ok(Box::pin(notices))
}

impl Follower {
    /// The next change, through every interruption. Fails only for good.
    async fn next(&mut self) -> Result<Notice, lease::Error> {
        loop {
            let Some(connection) = &mut self.connection else {
                self.reconnect().await?;
                continue;
            };
            match connection.next().await {
                Some(Frame::Event(event)) => {
                    self.backoff.reset();
                    self.last = self.last.max(event.revision);
                    return Ok(Notice::Event(event));
                }
                Some(Frame::Snapshot(snapshot)) => {
                    // It may lie before the last event when the store lost its data.
                    self.last = snapshot.revision;
                    return Ok(Notice::Snapshot(snapshot));
                }
                Some(Frame::Failed(fault)) => {
                    let error = lease::Error::from(fault);
                    if !error.is_retryable() {
                        return Err(error);
                    }
                    self.connection = None;
                }
                Some(Frame::Open) => {}
                Some(Frame::Goodbye) | None => self.connection = None,
            }
        }
    }

    async fn reconnect(&mut self) -> Result<(), lease::Error> {
        tokio::time::sleep(Duration::from_millis(self.backoff.next_ms())).await;
        match Connection::open(&self.remote, &self.client, self.last).await {
            Ok(connection) => self.connection = Some(connection),
            Err(error) if error.is_retryable() => {
                tracing::debug!(%error, "the stream of changes is interrupted");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Connection {
    async fn open(remote: &Remote, client: &Client, from: Revision) -> Result<Self, lease::Error> {
        let call = remote.call("watch", &Some(from))?;
        let opening = async {
            let response = client.open(&call).await?;
            let mut connection = Self {
                body: response.into_body(),
                reader: sse::Reader::default(),
                ready: std::collections::VecDeque::new(),
            };
            match connection.next().await {
                Some(Frame::Open) => Ok(connection),
                Some(Frame::Failed(fault)) => Err(fault.into()),
                Some(_) | None => Err(lease::Error::from(Error::Unknown(
                    "the stream did not begin".into(),
                ))),
            }
        };
        match tokio::time::timeout(OPEN_LIMIT, opening).await {
            Ok(outcome) => outcome,
            // Nothing happens by opening a stream.
            Err(_) => Err(lease::Error::Unavailable("the stream did not open".into())),
        }
    }

    /// The next frame; `None` when the connection is of no use any more.
    async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame);
            }
            let piece = tokio::time::timeout(SILENCE_LIMIT, self.body.frame())
                .await
                .ok()??
                .ok()?;
            let Ok(bytes) = piece.into_data() else {
                continue;
            };
            for data in self.reader.feed(&bytes).ok()? {
                self.ready.push_back(serde_json::from_slice(&data).ok()?);
            }
        }
    }
}
