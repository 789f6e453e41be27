//! The authority's changes over HTTP, on a holder's stream where one is open: one connection, from its
//! opening to its end. [`Follower`] makes
//! the next one from the last revision, so that nothing is missing in between; when that is gone the
//! server says so with a snapshot (L20).

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::stream;
use http_body_util::BodyExt;
use lease::{Notice, Watch, Watching};
use leasehold_api::authority::{Frame, WATCH};

use crate::{
    Client, Error, Remote,
    follower::{Change, Follower},
    sse,
    transport::Body,
};

/// How long opening may take.
const OPEN_LIMIT: Duration = Duration::from_secs(5);
/// A stream on which nothing comes, not even a sign of life, is dead. Servers send one every
/// 15 seconds or less.
const SILENCE_LIMIT: Duration = Duration::from_secs(45);
/// The shortest and the longest pause before the next connection.
const PAUSE_MS: (u64, u64) = (50, 5_000);

struct Connection {
    body: Body,
    reader: sse::Reader,
    ready: VecDeque<Frame>,
}

/// Opens a watch; returns when the server has confirmed it. It goes on over new connections until an
/// error is definite.
pub(crate) async fn open(
    remote: Remote,
    client: Client,
    watching: Watching,
) -> Result<Watch, lease::Error> {
    let first = connect(remote.clone(), client.clone(), watching.clone()).await?;
    let again = move |watching| {
        let (remote, client) = (remote.clone(), client.clone());
        Box::pin(connect(remote, client, watching)) as _
    };
    let follower = Follower::opening(again, Arc::new(leasehold_clock::System), watching)
        .with_pauses(PAUSE_MS.0, PAUSE_MS.1)
        .opened(first);
    let notices = stream::unfold(Some(follower), |follower| async {
        let mut follower = follower?;
        Some(match notice(&mut follower).await {
            Ok(notice) => (Ok(notice), Some(follower)),
            Err(error) => (Err(error), None),
        })
    });
    Ok(Box::pin(notices))
}

async fn notice(follower: &mut Follower) -> Result<Notice, lease::Error> {
    loop {
        match follower.next().await? {
            Change::Event(event) => return Ok(Notice::Event(event)),
            Change::Resync(Some(snapshot)) => return Ok(Notice::Snapshot(snapshot)),
            Change::Progress(revision) => return Ok(Notice::Progress(revision)),
            Change::Interrupted(error) if !error.is_retryable() => return Err(error),
            // A watch over HTTP always begins from a revision, so there is a place to resume from.
            Change::Resync(None) | Change::Interrupted(_) => {}
        }
    }
}

async fn connect(
    remote: Remote,
    client: Client,
    watching: Watching,
) -> Result<Watch, lease::Error> {
    if let Some(stream) = remote.any_stream() {
        match tokio::time::timeout(OPEN_LIMIT, stream.watch(watching.clone())).await {
            Ok(Err(lease::Error::Unavailable(_))) | Err(_) => {}
            Ok(opened) => return opened,
        }
    }
    let connection = Connection::open(&remote, &client, &watching).await?;
    let notices = stream::unfold(Some(connection), |connection| async {
        let mut connection = connection?;
        loop {
            let notice = match connection.next().await? {
                Frame::Event(event) => Notice::Event(event),
                Frame::Snapshot(snapshot) => Notice::Snapshot(snapshot),
                Frame::Progress(revision) => Notice::Progress(revision),
                Frame::Failed(fault) => return Some((Err(lease::Error::from(fault)), None)),
                Frame::Open => continue,
                Frame::Goodbye => return None,
            };
            return Some((Ok(notice), Some(connection)));
        }
    });
    Ok(Box::pin(notices))
}

impl Connection {
    async fn open(
        remote: &Remote,
        client: &Client,
        watching: &Watching,
    ) -> Result<Self, lease::Error> {
        let call = remote.call(WATCH, watching)?;
        let opening = async {
            let response = client.open(&call).await?;
            let mut connection = Self {
                body: response.into_body(),
                reader: sse::Reader::default(),
                ready: VecDeque::new(),
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
