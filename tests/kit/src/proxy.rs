//! A TCP proxy that misbehaves on demand.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

/// Bytes read in one call.
const CHUNK_BYTES: usize = 16 * 1024;
/// Chunks on their way per direction: with [`CHUNK_BYTES`], at most a megabyte is held back before
/// the sender feels it.
const CHUNKS_IN_FLIGHT: usize = 64;
/// Pieces per second into which a throttled stream is cut: smooth enough for short messages.
const PIECES_PER_SECOND: u64 = 20;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Pass,
    Delay(Duration),
    Cut,
    Blackhole,
    Throttle(u64),
    Ended,
}

/// A proxy in front of one address. Its behaviour can be changed while connections are open; it
/// ends on drop, and its connections with it.
///
/// It runs on a thread of its own, so a test that blocks its runtime does not disturb it.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    live: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy that passes everything on to `upstream`.
    ///
    /// # Panics
    ///
    /// When no port can be had.
    pub async fn start(upstream: SocketAddr) -> Self {
        let (mode, mode_seen) = watch::channel(Mode::Pass);
        let live = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::new(AtomicUsize::new(0));
        let counters = (Arc::clone(&live), Arc::clone(&accepted));
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let thread = thread::Builder::new()
            .name("proxy".into())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime can be built");
                runtime.block_on(async {
                    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
                    let listener = listener.expect("a loopback port can be bound");
                    let address = listener.local_addr();
                    let _ = ready.send(address.expect("a bound socket has an address"));
                    accept(listener, upstream, mode_seen, counters).await;
                });
            })
            .expect("a thread can be started");
        Self {
            address: is_ready.await.expect("the proxy listens"),
            mode,
            live,
            accepted,
            thread: Some(thread),
        }
    }

    /// Where to connect instead of the upstream.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Passes everything on immediately: no fault. What a [`Proxy::blackhole`] swallowed meanwhile
    /// arrives now, as after a real interruption.
    pub fn pass(&self) {
        self.mode.send_replace(Mode::Pass);
    }

    /// Lets every byte arrive `delay` later, in both directions; the throughput stays.
    pub fn delay(&self, delay: Duration) {
        self.mode.send_replace(Mode::Delay(delay));
    }

    /// Resets all open connections, and new ones as soon as they are made.
    pub fn cut(&self) {
        self.mode.send_replace(Mode::Cut);
    }

    /// Keeps connections open and accepts new ones, but forwards nothing, not even an end: neither
    /// side learns that the other is unreachable.
    pub fn blackhole(&self) {
        self.mode.send_replace(Mode::Blackhole);
    }

    /// Forwards at most so many bytes per second, per connection and direction.
    ///
    /// # Panics
    ///
    /// When the rate is zero; that is [`Proxy::blackhole`].
    pub fn throttle(&self, bytes_per_sec: u64) {
        assert!(bytes_per_sec > 0, "a rate of zero is a black hole");
        self.mode.send_replace(Mode::Throttle(bytes_per_sec));
    }

    /// How many connections are open now.
    pub fn connections(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    /// How many connections were made so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.mode.send_replace(Mode::Ended);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type Counters = (Arc<AtomicUsize>, Arc<AtomicUsize>);

async fn accept(
    listener: TcpListener,
    upstream: SocketAddr,
    mut mode: watch::Receiver<Mode>,
    (live, accepted): Counters,
) {
    loop {
        let client = tokio::select! {
            () = reached(&mut mode, |mode| mode == Mode::Ended) => return,
            client = listener.accept() => client,
        };
        // Out of file descriptors, or a connection that was gone before it was accepted.
        let Ok((client, _)) = client else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        accepted.fetch_add(1, Ordering::SeqCst);
        let guard = Live::new(&live);
        let mode = mode.clone();
        // Ends with the runtime, which ends with this function.
        tokio::spawn(async move {
            serve(client, upstream, mode).await;
            drop(guard);
        });
    }
}

/// Counts a connection as long as it is held.
struct Live(Arc<AtomicUsize>);

impl Live {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve(mut client: TcpStream, upstream: SocketAddr, mut mode: watch::Receiver<Mode>) {
    // Nobody behind a black hole sees that someone knocks.
    reached(&mut mode, |mode| mode != Mode::Blackhole).await;
    if is_broken(*mode.borrow()) {
        reset(&client);
        return;
    }
    let Ok(mut server) = TcpStream::connect(upstream).await else {
        reset(&client);
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let in_order = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let both = async {
            tokio::try_join!(
                pump(from_client, to_server, mode.clone()),
                pump(from_server, to_client, mode.clone()),
            )
        };
        let mut mode = mode.clone();
        tokio::select! {
            biased;
            () = reached(&mut mode, is_broken) => false,
            outcome = both => outcome.is_ok(),
        }
    };
    if !in_order {
        reset(&client);
        reset(&server);
    }
}

fn is_broken(mode: Mode) -> bool {
    matches!(mode, Mode::Cut | Mode::Ended)
}

/// Makes the coming close a reset instead of an end.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

/// Waits until the mode is as wanted, or the proxy was dropped.
async fn reached(mode: &mut watch::Receiver<Mode>, wanted: impl Fn(Mode) -> bool) {
    let _ = mode
        .wait_for(|mode| *mode == Mode::Ended || wanted(*mode))
        .await;
}

/// Waits until bytes may be passed on. In a cut that is never: whoever waits here is dropped with
/// the connection, and an end that was held back must not overtake the reset.
async fn flows(mode: &mut watch::Receiver<Mode>) {
    let flowing = |mode: &Mode| !matches!(mode, Mode::Blackhole | Mode::Cut | Mode::Ended);
    if mode.wait_for(flowing).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Forwards one direction until its end, which is passed on too.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut mode: watch::Receiver<Mode>,
) -> io::Result<()> {
    let (queue, mut queued) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_IN_FLIGHT);
    let mode_read = mode.clone();
    let reading = async move {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let count = from.read(&mut buffer).await?;
            let due = match *mode_read.borrow() {
                Mode::Delay(delay) => Instant::now() + delay,
                _ => Instant::now(),
            };
            // The empty chunk is the end, which travels as slowly as everything else.
            let sent = queue.send((due, buffer[..count].to_vec())).await;
            if count == 0 || sent.is_err() {
                return Ok(());
            }
        }
    };
    let writing = async move {
        while let Some((due, chunk)) = queued.recv().await {
            sleep_until(due).await;
            flows(&mut mode).await;
            if chunk.is_empty() {
                return to.shutdown().await;
            }
            write(&mut to, &chunk, &mut mode).await?;
        }
        Ok(())
    };
    tokio::try_join!(reading, writing).map(|_| ())
}

async fn write(
    to: &mut (impl AsyncWrite + Unpin),
    mut chunk: &[u8],
    mode: &mut watch::Receiver<Mode>,
) -> io::Result<()> {
    while !chunk.is_empty() {
        flows(mode).await;
        let Mode::Throttle(bytes_per_sec) = *mode.borrow() else {
            return to.write_all(chunk).await;
        };
        let most = (bytes_per_sec / PIECES_PER_SECOND).max(1);
        let count = chunk.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        let (piece, rest) = chunk.split_at(count);
        to.write_all(piece).await?;
        sleep(Duration::from_secs_f64(count as f64 / bytes_per_sec as f64)).await;
        chunk = rest;
    }
    Ok(())
}
