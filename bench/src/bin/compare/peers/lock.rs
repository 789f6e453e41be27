//! A lock that is waited for, at each of the peers.

use std::{
    net::SocketAddr,
    sync::{Mutex, OnceLock, PoisonError, mpsc},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use lease::{Acquire, Acquired, Holder, Key, LeaseRef, Ttl};
use leasehold_api::paths;
use tokio::{sync::oneshot, time::Instant};

use super::{etcd, http, leasehold_http::TOKEN, leasehold_store::Store, redis};

/// The ttl of a lock that is held for a moment.
const TTL_SECONDS: u64 = 30;
/// How long a caller waits for a lock at most.
const WAIT_SECONDS: u64 = 60;
/// How often a lock without a queue is tried.
const POLL: Duration = Duration::from_millis(1);

/// One caller's way to one lock.
pub trait Lock: Send {
    /// Waits until it is this caller's.
    fn lock(&mut self) -> BoxFuture<'_, Result<()>>;
    /// Gives it back.
    fn unlock(&mut self) -> BoxFuture<'_, Result<()>>;
}

/// A pause that ends on time: the runtime's own timers are a millisecond coarse, so a thread sleeps for
/// everybody.
pub struct Pause(mpsc::Sender<Sleeper>);

/// When somebody wants to be woken.
type Sleeper = (Instant, oneshot::Sender<()>);

impl Pause {
    pub fn new() -> Self {
        static THREAD: OnceLock<Mutex<mpsc::Sender<Sleeper>>> = OnceLock::new();
        let thread = THREAD.get_or_init(|| {
            let (send, receive) = mpsc::channel();
            std::thread::spawn(move || sleep_for_all(&receive));
            Mutex::new(send)
        });
        let thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
        Self(thread.clone())
    }

    pub async fn wait(&self, span: Duration) -> Result<()> {
        let (wake, woken) = oneshot::channel();
        let asleep = self.0.send((Instant::now() + span, wake));
        asleep.ok().context("the thread that sleeps is gone")?;
        Ok(woken.await?)
    }
}

fn sleep_for_all(sleepers: &mpsc::Receiver<Sleeper>) {
    // Few at a time: only those that hold a lock.
    let mut waiting: Vec<Sleeper> = Vec::new();
    loop {
        let now = Instant::now();
        for (_, wake) in waiting.extract_if(.., |(at, _)| *at <= now) {
            let _ = wake.send(());
        }
        let next = waiting.iter().map(|(at, _)| *at).min();
        let received = match next {
            Some(at) => sleepers.recv_timeout(at.saturating_duration_since(Instant::now())),
            None => sleepers.recv().map_err(Into::into),
        };
        match received {
            Ok(sleeper) => waiting.push(sleeper),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Redis has no queue: whoever asks at the right moment has it.
pub struct Redis {
    connection: redis::Connection,
    key: String,
    owner: String,
    pause: Pause,
}

impl Redis {
    pub async fn open(address: SocketAddr, key: &str, owner: &str) -> Result<Self> {
        Ok(Self {
            connection: redis::Connection::open(address).await?,
            key: key.to_owned(),
            owner: owner.to_owned(),
            pause: Pause::new(),
        })
    }

    /// Tries once.
    pub async fn attempt(&mut self, ttl_ms: u64) -> Result<bool> {
        let ttl = ttl_ms.to_string();
        let words = ["SET", &self.key, &self.owner, "NX", "PX", &ttl];
        Ok(self.connection.call(&words).await? != redis::Reply::Nothing)
    }

    /// Keeps it for another ttl.
    pub async fn keep(&mut self, ttl_ms: u64) -> Result<()> {
        let ttl = ttl_ms.to_string();
        self.connection.call(&["PEXPIRE", &self.key, &ttl]).await?;
        Ok(())
    }
}

impl Lock for Redis {
    fn lock(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            while !self.attempt(TTL_SECONDS * 1000).await? {
                self.pause.wait(POLL).await?;
            }
            Ok(())
        })
    }

    fn unlock(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let words = ["EVAL", redis::DELETE, "1", &self.key, &self.owner];
            let deleted = self.connection.call(&words).await?;
            ensure!(deleted == redis::Reply::Number(1), "the lock was lost");
            Ok(())
        })
    }
}

