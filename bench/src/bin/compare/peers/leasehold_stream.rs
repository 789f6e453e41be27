//! Leasehold over the holder's stream: a WebSocket per holder with the compact frames of
//! `docs/stream.md`, written by hand so that the driver costs little.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::future::BoxFuture;
use leasehold_bench::rounds::{Caller, Callers};
use tokio::sync::{Notify, oneshot};

use super::{Keys, TTL_MS, leasehold_http::TOKEN, lock::Lock, wire::Wire};

const ACQUIRE: u8 = 1;
const RELEASE: u8 = 3;
const KEEP: u8 = 11;
const ACQUIRED: u8 = 65;
const RELEASED: u8 = 67;
const FAILED: u8 = 72;
const KEPT: u8 = 76;
/// A flag of an acquire: a wait follows.
const WAITS: u8 = 16;
/// How long a waiting acquire waits.
const WAIT_MS: u64 = 60_000;

/// An answer: its type, the id of its operation, and its body.
struct Answer {
    kind: u8,
    id: u64,
    body: Vec<u8>,
}

/// A holder's stream.
pub struct Stream(Wire);

impl Stream {
    pub async fn open(address: SocketAddr, holder: &str) -> Result<Self> {
        let mut wire = Wire::open(address).await?;
        let request = format!(
            "GET /api/v1/holders/{holder}/stream?incarnation=1 HTTP/1.1\r\nhost: {address}\r\n\
             authorization: Bearer {TOKEN}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: bWVhc3VyZW1lbnQtMTIzNA==\r\n\
             sec-websocket-protocol: leasehold.v1\r\n\r\n"
        );
        wire.send(request.as_bytes()).await?;
        let head = loop {
            let end = wire.input().windows(4).position(|four| four == b"\r\n\r\n");
            match end {
                Some(end) => break end + 4,
                None => wire.fill().await?,
            }
        };
        let text = String::from_utf8_lossy(&wire.input()[..head]).to_lowercase();
        ensure!(
            text.starts_with("http/1.1 101") && text.contains("leasehold.v1"),
            "no stream: {text}"
        );
        wire.advance(head);
        let mut stream = Self(wire);
        // The welcome.
        stream.receive().await?;
        Ok(stream)
    }

    /// Counts the bytes from now on.
    pub fn count(&mut self, counted: &Arc<AtomicU64>) {
        self.0.counted = Some(counted.clone());
    }

    /// Sends frames as one binary message. The mask is zero: nothing has to be changed then.
    async fn send(&mut self, frames: &[u8]) -> Result<()> {
        self.send_as(0x82, frames).await
    }

    async fn send_as(&mut self, opcode: u8, payload: &[u8]) -> Result<()> {
        let mut message = vec![opcode];
        match u16::try_from(payload.len()) {
            Ok(length @ 0..126) => message.push(0x80 | length as u8),
            Ok(length) => {
                message.push(0xfe);
                message.extend(length.to_be_bytes());
            }
            Err(_) => {
                message.push(0xff);
                message.extend((payload.len() as u64).to_be_bytes());
            }
        }
        message.extend([0; 4]);
        message.extend_from_slice(payload);
        self.0.send(&message).await
    }

    /// The next message's frames.
    async fn receive(&mut self) -> Result<Vec<Answer>> {
        loop {
            if let Some((opcode, start, end)) = message(self.0.input()) {
                let payload = self.0.input()[start..end].to_vec();
                self.0.advance(end);
                match opcode {
                    2 => return frames(&payload),
                    9 => self.send_as(0x8a, &payload).await?,
                    10 => {}
                    other => bail!("a message of the sort {other}"),
                }
            } else {
                self.0.fill().await?;
            }
        }
    }

    /// Sends one operation and waits for its answer; what comes down by itself is passed over.
    async fn call(&mut self, frame: &[u8], wanted: u8) -> Result<Vec<u8>> {
        self.send(frame).await?;
        loop {
            for answer in self.receive().await? {
                if answer.id > 0 {
                    return answer.of(wanted);
                }
            }
        }
    }
}

