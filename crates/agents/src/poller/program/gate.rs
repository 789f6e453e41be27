//! No request leaves once its time is over. A process can be stopped between the look at its lease and the
//! write, and go on a minute later, before any timer of its own: so the clock is looked at once more right
//! before each write.

use std::{
    collections::BTreeSet,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use futures_util::{FutureExt as _, TryFutureExt as _, future::BoxFuture};
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use lease::{BootMillis, Clock};
use tower::Service;

/// What is under way, by deadline. Connections are shared, and which request is written on which is not
/// known here: while anything is late, nothing is written at all. What is late ends at once by its own
/// timer, so that this lasts for a moment, after a stop that others pay for with one failed poll.
#[derive(Clone)]
pub(super) struct Gate {
    clock: Arc<dyn Clock>,
    under_way: Arc<Mutex<UnderWay>>,
}

#[derive(Default)]
struct UnderWay {
    deadlines: BTreeSet<(BootMillis, u64)>,
    entered: u64,
}

impl Gate {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            under_way: Arc::default(),
        }
    }

    /// Something is under way that has to end before its deadline.
    pub fn enter(&self, deadline: BootMillis) -> Pass<'_> {
        let mut under_way = self.lock();
        under_way.entered += 1;
        let entry = (deadline, under_way.entered);
        under_way.deadlines.insert(entry);
        Pass { gate: self, entry }
    }

    fn check(&self) -> io::Result<()> {
        let earliest = self.lock().deadlines.first().copied();
        match earliest {
            Some((deadline, _)) if deadline <= self.clock.boot() => Err(io::Error::other(
                "not sent: this process stood still until a deadline had passed",
            )),
            _ => Ok(()),
        }
    }

    /// Poisoning is no concern: every critical section leaves a whole value behind.
    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Exists while something is under way.
#[must_use = "the gate knows of what is under way while its pass exists"]
pub(super) struct Pass<'a> {
    gate: &'a Gate,
    entry: (BootMillis, u64),
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.gate.lock().deadlines.remove(&self.entry);
    }
}

/// A connector, or a connection, behind the gate.
#[derive(Clone)]
pub(super) struct Gated<T> {
    pub inner: T,
    pub gate: Gate,
}

impl<C> Service<Uri> for Gated<C>
where
    C: Service<Uri, Future: Send + 'static>,
    C::Response: 'static,
    C::Error: 'static,
{
    type Response = Gated<C::Response>;
    type Error = C::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let gate = self.gate.clone();
        let connected = self.inner.call(uri);
        connected.map_ok(|inner| Gated { inner, gate }).boxed()
    }
}

impl<T: Connection> Connection for Gated<T> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}

impl<T: Read + Unpin> Read for Gated<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<T: Write + Unpin> Write for Gated<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.gate.check()?;
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.gate.check()?;
        Pin::new(&mut self.inner).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    /// TLS may still have something to write.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.gate.check()?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use hyper_util::rt::TokioIo;
    use lease::UnixMillis;
    use leasehold_clock::Manual;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn nothing_is_written_while_anything_is_late() {
        let clock = Arc::new(Manual::new(UnixMillis::new(0)));
        let gate = Gate::new(clock.clone());
        let (near, mut far) = tokio::io::duplex(64);
        let mut connection = Gated {
            inner: TokioIo::new(near),
            gate: gate.clone(),
        };
        let mut write =
            async |byte: u8| poll_fn(|cx| Pin::new(&mut connection).poll_write(cx, &[byte])).await;
        let after = |ms| clock.boot().plus(ms);
        write(b'a').await.expect("nothing is under way");
        let late = gate.enter(after(100));
        let in_time = gate.enter(after(10_000));
        write(b'b').await.expect("everything is in time");
        clock.advance(100);
        let error = write(b'c').await.expect_err("one is late");
        assert!(error.to_string().starts_with("not sent"), "{error}");
        drop(late);
        write(b'd').await.expect("what is left is in time");
        drop(in_time);
        let mut read = [0; 3];
        far.read_exact(&mut read).await.expect("three bytes");
        assert_eq!(&read, b"abd");
    }
}
