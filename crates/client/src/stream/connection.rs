//! One connection after the other, and what goes over each.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use lease::Holder;
use leasehold_api::{
    authority::Frame,
    stream::{Batch, Down, Encoding, Payload, Up, Welcome, read_down},
};
use tokio::sync::{broadcast, mpsc, mpsc::error::TrySendError, watch};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;

use super::{
    Answer, Link, Request,
    socket::{self, Socket},
};
use crate::{Client, Error, keeper::LossNotice};
use leasehold_clock::Backoff;

/// A connection on which nothing comes, not even a ping, is dead. Servers ping every 15 seconds or
/// less.
const SILENCE_LIMIT: Duration = Duration::from_secs(45);
/// The pauses before a connection is tried again. The first is short: a server takes a holder that
/// stays away for dead (L15).
const RETRY_MS: (u64, u64) = (40, 10_000);
/// Distinguishes the streams of this process.
static LINES: AtomicU64 = AtomicU64::new(0);
/// How long a goodbye may take.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);
/// How many requests go into one message at most.
const MANY: usize = 256;
/// From how many bytes on a message is sent before the next request is added.
const MESSAGE_BYTES: usize = 64 * 1024;

pub(super) struct Parts {
    pub client: Client,
    pub holder: Holder,
    pub encoding: Encoding,
    pub requests: mpsc::Receiver<Request>,
    pub losses: broadcast::Sender<LossNotice>,
    pub link: watch::Sender<Link>,
    pub end: CancellationToken,
    pub last_failure: Arc<Mutex<Option<String>>>,
    /// Set by whoever got no answer in time; anything that comes clears it.
    pub silent: Arc<AtomicBool>,
}

/// What is under way on one connection. Requests without an answer are `Unknown` when it ends: they
/// are dropped with it.
#[derive(Default)]
struct Pending {
    answers: HashMap<u64, Answer>,
    /// Watches that nobody follows any more.
    cancelled: Vec<u64>,
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
        let opening = socket::open(&parts.client, &parts.holder, parts.encoding, line);
        let opened = tokio::select! {
            () = end.cancelled() => return,
            () = refuse(&mut parts.requests) => return,
            opened = opening => opened,
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
            () = refuse(&mut parts.requests) => return,
            () = tokio::time::sleep(Duration::from_millis(backoff.next_ms())) => {}
        }
    }
}

