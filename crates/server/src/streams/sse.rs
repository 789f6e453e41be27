//! Changes as server-sent events. A watcher resumes from a revision; when that is gone it is notified
//! and gets a snapshot (L20).

use std::{convert::Infallible, task::Poll, time::Duration};

use axum::{
    body::{Body, Bytes},
    response::{IntoResponse as _, Response},
};
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use lease::{Revision, Watching};
use leasehold_api::authority::Frame;
use tokio::{
    sync::{broadcast::error::RecvError, mpsc},
    time::timeout,
};

use super::{
    rooms::{Pieces, Seat, Wanted},
    text::{self, Format, Said},
    watcher::Watcher,
};
use crate::{App, Reject, auth::Caller, metrics::Open, readers};

/// How many pieces may wait for a reader, and from how many bytes on a piece goes out by itself. Changes that
/// are there together go out together.
const PIECES: usize = 2;
const PIECE_BYTES: usize = 16 * 1024;
/// A revision that never will be: who resumes from it gets a snapshot.
const NEVER: Revision = Revision::new(1 << 53);

/// An open stream of the changes that are wanted, and that this caller may see. It is written on the readers' threads.
pub(crate) async fn events(
    app: &App,
    caller: Caller,
    watching: Watching,
    format: Format,
) -> Result<Response, Reject> {
    let (pieces, written) = mpsc::channel(PIECES);
    let subscriber = Subscriber {
        heartbeat: app.parts().limits.stream_heartbeat(),
        app: app.clone(),
        caller,
        watching,
        format,
        pieces,
        seat: None,
        seen: None,
        _open: app.metrics().watcher(),
    };
    let (subscriber, source) = readers::run(subscriber.open()).await?;
    readers::spawn(subscriber.write(source));
    let written = stream::unfold(written, |mut written| async move {
        Some((Ok::<Bytes, Infallible>(written.recv().await?), written))
    });
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, Body::from_stream(written)).into_response())
}

/// Where a subscriber's changes come from.
enum Source {
    /// A watch of its own: until it has caught up, or when nobody else wants the same.
    Own(Box<Watcher>),
    /// The watch that it shares with those who want the same.
    Shared(Pieces),
}

/// One reader of a stream.
struct Subscriber {
    app: App,
    caller: Caller,
    watching: Watching,
    format: Format,
    heartbeat: Duration,
    pieces: mpsc::Sender<Bytes>,
    /// Its seat in the room of those who want the same.
    seat: Option<Seat>,
    /// Up to where it has everything.
    seen: Option<Revision>,
    _open: Open,
}

/// Nobody reads any more.
struct Gone;

impl Subscriber {
    /// Takes a seat among those who want the same, and begins exactly where it wants to: with a watch of its own, or
    /// with the shared one if that is opened for it now.
    async fn open(mut self) -> Result<(Self, Source), Reject> {
        self.watching.tenant = self.caller.tenant_of(self.watching.tenant.take())?;
        let from = self.watching.from.take();
        let mut opened = None;
        if let Some(wanted) = Wanted::of(&self.caller, &self.watching, self.format) {
            let rooms = &self.app.parts().rooms;
            let seat = rooms.seat(&self.app, &self.caller, &self.watching, &wanted);
            let (seat, pieces) = seat.await?;
            self.seat = Some(seat);
            opened = pieces.filter(|_| from.is_none());
        }
        let source = match opened {
            Some(pieces) => Source::Shared(pieces),
            None => self.own(from).await?,
        };
        Ok((self, source))
    }

    async fn own(&self, from: Option<Revision>) -> Result<Source, Reject> {
        let watching = self.watching.clone().after(from);
        let watcher = Watcher::open(&self.app, self.caller.clone(), watching).await?;
        Ok(Source::Own(Box::new(watcher)))
    }

    /// Writes the stream to its end, or until nobody reads it any more.
    async fn write(mut self, source: Source) {
        // The greeting is sent immediately, so that the reader knows that nothing is missed from here on.
        let mut going = self
            .send(self.format.greeting())
            .await
            .map(|()| Some(source));
        while let Ok(Some(source)) = going {
            going = match source {
                Source::Own(watcher) => self.follow(watcher).await,
                Source::Shared(pieces) => self.listen(pieces).await,
            };
        }
    }