/// A PostgreSQL advisory lock: bound to its connection, and not to any time.
pub struct Advisory {
    client: tokio_postgres::Client,
    lock: tokio_postgres::Statement,
    unlock: tokio_postgres::Statement,
    key: i64,
}

impl Advisory {
    pub async fn open(client: tokio_postgres::Client, key: i64) -> Result<Self> {
        Ok(Self {
            lock: client.prepare("SELECT pg_advisory_lock($1)").await?,
            unlock: client.prepare("SELECT pg_advisory_unlock($1)").await?,
            client,
            key,
        })
    }
}

impl Lock for Advisory {
    fn lock(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            self.client.query_one(&self.lock, &[&self.key]).await?;
            Ok(())
        })
    }

    fn unlock(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            self.client.query_one(&self.unlock, &[&self.key]).await?;
            Ok(())
        })
    }
}

/// etcd's own lock service: a queue of keys, bound to a lease.
pub struct Etcd {
    client: etcd::Client,
    name: String,
    lease: u64,
    key: Bytes,
}

impl Etcd {
    pub async fn open(mut client: etcd::Client, name: &str, ttl_seconds: u64) -> Result<Self> {
        Ok(Self {
            lease: client.grant(ttl_seconds).await?,
            client,
            name: name.to_owned(),
            key: Bytes::new(),
        })
    }

    /// A stream of keep-alives for its lease, each of which is sent by its `keep`.
    pub async fn keep_alive(&mut self) -> Result<etcd::KeepAlive> {
        self.client.keep_alive(self.lease).await
    }
}

impl Lock for Etcd {
    fn lock(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            self.key = self.client.lock(&self.name, self.lease).await?;
            Ok(())
        })
    }

    fn unlock(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { self.client.unlock(&self.key).await })
    }
}

/// Leasehold over HTTP: a place in the key's queue.
pub struct OverHttp {
    http: http::Http,
    body: String,
    path: String,
}

impl OverHttp {
    pub async fn open(address: SocketAddr, key: &str, holder: &str) -> Result<Self> {
        Ok(Self {
            http: http::Http::open(address, TOKEN).await?,
            body: format!(
                r#"{{"kind":"lock","id":"{key}","holder":"{holder}","incarnation":"1","ttl_seconds":{TTL_SECONDS},"wait_seconds":{WAIT_SECONDS}}}"#
            ),
            path: String::new(),
        })
    }
}

impl Lock for OverHttp {
    fn lock(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let path = self
                .http
                .call("POST", paths::ACQUIRE, &self.body, |answer| {
                    http::field(answer, "lease_id")
                        .map(|id| format!("{}/{id}/release", paths::LEASES))
                });
            self.path = path.await?.context("no lease in the answer")?;
            Ok(())
        })
    }

    fn unlock(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { self.http.call("DELETE", &self.path, "", |_| ()).await })
    }
}

/// Leasehold inside this process.
pub struct Inside {
    store: Store,
    request: Acquire,
    held: Option<LeaseRef>,
}

impl Inside {
    pub fn new(store: Store, key: &str, holder: &str) -> Result<Self> {
        let holder = Holder::new(holder, "1")?;
        let ttl = Ttl::from_secs(TTL_SECONDS)?;
        let mut request = Acquire::one(Key::new("lock", key)?, holder, ttl);
        request.wait_ms = WAIT_SECONDS * 1000;
        Ok(Self {
            store,
            request,
            held: None,
        })
    }
}

impl Lock for Inside {
    fn lock(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            match self.store.authority.acquire(self.request.clone()).await? {
                Acquired::Granted { leases, .. } => self.held = Some(LeaseRef::from(&leases[0])),
                Acquired::Refused(refusal) => bail!("{refusal:?}"),
            }
            Ok(())
        })
    }

    fn unlock(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let held = self.held.take().context("nothing is held")?;
            ensure!(
                self.store.authority.release(held).await?,
                "the lock was lost"
            );
            Ok(())
        })
    }
}
