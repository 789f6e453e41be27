//! One holder's stream: what it does goes up, answers and losses come down (L17), and its end makes the end
//! of its process visible (L15).

use std::{io, pin::Pin, time::Duration};

use axum::{
    Error,
    extract::ws::{CloseFrame, Message, WebSocket, close_code},
};
use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use lease::{Departure, Holder};
use leasehold_api::{
    Code,
    stream::{self, Batch, Down, Encoding, Frame, Payload, Unread, Up, Welcome},
};
use tokio_tungstenite::tungstenite;

use super::{
    hub::Connection,
    operations::{self, Operations, failed},
};
use crate::{App, Reject, auth::Caller, body::KERNEL_BODY_BYTES, ops};

/// How long a peer has to answer a goodbye.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long a peer may take to read what it is sent.
const SEND_LIMIT: Duration = Duration::from_secs(30);
/// From how many bytes on a message goes out without waiting for further answers.
const MESSAGE_BYTES: usize = 64 * 1024;

/// Why an earlier connection of a holder is closed.
const TAKEN_OVER: &str = "another connection of this holder took over";

/// Who is at the other end.
pub(crate) struct Peer {
    pub holder: Holder,
    pub caller: Caller,
    /// Whether the end of the connection can only mean the end of the process.
    pub direct: bool,
    /// How frames are written.
    pub encoding: Encoding,
}

/// How a stream came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Either side said goodbye.
    Orderly,
    /// The peer's kernel closed the connection without a goodbye: its process is gone.
    Closed,
    /// Anything else, such as silence. Proves nothing.
    Unclear,
}

/// What rarely happens to a stream.
enum Interruption {
    /// The server is stopping.
    Stopping,
    /// A newer connection of the same holder took over.
    TakenOver,
    /// It is time to show that the server is alive.
    Ping,
}

/// Each is polled only when it was woken: polled before every frame, cancellation tokens and timers would take
/// locks that all streams share.
type Interruptions = FuturesUnordered<Pin<Box<dyn Future<Output = Interruption> + Send>>>;

/// Serves the stream to its end.
pub(crate) async fn serve(app: App, peer: Peer, mut socket: WebSocket) {
    let open = app.metrics().holder_stream();
    let mut connection = app
        .parts()
        .hub
        .connect(peer.caller.identity(peer.holder.clone()));
    let end = talk(&app, &peer, &mut connection, &mut socket).await;
    drop((socket, open));
    let proven = end == End::Closed && peer.direct && stays_away(&app, &connection).await;
    drop(connection);
    if proven {
        let departure = Departure::Died(peer.holder.clone());
        match ops::depart(&app, &peer.caller, departure).await {
            Ok(released) => {
                tracing::info!(holder = %peer.holder, released = released.len(), "a holder died");
            }
            Err(reject) => {
                let error = &reject.problem().detail;
                tracing::warn!(holder = %peer.holder, error, "a holder's death could not be recorded");
            }
        }
    }
}

/// Whether a holder whose connection is gone does not come back within the linger. A newer connection
/// of the same holder speaks for it, and a server that stops has no say.
async fn stays_away(app: &App, connection: &Connection) -> bool {
    let linger = app.parts().limits.death_linger();
    tokio::select! {
        biased;
        () = app.closing().cancelled() => false,
        () = connection.replaced.cancelled() => false,
        () = tokio::time::sleep(linger) => connection.is_newest(),
    }
}

async fn talk(app: &App, peer: &Peer, connection: &mut Connection, socket: &mut WebSocket) -> End {
    let mut speech = Speech {
        socket,
        batch: Batch::new(peer.encoding, peer.holder.clone()),
    };
    let now = match app.authority().now().await {
        Ok(now) => now,
        Err(error) => {
            let reason = Reject::from(error).into_problem().detail;
            return speech.goodbye(&reason).await;
        }
    };
    let welcome = Down::Welcome(Box::new(Welcome {
        holder: peer.holder.name.as_str().to_owned(),
        incarnation: peer.holder.incarnation.as_str().to_owned(),
        now: now.into(),
        proves_death: peer.direct,
        max_acquires: operations::MAX_ACQUIRES,
        max_others: operations::MAX_OTHERS,
        max_message_bytes: max_message_bytes(app),
    }));
    speech.batch.down(0, &welcome);
    if let Err(end) = speech.send().await {
        return end;
    }
    let heartbeat = app.parts().limits.stream_heartbeat();
    let ping = || tokio::time::sleep(heartbeat).map(|()| Interruption::Ping);
    let stopping = app.closing().clone().cancelled_owned();
    let taken_over = connection.replaced.clone().cancelled_owned();
    let mut interruptions = Interruptions::new();
    interruptions.push(stopping.map(|()| Interruption::Stopping).boxed());
    interruptions.push(taken_over.map(|()| Interruption::TakenOver).boxed());
    interruptions.push(ping().boxed());
    let releases = connection.releases();
    let mut operations = Operations::new(app, peer, &releases);
    loop {
        tokio::select! {
            Some(interruption) = interruptions.next() => match interruption {
                Interruption::Stopping => return speech.goodbye("the server is stopping").await,
                Interruption::TakenOver => return speech.goodbye(TAKEN_OVER).await,
                Interruption::Ping => {
                    interruptions.push(ping().boxed());
                    if let Err(end) = speech.message(Message::Ping(Vec::new().into())).await {
                        return end;
                    }
                }
            },
            message = connection.messages.recv() => {
                // The hub lets go of a connection only when a newer one took its place.
                let Some(message) = message else { return speech.goodbye(TAKEN_OVER).await };
                speech.batch.down(0, &message);
                if connection.missed() {
                    speech.batch.down(0, &Down::Missed);
                }
            }
            (id, down) = operations.next() => speech.batch.down(id, &down),
            received = speech.socket.recv() => match received {
                None => return End::Closed,
                Some(Err(error)) => return ending(error),
                Some(Ok(Message::Close(_))) => return End::Orderly,
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Text(text))) => {
                    if heard(peer, &mut operations, &mut speech.batch, Encoding::Json, text.as_bytes()) {
                        return End::Orderly;
                    }
                }
                Some(Ok(Message::Binary(bytes))) => {
                    if heard(peer, &mut operations, &mut speech.batch, Encoding::Binary, &bytes) {
                        return End::Orderly;
                    }
                }
            },
        }
        let mut gathered = 0;
        loop {
            while speech.batch.len() < MESSAGE_BYTES
                && let Some((id, down)) = operations.next().now_or_never()
            {
                speech.batch.down(id, &down);
            }
            if speech.batch.len() == gathered || !operations.is_busy() {
                break;
            }
            // What is decided together is answered together: let the others come, while they keep coming.
            gathered = speech.batch.len();
            tokio::task::yield_now().await;
        }
        if let Err(end) = speech.send().await {
            return end;
        }
    }
}