    async fn send(&self, text: impl Into<Bytes>) -> Result<(), Gone> {
        self.pieces.send(text.into()).await.map_err(|_| Gone)
    }

    /// Passes on what the room says.
    async fn listen(&mut self, mut shared: Pieces) -> Result<Option<Source>, Gone> {
        loop {
            let piece = tokio::select! {
                () = self.pieces.closed() => return Err(Gone),
                piece = timeout(self.heartbeat, shared.recv()) => piece,
            };
            match piece {
                Err(_) => self.send(": alive\n\n").await?,
                Ok(Ok(piece)) => {
                    let mut text = piece.after(self.seen);
                    while !text.is_empty() {
                        let some = text.split_to(text.len().min(PIECE_BYTES));
                        self.send(some).await?;
                    }
                    self.seen = piece.seen(self.seen);
                    if piece.last {
                        return Ok(None);
                    }
                }
                Ok(Err(RecvError::Lagged(_))) => return self.begin_again().await,
                Ok(Err(RecvError::Closed)) => return Ok(None),
            }
        }
    }

    /// It was too slow. Renewals are not kept, so a watcher that wants them begins with a snapshot.
    async fn begin_again(&mut self) -> Result<Option<Source>, Gone> {
        let from = self.seen.filter(|_| !self.watching.renewals);
        match self.own(Some(from.unwrap_or(NEVER))).await {
            Ok(source) => Ok(Some(source)),
            Err(reject) => {
                let mut text = Vec::new();
                self.put(&mut text, Err(Box::new(reject.into_problem())))
                    .await?;
                self.send(text).await?;
                Ok(None)
            }
        }
    }

    /// Follows a watch of its own, until it has caught up with the room.
    async fn follow(&mut self, mut watcher: Box<Watcher>) -> Result<Option<Source>, Gone> {
        let mut shared: Option<(Revision, Pieces)> = None;
        loop {
            let said = tokio::select! {
                () = self.pieces.closed() => return Err(Gone),
                said = timeout(self.heartbeat, watcher.next()) => said,
            };
            // A watch that says nothing may be about to begin again, without what it missed. What it says after the
            // subscriber began to listen to the room as well joins the one to the other.
            let joined = shared.is_some() && matches!(said, Ok(Some(_)));
            let mut text = Vec::new();
            match said {
                Ok(None) => return Ok(None),
                Ok(Some(said)) => self.put(&mut text, said).await?,
                Err(_) => text.extend(b": alive\n\n"),
            }
            let is_all = self.drain(&mut watcher, &mut text).await?;
            if !text.is_empty() {
                self.send(text).await?;
            }
            // A history that went back may have taken the subscriber behind where it began to listen.
            shared.take_if(|(from, _)| self.seen.is_none_or(|seen| seen < *from));
            if is_all && let Some((_, shared)) = shared.take_if(|_| joined) {
                return Ok(Some(Source::Shared(shared)));
            }
            if is_all && shared.is_none() {
                let caught_up = self.seat.as_ref().zip(self.seen);
                shared = caught_up.and_then(|(seat, seen)| seat.listen_after(seen));
            }
        }
    }

    /// Takes what is available, up to the size of a piece. Returns whether that was all.
    async fn drain(&mut self, watcher: &mut Watcher, text: &mut Vec<u8>) -> Result<bool, Gone> {
        while text.len() < PIECE_BYTES {
            match watcher.ready() {
                Poll::Pending => return Ok(true),
                Poll::Ready(None) => return Ok(false),
                Poll::Ready(Some(said)) => self.put(text, said).await?,
            }
        }
        Ok(false)
    }

    /// Writes one message. What is too large for a piece goes out in several.
    async fn put(&mut self, text: &mut Vec<u8>, said: Said) -> Result<(), Gone> {
        let frame = said.as_ref().ok();
        let revision = frame.and_then(text::revision);
        // A snapshot says where the history is, also if that is further back.
        let begins = matches!(frame, Some(Frame::Snapshot(_)));
        for part in text::write(text, self.format, said) {
            text.extend(part);
            if text.len() >= PIECE_BYTES {
                self.send(std::mem::take(text)).await?;
            }
        }
        self.seen = if begins {
            revision
        } else {
            self.seen.max(revision)
        };
        Ok(())
    }
}