impl Answer {
    fn of(self, wanted: u8) -> Result<Vec<u8>> {
        if self.kind == FAILED {
            bail!("{}", String::from_utf8_lossy(&self.body));
        }
        ensure!(self.kind == wanted, "an answer of the type {}", self.kind);
        Ok(self.body)
    }
}

/// The first whole WebSocket message: its sort, and where its payload begins and ends.
fn message(input: &[u8]) -> Option<(u8, usize, usize)> {
    let (opcode, length) = (input.first()? & 0x0f, input.get(1)? & 0x7f);
    let (start, length) = match length {
        126 => (
            4,
            usize::from(u16::from_be_bytes(input.get(2..4)?.try_into().ok()?)),
        ),
        127 => (
            10,
            u64::from_be_bytes(input.get(2..10)?.try_into().ok()?) as usize,
        ),
        short => (2, usize::from(short)),
    };
    (input.len() >= start + length).then_some((opcode, start, start + length))
}

fn frames(mut payload: &[u8]) -> Result<Vec<Answer>> {
    let mut all = Vec::new();
    while !payload.is_empty() {
        let length = take_number(&mut payload)? as usize;
        let split = payload.split_at_checked(length);
        let (mut frame, rest) = split.context("a frame that is cut off")?;
        payload = rest;
        let kind = take_byte(&mut frame)?;
        let id = take_number(&mut frame)?;
        all.push(Answer {
            kind,
            id,
            body: frame.to_vec(),
        });
    }
    Ok(all)
}

fn take_byte(from: &mut &[u8]) -> Result<u8> {
    let (first, rest) = from.split_first().context("a frame that is cut off")?;
    *from = rest;
    Ok(*first)
}

fn take_number(from: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take_byte(from)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    Ok(value)
}

fn put_number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn frame(kind: u8, id: u64, body: &[u8]) -> Vec<u8> {
    let mut inner = vec![kind];
    put_number(&mut inner, id);
    inner.extend_from_slice(body);
    let mut out = Vec::new();
    put_number(&mut out, inner.len() as u64);
    out.extend(inner);
    out
}

fn acquire(id: u64, key: &str, wait_ms: u64) -> Vec<u8> {
    let mut body = vec![if wait_ms > 0 { WAITS } else { 0 }, 1];
    put_text(&mut body, key);
    put_number(&mut body, TTL_MS);
    if wait_ms > 0 {
        put_number(&mut body, wait_ms);
    }
    frame(ACQUIRE, id, &body)
}

fn release(id: u64, key: &str, token: u64) -> Vec<u8> {
    let mut body = Vec::new();
    put_text(&mut body, key);
    put_number(&mut body, token);
    frame(RELEASE, id, &body)
}

/// The token of the first lease of an `acquired`.
fn token(mut body: &[u8]) -> Result<u64> {
    ensure!(take_byte(&mut body)? < 2, "the key is held");
    take_number(&mut body)?;
    take_byte(&mut body)?;
    body = body.get(16..).context("a lease without an id")?;
    let length = take_number(&mut body)? as usize;
    body = body.get(length..).context("a lease without a key")?;
    take_number(&mut body)
}

/// Holders that acquire and release, each over a stream of its own.
pub async fn cycles(address: SocketAddr, callers: usize) -> Result<Callers> {
    let mut all: Callers = Vec::new();
    for caller in 0..callers {
        all.push(Box::new(Cycle {
            stream: Stream::open(address, &format!("streamer-{caller}")).await?,
            keys: Keys::new(caller, callers),
        }));
    }
    Ok(all)
}

struct Cycle {
    stream: Stream,
    keys: Keys,
}

impl Caller for Cycle {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let key = format!("job:s{}", self.keys.next());
            let acquired = self.stream.call(&acquire(1, &key, 0), ACQUIRED).await?;
            let frame = release(1, &key, token(&acquired)?);
            let released = self.stream.call(&frame, RELEASED).await?;
            ensure!(released == [1], "{key} was lost");
            Ok(())
        })
    }
}

