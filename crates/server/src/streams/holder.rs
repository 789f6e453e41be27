//! One holder's stream: batched renewals up, losses down at once (L17), and the visible end of its
//! process (L15).

use std::{io, time::Duration};

use axum::{
    Error,
    extract::ws::{CloseFrame, Message, WebSocket, close_code},
};
use lease::{Departure, Holder, Renew};
use leasehold_api::{
    RenewManyRequest,
    stream::{Down, Up},
};
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::tungstenite;

use super::hub::Connection;
use crate::{App, Reject, auth::Caller, ops};

/// How long a peer has to answer a goodbye.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Why an earlier connection of a holder is closed.
const TAKEN_OVER: &str = "another connection of this holder took over";

/// Who is at the other end.
pub(crate) struct Peer {
    pub holder: Holder,
    pub caller: Caller,
    /// Whether the end of the connection can only mean the end of the process.
    pub direct: bool,
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
                let code = reject.problem().known();
                tracing::warn!(holder = %peer.holder, ?code, "a holder's death could not be recorded");
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
    let now = match app.authority().now().await {
        Ok(now) => now,
        Err(error) => return goodbye(socket, &error.to_string()).await,
    };
    let welcome = Down::Welcome {
        holder: peer.holder.name.as_str().to_owned(),
        incarnation: peer.holder.incarnation.as_str().to_owned(),
        now: now.into(),
        proves_death: peer.direct,
    };
    if let Err(error) = say(socket, &welcome).await {
        return ending(error);
    }
    let heartbeat = app.parts().limits.stream_heartbeat();
    let mut ping_at = Instant::now() + heartbeat;
    loop {
        let said = tokio::select! {
            () = app.closing().cancelled() => return goodbye(socket, "the server is stopping").await,
            () = connection.replaced.cancelled() => {
                return goodbye(socket, TAKEN_OVER).await;
            }
            message = connection.messages.recv() => {
                // The hub lets go of a connection only when a newer one took its place.
                let Some(message) = message else { return goodbye(socket, TAKEN_OVER).await };
                let mut said = say(socket, &message).await;
                if said.is_ok() && connection.missed() {
                    said = say(socket, &Down::Missed).await;
                }
                said
            }
            () = sleep_until(ping_at) => {
                ping_at = Instant::now() + heartbeat;
                socket.send(Message::Ping(Vec::new().into())).await
            }
            received = socket.recv() => match received {
                None => return End::Closed,
                Some(Err(error)) => return ending(error),
                Some(Ok(Message::Close(_))) => return End::Orderly,
                Some(Ok(Message::Text(text))) => match heard(app, peer, text.as_bytes()).await {
                    Some(answer) => say(socket, &answer).await,
                    None => return End::Orderly,
                },
                Some(Ok(Message::Binary(_))) => say(socket, &failed(None, Reject::field("message", "a JSON text"))).await,
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => Ok(()),
            },
        };
        if let Err(error) = said {
            return ending(error);
        }
    }
}

/// Answers one message; `None` is the holder's goodbye.
async fn heard(app: &App, peer: &Peer, text: &[u8]) -> Option<Down> {
    let up = match leasehold_api::parse::<Up>(text) {
        Ok(up) => up,
        Err(error) => return Some(failed(None, Reject::invalid(vec![error]))),
    };
    match up {
        Up::Goodbye => None,
        Up::Renew { seq, leases } => {
            let request = RenewManyRequest {
                holder: Some(peer.holder.name.as_str().to_owned()),
                incarnation: Some(peer.holder.incarnation.as_str().to_owned()),
                leases,
                ..RenewManyRequest::default()
            };
            let renewed = match request.check() {
                Ok(request) => renew(app, peer, request).await,
                Err(errors) => Err(Reject::invalid(errors)),
            };
            Some(match renewed {
                Ok(renewed) => Down::Renewed {
                    seq,
                    results: renewed.iter().map(Into::into).collect(),
                },
                Err(reject) => failed(Some(seq), reject),
            })
        }
    }
}

async fn renew(app: &App, peer: &Peer, request: Renew) -> Result<Vec<lease::Renewed>, Reject> {
    let limit = app.parts().limits.request_timeout();
    tokio::time::timeout(limit, ops::renew(app, &peer.caller, request))
        .await
        .unwrap_or_else(|_| Err(crate::frame::too_slow()))
}

fn failed(seq: Option<u64>, reject: Reject) -> Down {
    Down::Failed {
        seq,
        problem: Box::new(reject.into_problem()),
    }
}

async fn say(socket: &mut WebSocket, message: &Down) -> Result<(), Error> {
    let text = serde_json::to_string(message).unwrap_or_default();
    socket.send(Message::Text(text.into())).await
}

async fn goodbye(socket: &mut WebSocket, reason: &str) -> End {
    let message = Down::Goodbye {
        reason: reason.to_owned(),
    };
    // Courtesies: the peer may be gone already.
    let _ = say(socket, &message).await;
    let _ = socket
        .send(Message::Close(Some(CloseFrame {
            code: close_code::AWAY,
            reason: reason.to_owned().into(),
        })))
        .await;
    // The peer answers with a close of its own; going before that would cut off what it still reads.
    let _ = tokio::time::timeout(LAST_WORDS, async {
        while let Some(Ok(_)) = socket.recv().await {}
    })
    .await;
    End::Orderly
}

/// Tells the end of a process from the silence of a network. Only the peer's kernel sends FIN or RST;
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
