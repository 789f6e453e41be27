//! How many connections there may be, in total and from one address, and how long one may stay silent
//! before its first byte.

use std::{
    collections::HashMap,
    future::Future,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum_server::accept::Accept;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep},
};

use crate::{Limits, auth::Networks, metrics::Metrics};

/// How long a connection may take to its first byte, after the encryption's handshake.
pub(crate) const FIRST_BYTE: Duration = Duration::from_secs(10);
/// How often refused connections are logged, at most.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// Lets connections in as long as there is room for them.
#[derive(Clone)]
pub(crate) struct Admission<A> {
    inner: A,
    slots: Arc<Slots>,
}

impl<A> Admission<A> {
    pub fn new(inner: A, slots: Arc<Slots>) -> Self {
        Self { inner, slots }
    }
}

type Accepted<T, S> = Pin<Box<dyn Future<Output = io::Result<(Admitted<T>, S)>> + Send>>;

impl<A, S> Accept<TcpStream, S> for Admission<A>
where
    A: Accept<TcpStream, S>,
    A::Future: Send + 'static,
{
    type Stream = Admitted<A::Stream>;
    type Service = A::Service;
    type Future = Accepted<A::Stream, A::Service>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let peer = stream.peer_addr();
        let slot = peer.and_then(|peer| Slots::enter(&self.slots, peer.ip().to_canonical()));
        match slot {
            Ok(slot) => {
                let accepted = self.inner.accept(stream, service);
                Box::pin(async move {
                    let (stream, service) = accepted.await?;
                    Ok((Admitted::new(stream, slot), service))
                })
            }
            Err(error) => Box::pin(async move { Err(error) }),
        }
    }
}

#[derive(Default)]
struct Counts {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
    refused: u64,
    logged: Option<Instant>,
}

/// The slots for connections.
pub(crate) struct Slots {
    all: usize,
    per_address: usize,
    /// Many clients stand behind one trusted proxy.
    guard: Networks,
    metrics: Metrics,
    // A plain mutex: held for a look-up, never over an await.
    counts: Mutex<Counts>,
}

impl Slots {
    pub fn new(limits: &Limits, guard: Networks, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            all: limits.connections,
            per_address: limits.connections_per_address,
            guard,
            metrics,
            counts: Mutex::default(),
        })
    }

    fn enter(slots: &Arc<Self>, address: IpAddr) -> io::Result<Slot> {
        let mut counts = slots.counts();
        let own = counts.by_address.get(&address).copied().unwrap_or(0);
        let full = counts.all >= slots.all;
        if full || (own >= slots.per_address && !slots.guard.trusts(address)) {
            counts.refused += 1;
            if counts.logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
                let reason = if full {
                    "all slots are taken"
                } else {
                    "too many from one address"
                };
                tracing::warn!(
                    refused = counts.refused, %address, open = counts.all, reason,
                    "connections refused"
                );
                counts.refused = 0;
                counts.logged = Some(Instant::now());
            }
            drop(counts);
            slots.metrics.turned_away("connection");
            return Err(io::Error::other("no slot for another connection"));
        }
        counts.all += 1;
        *counts.by_address.entry(address).or_default() += 1;
        drop(counts);
        Ok(Slot {
            slots: slots.clone(),
            address,
        })
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection's slot; given back when dropped.
struct Slot {
    slots: Arc<Slots>,
    address: IpAddr,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.slots.counts();
        counts.all = counts.all.saturating_sub(1);
        if let Some(own) = counts.by_address.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                counts.by_address.remove(&self.address);
            }
        }
    }
}

/// A connection that has a slot, and must say something soon.
pub(crate) struct Admitted<T> {
    stream: T,
    /// Until the first byte.
    silence: Option<Pin<Box<Sleep>>>,
    _slot: Slot,
}

impl<T> Admitted<T> {
    fn new(stream: T, slot: Slot) -> Self {
        Self {
            stream,
            silence: Some(Box::pin(sleep(FIRST_BYTE))),
            _slot: slot,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Admitted<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if read.is_ready() {
            this.silence = None;
        } else if let Some(silence) = &mut this.silence
            && silence.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Admitted<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
