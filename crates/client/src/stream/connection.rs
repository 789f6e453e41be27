//! One connection after the other, and what goes over each.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{SinkExt, StreamExt};
use lease::{Holder, Renewed};
use leasehold_api::stream::{Down, Up};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;

use super::{
    Link, Request,
    socket::{self, Socket},
};
use crate::{Client, Error, convert, keeper::Told};
use leasehold_clock::Backoff;

/// A connection on which nothing comes, not even a ping, is dead. Servers ping every 15 seconds or
/// less.
const SILENCE_LIMIT: Duration = Duration::from_secs(45);
/// The pauses before a connection is tried again. The first is short: a server takes a holder that
/// stays away for dead (L15).
const RETRY_MS: (u64, u64) = (40, 10_000);
/// Tells the streams of this process apart.
static LINES: AtomicU64 = AtomicU64::new(0);
/// How long a goodbye may take.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

pub(super) struct Parts {
    pub client: Client,
    pub holder: Holder,
    pub requests: mpsc::Receiver<Request>,
    pub losses: broadcast::Sender<Told>,
    pub link: watch::Sender<Link>,
    pub end: CancellationToken,
    pub last_failure: Arc<Mutex<Option<String>>>,
    /// Set by whoever got no answer in time; anything that comes clears it.
    pub silent: Arc<AtomicBool>,
}

type Answer = oneshot::Sender<Result<Vec<Renewed>, lease::Error>>;

/// What is under way on one connection. Requests without an answer are `Unknown` when it ends: they
/// are dropped with it.
#[derive(Default)]
struct Pending {
    last: u64,
    answers: HashMap<u64, Answer>,
}

pub(super) async fn run(mut parts: Parts) {
    let line = LINES.fetch_add(1, Ordering::Relaxed);
    keep_open(&mut parts, line).await;
    if let Some(lifeline) = &parts.client.options().lifeline {
        lifeline.let_go(line);
    }
}

async fn keep_open(parts: &mut Parts, line: u64) {
    let mut backoff = Backoff::new(RETRY_MS.0, RETRY_MS.1);
    let end = parts.end.clone();
    loop {
        let opened = tokio::select! {
            () = end.cancelled() => return,
            opened = socket::open(&parts.client, &parts.holder, line) => opened,
        };
        match opened {
            Ok(socket) => {
                let welcomed = converse(parts, socket).await;
                parts.link.send_replace(Link::Down);
                if welcomed {
                    backoff = Backoff::new(RETRY_MS.0, RETRY_MS.1);
                }
            }
            Err(error) => {
                tracing::debug!(holder = %parts.holder, %error, "the holder's stream is down");
                note(parts, &error);
                // A server without streams, or one that does not let this holder in, may change its
                // mind; it is asked rarely.
                if error.is_definite() {
                    backoff = Backoff::new(10_000, 60_000);
                }
            }
        }
        tokio::select! {
            () = end.cancelled() => return,
            () = tokio::time::sleep(Duration::from_millis(backoff.next_ms())) => {}
        }
    }
}

fn note(parts: &Parts, error: &Error) {
    let mut last = parts
        .last_failure
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    *last = Some(error.to_string());
}

/// Talks until the connection ends, and says whether the server had welcomed this holder.
async fn converse(parts: &mut Parts, mut socket: Socket) -> bool {
    let mut pending = Pending::default();
    let mut welcomed = false;
    let end = parts.end.clone();
    loop {
        tokio::select! {
            () = end.cancelled() => {
                goodbye(&mut socket).await;
                return welcomed;
            }
            received = tokio::time::timeout(SILENCE_LIMIT, socket.next()) => {
                let Ok(Some(Ok(message))) = received else {
                    // Neither silence nor a message that cannot be read is a death, and the server
                    // shall not take it as one. On a connection that is gone this fails at once.
                    goodbye(&mut socket).await;
                    return welcomed;
                };
                parts.silent.store(false, Ordering::Release);
                let Message::Text(text) = message else { continue };
                let Ok(down) = serde_json::from_str::<Down>(&text) else {
                    // A message of a newer server.
                    tracing::debug!("a message on the holder's stream that is not known here");
                    continue;
                };
                if let Down::Goodbye { reason } = &down {
                    tracing::debug!(reason, "the server closed the holder's stream");
                    return welcomed;
                }
                welcomed |= matches!(down, Down::Welcome { .. });
                heard(parts, &mut pending, down);
            }
            request = parts.requests.recv(), if welcomed => {
                let Some(request) = request else {
                    goodbye(&mut socket).await;
                    return welcomed;
                };
                let up = pending.add(request);
                let Ok(text) = serde_json::to_string(&up) else { continue };
                if socket.send(Message::text(text)).await.is_err() {
                    return welcomed;
                }
            }
        }
    }
}

async fn goodbye(socket: &mut Socket) {
    let saying = async {
        let text = serde_json::to_string(&Up::Goodbye).unwrap_or_default();
        // Courtesies: the server may be gone already.
        let _ = socket.send(Message::text(text)).await;
        let _ = socket.close(None).await;
        while let Some(Ok(_)) = socket.next().await {}
    };
    let _ = tokio::time::timeout(GOODBYE_LIMIT, saying).await;
}

fn heard(parts: &Parts, pending: &mut Pending, down: Down) {
    match down {
        Down::Welcome { proves_death, .. } => {
            parts.link.send_replace(Link::Up { proves_death });
            // What was lost before is not told again.
            tell(parts, Told::Missed);
        }
        Down::Renewed { seq, results } => {
            let renewed = results.iter().map(convert::renewed).collect();
            pending.answer(
                seq,
                Result::map_err(renewed, |invalid: lease::Invalid| {
                    lease::Error::Unknown(format!("an answer that cannot be read: {invalid}"))
                }),
            );
        }
        Down::Failed {
            seq: Some(seq),
            problem,
        } => pending.answer(seq, Err(Error::Problem(problem).into())),
        Down::Lost {
            kind,
            id,
            token,
            loss,
            ..
        } => {
            let told = lease::Key::new(&kind, &id)
                .and_then(|key| Ok((key, lease::Token::new(token)?)))
                .map_or(Told::Missed, |(key, token)| Told::Lost {
                    key,
                    token,
                    loss: (&loss).into(),
                });
            tell(parts, told);
        }
        Down::Missed => tell(parts, Told::Missed),
        Down::Failed { seq: None, problem } => tracing::warn!(
            detail = problem.detail,
            "the holder's stream was not understood"
        ),
        Down::Goodbye { .. } => {}
    }
}

fn tell(parts: &Parts, told: Told) {
    // Nobody listening is fine.
    drop(parts.losses.send(told));
}

impl Pending {
    fn add(&mut self, request: Request) -> Up {
        self.last += 1;
        // Whoever gave up on an answer makes room.
        self.answers.retain(|_, answer| !answer.is_closed());
        self.answers.insert(self.last, request.answer);
        Up::Renew {
            seq: self.last,
            leases: request.leases,
        }
    }

    fn answer(&mut self, seq: u64, outcome: Result<Vec<Renewed>, lease::Error>) {
        if let Some(answer) = self.answers.remove(&seq) {
            drop(answer.send(outcome));
        }
    }
}