/// While there is no connection, requests that are waiting for one have not been sent: whoever made them
/// is free to go another way. Ends when nobody can make any more.
async fn refuse(requests: &mut mpsc::Receiver<Request>) {
    while let Some(request) = requests.recv().await {
        request.answer.unavailable("the stream is down");
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
async fn converse(parts: &mut Parts, socket: Socket) -> bool {
    let (mut sink, mut messages) = socket.split();
    let mut pending = Pending::default();
    let mut batch = Batch::new(parts.encoding, parts.holder.clone());
    let mut welcome: Option<Box<Welcome>> = None;
    let mut requests = Vec::new();
    // What was sent may still be on its way out; meanwhile answers are read, and nothing else is sent.
    let mut flushing = false;
    let end = parts.end.clone();
    loop {
        tokio::select! {
            () = end.cancelled() => {
                goodbye(parts, &mut sink, &mut messages).await;
                return welcome.is_some();
            }
            received = tokio::time::timeout(SILENCE_LIMIT, messages.next()) => {
                let Ok(Some(Ok(message))) = received else {
                    // Neither silence nor a message that cannot be read is a death, and the server
                    // shall not take it as one. On a connection that is gone this fails immediately.
                    goodbye(parts, &mut sink, &mut messages).await;
                    return welcome.is_some();
                };
                parts.silent.store(false, Ordering::Release);
                if !heard(parts, &mut pending, &mut welcome, &message) {
                    return welcome.is_some();
                }
            }
            flushed = sink.flush(), if flushing => {
                if flushed.is_err() {
                    return welcome.is_some();
                }
                flushing = false;
            }
            count = parts.requests.recv_many(&mut requests, MANY), if welcome.is_some() && !flushing => {
                if count == 0 {
                    goodbye(parts, &mut sink, &mut messages).await;
                    return welcome.is_some();
                }
                let largest = welcome.as_ref().map_or(0, |it| it.max_message_bytes);
                for request in requests.drain(..) {
                    pending.add(&mut batch, request, largest);
                    if batch.len() > MESSAGE_BYTES && !feed(&mut sink, &mut batch).await {
                        return true;
                    }
                }
                if !feed(&mut sink, &mut batch).await {
                    return true;
                }
                flushing = true;
            }
        }
        for id in pending.cancelled.drain(..) {
            batch.up(0, &Up::Cancel(id));
        }
        if !batch.is_empty() && !flushing {
            if !feed(&mut sink, &mut batch).await {
                return true;
            }
            flushing = true;
        }
    }
}

/// Hands a message over; false when the connection is gone. It goes out with the next flush, or before
/// that when it is long.
async fn feed(sink: &mut SplitSink<Socket, Message>, batch: &mut Batch) -> bool {
    let message = match batch.take() {
        None => return true,
        Some(Payload::Binary(bytes)) => Message::binary(bytes),
        Some(Payload::Text(text)) => Message::text(text),
    };
    sink.feed(message).await.is_ok()
}

async fn goodbye(
    parts: &Parts,
    sink: &mut SplitSink<Socket, Message>,
    messages: &mut SplitStream<Socket>,
) {
    let mut batch = Batch::new(parts.encoding, parts.holder.clone());
    batch.up(0, &Up::Goodbye);
    let saying = async {
        // Courtesies: the server may be gone already.
        let _ = feed(sink, &mut batch).await;
        let _ = sink.close().await;
        while let Some(Ok(_)) = messages.next().await {}
    };
    let _ = tokio::time::timeout(GOODBYE_LIMIT, saying).await;
}

/// Reads a message; false for the server's goodbye.
fn heard(
    parts: &Parts,
    pending: &mut Pending,
    welcome: &mut Option<Box<Welcome>>,
    message: &Message,
) -> bool {
    let frames = match message {
        Message::Text(text) => read_down(Encoding::Json, text.as_bytes(), &parts.holder),
        Message::Binary(bytes) => read_down(Encoding::Binary, bytes, &parts.holder),
        _ => return true,
    };
    for frame in frames {
        let (id, down) = match frame {
            Ok(frame) => (frame.id, frame.body),
            // What a newer server sends by itself is not for this holder; an answer that cannot be read
            // leaves it open what happened.
            Err(unread) => {
                tracing::debug!(
                    id = unread.id,
                    error = %unread.error.expected,
                    "a frame on the holder's stream that is not known here"
                );
                let text = format!("an answer that cannot be read: {}", unread.error.expected);
                pending.answer(unread.id, Err(lease::Error::Unknown(text)));
                continue;
            }
        };
        match down {
            Down::Welcome(it) => {
                let proves_death = it.proves_death;
                *welcome = Some(it);
                parts.link.send_replace(Link::Up { proves_death });
                // What was lost before is not reported again.
                notify(parts, LossNotice::Missed);
            }
            Down::Lost(lost) => notify(
                parts,
                LossNotice::Lost {
                    key: lost.key,
                    token: lost.token,
                    loss: lost.loss,
                },
            ),
            Down::Missed => notify(parts, LossNotice::Missed),
            Down::Goodbye(reason) => {
                tracing::debug!(reason, "the server closed the holder's stream");
                return false;
            }
            Down::Failed(problem) if id == 0 => tracing::warn!(
                detail = problem.detail,
                "invalid message on the holder's stream"
            ),
            Down::Failed(problem) => pending.answer(id, Err(Error::Problem(problem).into())),
            Down::Notice(frame) => pending.notice(id, *frame),
            answer => pending.answer(id, Ok(answer)),
        }
    }
    true
}

fn notify(parts: &Parts, reported: LossNotice) {
    // Nobody listening is fine.
    drop(parts.losses.send(reported));
}

impl Answer {
    /// Nothing was sent.
    fn unavailable(self, why: &str) {
        let error = lease::Error::Unavailable(why.to_owned());
        match self {
            Self::Once(answer) => drop(answer.send(Err(error))),
            Self::Notices(notices) => drop(notices.try_send(Err(error))),
            Self::Nobody => {}
        }
    }
}

impl Pending {
    fn add(&mut self, batch: &mut Batch, request: Request, largest: usize) {
        let Request { id, up, answer } = request;
        if let Answer::Once(waiting) = &answer
            && waiting.is_closed()
        {
            // Given up before it was sent.
            return;
        }
        if let Up::Cancel(of) = up {
            self.answers.remove(&of);
        }
        if !batch.up_within(id, &up, largest.saturating_sub(MESSAGE_BYTES)) {
            return answer.unavailable("more than one message takes");
        }
        if !matches!(answer, Answer::Nobody) {
            self.answers.insert(id, answer);
        }
    }

    fn answer(&mut self, id: u64, outcome: Result<Down, lease::Error>) {
        match (self.answers.remove(&id), outcome) {
            (Some(Answer::Once(answer)), outcome) => drop(answer.send(outcome)),
            (Some(Answer::Notices(notices)), Err(error)) => drop(notices.try_send(Err(error))),
            _ => {}
        }
    }

    fn notice(&mut self, id: u64, frame: Frame) {
        let Some(Answer::Notices(notices)) = self.answers.get(&id) else {
            return;
        };
        // Whoever does not keep up, or does not listen any more, is not waited for.
        if let Err(TrySendError::Full(_) | TrySendError::Closed(_)) = notices.try_send(Ok(frame)) {
            self.answers.remove(&id);
            self.cancelled.push(id);
        }
    }
}