/// Callers of one holder that share its stream: what is asked at the same time goes in one message.
pub async fn shared_cycles(address: SocketAddr, callers: usize) -> Result<Callers> {
    let stream = Stream::open(address, "sharer").await?;
    let shared = Arc::new(Shared {
        frames: Mutex::default(),
        answers: Mutex::new((0..callers).map(|_| None).collect()),
        queued: Notify::new(),
    });
    tokio::spawn(serve(stream, shared.clone()));
    Ok((0..callers)
        .map(|caller| {
            Box::new(SharedCycle {
                shared: shared.clone(),
                caller,
                keys: Keys::new(caller, callers),
            }) as Box<dyn Caller>
        })
        .collect())
}

struct Shared {
    /// What goes up next.
    frames: Mutex<Vec<u8>>,
    /// Who waits for an answer: by its caller, who has one operation at a time.
    answers: Mutex<Vec<Option<oneshot::Sender<Answer>>>>,
    queued: Notify,
}

async fn serve(mut stream: Stream, shared: Arc<Shared>) -> Result<()> {
    loop {
        tokio::select! {
            () = shared.queued.notified() => {
                let frames = std::mem::take(&mut *lock(&shared.frames));
                if !frames.is_empty() {
                    stream.send(&frames).await?;
                }
            }
            answers = stream.receive() => {
                for answer in answers? {
                    let place = (answer.id as usize).wrapping_sub(1);
                    let waiting = lock(&shared.answers).get_mut(place).and_then(Option::take);
                    if let Some(waiting) = waiting {
                        let _ = waiting.send(answer);
                    }
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct SharedCycle {
    shared: Arc<Shared>,
    caller: usize,
    keys: Keys,
}

impl SharedCycle {
    async fn call(&self, frame: &[u8], wanted: u8) -> Result<Vec<u8>> {
        let (answer, answered) = oneshot::channel();
        lock(&self.shared.answers)[self.caller] = Some(answer);
        lock(&self.shared.frames).extend_from_slice(frame);
        self.shared.queued.notify_one();
        answered.await.context("the stream ended")?.of(wanted)
    }
}

impl Caller for SharedCycle {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let (id, key) = (self.caller as u64 + 1, format!("job:t{}", self.keys.next()));
            let acquired = self.call(&acquire(id, &key, 0), ACQUIRED).await?;
            let frame = release(id, &key, token(&acquired)?);
            let released = self.call(&frame, RELEASED).await?;
            ensure!(released == [1], "{key} was lost");
            Ok(())
        })
    }
}

/// Holders that renew everything they have, each over a stream of its own.
pub async fn renewals(
    address: SocketAddr,
    holders: usize,
    counted: Option<&Arc<AtomicU64>>,
) -> Result<Callers> {
    let mut all: Callers = Vec::new();
    for holder in 0..holders {
        let mut stream = Stream::open(address, &format!("holder-{holder}")).await?;
        if let Some(counted) = counted {
            stream.count(counted);
        }
        all.push(Box::new(Renewal(stream)));
    }
    Ok(all)
}

struct Renewal(Stream);

impl Caller for Renewal {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let kept = self.0.call(&frame(KEEP, 1, &[]), KEPT).await?;
            let kept: lease::Kept = serde_json::from_slice(&kept)?;
            ensure!(kept.leases > 0 && kept.lost.is_empty(), "a lease was lost");
            Ok(())
        })
    }
}

/// A lock that is waited for over a stream.
pub struct Waiting {
    stream: Stream,
    key: String,
    token: u64,
}

impl Waiting {
    pub async fn open(address: SocketAddr, key: &str, holder: &str) -> Result<Self> {
        Ok(Self {
            stream: Stream::open(address, holder).await?,
            key: format!("lock:{key}"),
            token: 0,
        })
    }
}

impl Lock for Waiting {
    fn lock(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let frame = acquire(1, &self.key, WAIT_MS);
            self.token = token(&self.stream.call(&frame, ACQUIRED).await?)?;
            Ok(())
        })
    }

    fn unlock(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let frame = release(1, &self.key, self.token);
            let released = self.stream.call(&frame, RELEASED).await?;
            ensure!(released == [1], "the lock was lost");
            Ok(())
        })
    }
}