/// Starts what a message requests. What cannot be started is answered immediately. Returns whether the holder
/// said goodbye.
fn heard(
    peer: &Peer,
    operations: &mut Operations<'_>,
    answers: &mut Batch,
    encoding: Encoding,
    message: &[u8],
) -> bool {
    if encoding != peer.encoding {
        let expected = match peer.encoding {
            Encoding::Binary => "binary messages on this connection",
            Encoding::Json => "text messages on this connection",
        };
        answers.down(0, &failed(Reject::field("message", expected)));
        return false;
    }
    for frame in stream::read_up(encoding, message, &peer.holder) {
        let (id, refused) = match frame {
            Ok(Frame {
                body: Up::Goodbye, ..
            }) => return true,
            Ok(frame) => (frame.id, operations.begin(frame)),
            Err(unread) => (unread.id, Err(refusal(unread))),
        };
        if let Err(reject) = refused {
            answers.down(id, &failed(reject));
        }
    }
    false
}

/// A newer holder may ask for what is not known here: it learns that, and nothing happened.
fn refusal(unread: Unread) -> Reject {
    match unread.unknown_type {
        Some(unknown) => Reject::new(
            Code::NotSupported,
            format!("frames of the type {unknown} are not known here"),
        ),
        None => Reject::invalid(vec![unread.error]),
    }
}

/// The largest message that is read: as large as a body of the kernel's own interface.
pub(crate) fn max_message_bytes(app: &App) -> usize {
    app.parts().limits.body_bytes.max(KERNEL_BODY_BYTES)
}

/// The server's side of the conversation.
struct Speech<'a> {
    socket: &'a mut WebSocket,
    batch: Batch,
}

impl Speech<'_> {
    /// Sends what is in the batch, as one message.
    async fn send(&mut self) -> Result<(), End> {
        match self.batch.take() {
            None => Ok(()),
            Some(Payload::Binary(bytes)) => self.message(Message::Binary(bytes.into())).await,
            Some(Payload::Text(text)) => self.message(Message::Text(text.into())).await,
        }
    }

    /// A peer that does not read does not get to keep its connection.
    async fn message(&mut self, message: Message) -> Result<(), End> {
        match tokio::time::timeout(SEND_LIMIT, self.socket.send(message)).await {
            Ok(sent) => sent.map_err(ending),
            Err(_) => Err(End::Unclear),
        }
    }

    async fn goodbye(&mut self, reason: &str) -> End {
        self.batch.down(0, &Down::Goodbye(reason.to_owned()));
        // Courtesies: the peer may be gone already.
        let _ = self.send().await;
        let close = Message::Close(Some(CloseFrame {
            code: close_code::AWAY,
            reason: reason.to_owned().into(),
        }));
        let _ = self.message(close).await;
        // The peer answers with a close of its own; going before that would cut off what it still reads.
        let _ = tokio::time::timeout(LAST_WORDS, async {
            while let Some(Ok(_)) = self.socket.recv().await {}
        })
        .await;
        End::Orderly
    }
}

/// Distinguishes the end of a process from the silence of a network. Only the peer's kernel sends FIN or RST;
/// a time-out or an unreachable host says nothing about the process.
fn ending(error: Error) -> End {
    let error = error.into_inner();
    match error.downcast_ref::<tungstenite::Error>() {
        Some(
            tungstenite::Error::ConnectionClosed
            | tungstenite::Error::AlreadyClosed
            | tungstenite::Error::Protocol(
                tungstenite::error::ProtocolError::ResetWithoutClosingHandshake,
            ),
        ) => End::Closed,
        Some(tungstenite::Error::Io(error)) => match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => End::Closed,
            _ => End::Unclear,
        },
        _ => End::Unclear,
    }
}
