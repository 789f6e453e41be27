//! The connection: found anew when it breaks, with a pause that grows, and with a clear word on
//! whether a request can have happened.

use std::{
    io::Write,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ::redis::{AsyncConnectionConfig, Client, Cmd, Value, aio::MultiplexedConnection};
use arc_swap::ArcSwapOption;
use lease::{BootMillis, Clock, Error};
use leasehold_clock::{Backoff, System};
use tokio::{runtime::Handle, sync::watch};

use super::{
    address::Address,
    failure::{self, Failure},
    keys::Keys,
    options::Options,
    resolve::{config, connect, resolve},
    scripts::Script,
};

/// The first pause after a failed attempt to connect, and the longest.
const PAUSE_MS: (u64, u64) = (20, 500);

/// Whether a command that may have been executed can be sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Twice is the same as once.
    Safe,
    /// It may do something else the second time.
    Never,
}

struct Connected {
    client: Client,
    connection: MultiplexedConnection,
    generation: u64,
}

/// How an attempt to connect ended.
type Attempt = Result<Arc<Connected>, Error>;

/// The attempt under way, why the last one failed, and when the next one may be made.
struct Connecting {
    attempt: Option<watch::Receiver<Option<Attempt>>>,
    until: BootMillis,
    backoff: Backoff,
    error: Option<Error>,
}

impl Default for Connecting {
    fn default() -> Self {
        Self {
            attempt: None,
            until: BootMillis::default(),
            backoff: Backoff::new(PAUSE_MS.0, PAUSE_MS.1),
            error: None,
        }
    }
}

/// What callers share with the task that connects.
struct Shared {
    address: Address,
    config: AsyncConnectionConfig,
    connect_timeout: Duration,
    meta: String,
    current: ArcSwapOption<Connected>,
    /// Never held across an await.
    connecting: Mutex<Connecting>,
    generations: AtomicU64,
    clock: System,
}

pub(super) struct Link {
    shared: Arc<Shared>,
    /// Where attempts to connect run, and connections after them.
    runtime: Handle,
}

impl Shared {
    /// Connects, and passes the result on to all who wait for it. It runs as a task of its own: a
    /// caller may stop to poll its future at any point (a `select!` whose other branch is busy, a
    /// stream of futures that nobody asks for the next), and must not hold up the others then.
    async fn connect(self: Arc<Self>, waiting: watch::Sender<Option<Attempt>>) {
        let attempt = self.establish().await.map(Arc::new);
        let mut connecting = self.connecting();
        match &attempt {
            Ok(connected) => {
                *connecting = Connecting::default();
                self.current.store(Some(connected.clone()));
            }
            Err(error) => {
                connecting.attempt = None;
                let pause_ms = connecting.backoff.next_ms();
                connecting.until = self.clock.boot().plus(pause_ms);
                connecting.error = Some(error.clone());
            }
        }
        drop(connecting);
        waiting.send_replace(Some(attempt));
    }

    async fn establish(&self) -> Result<Connected, Error> {
        let attempt = async {
            let client = resolve(&self.address, &self.meta, &self.config).await?;
            let connection = connect(&client, &self.config).await?;
            Ok(Connected {
                client,
                connection,
                generation: self.generations.fetch_add(1, Ordering::Relaxed) + 1,
            })
        };
        // Several servers may have to be asked; each has its own limit, and this is for all.
        match tokio::time::timeout(self.connect_timeout * 4, attempt).await {
            Ok(result) => result,
            Err(_) => Err(Error::Unavailable("no connection in time".into())),
        }
    }

    fn connecting(&self) -> std::sync::MutexGuard<'_, Connecting> {
        self.connecting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    pub fn new(options: &Options, keys: &Keys) -> Self {
        Self {
            shared: Arc::new(Shared {
                address: options.address.clone(),
                config: config(options.connect_timeout, options.response_timeout),
                connect_timeout: options.connect_timeout,
                meta: keys.meta(),
                current: ArcSwapOption::empty(),
                connecting: Mutex::default(),
                generations: AtomicU64::new(0),
                clock: System,
            }),
            runtime: Handle::current(),
        }
    }

    /// Grows with every new connection.
    pub fn generation(&self) -> u64 {
        let current = self.shared.current.load();
        current.as_ref().map_or(0, |it| it.generation)
    }

    /// The server that decides now, for a connection apart, and the generation it belongs to.
    pub async fn client(&self) -> Result<(Client, u64), Error> {
        let connected = self.connected().await?;
        Ok((connected.client.clone(), connected.generation))
    }

    /// How long connecting may take.
    pub fn connect_timeout(&self) -> Duration {
        self.shared.connect_timeout
    }

    async fn connected(&self) -> Attempt {
        if let Some(connected) = self.shared.current.load_full() {
            return Ok(connected);
        }
        let mut attempt = self.attempt_to_connect()?;
        let ended = attempt.wait_for(Option::is_some).await;
        match ended.map(|ended| ended.clone()) {
            Ok(Some(attempt)) => attempt,
            Ok(None) | Err(_) => Err(Error::Unavailable("the store was closed".into())),
        }
    }

    /// The attempt under way, or a new one unless the last one failed just now.
    fn attempt_to_connect(&self) -> Result<watch::Receiver<Option<Attempt>>, Error> {
        let shared = &self.shared;
        let mut connecting = shared.connecting();
        if let Some(connected) = shared.current.load_full() {
            return Ok(watch::channel(Some(Ok(connected))).1);
        }
        // One whose task is gone without a result will never have one.
        if let Some(attempt) = &connecting.attempt
            && attempt.has_changed().is_ok()
        {
            return Ok(attempt.clone());
        }
        if let Some(error) = &connecting.error
            && shared.clock.boot() < connecting.until
        {
            return Err(error.clone());
        }
        let (waiting, attempt) = watch::channel(None);
        connecting.attempt = Some(attempt.clone());
        self.runtime.spawn(shared.clone().connect(waiting));
        Ok(attempt)
    }

    fn discard(&self, used: &Arc<Connected>) {
        let current = self.shared.current.load();
        if current.as_ref().is_some_and(|it| Arc::ptr_eq(it, used)) {
            self.shared.current.compare_and_swap(&*current, None);
        }
    }

    async fn attempt(&self, command: &Cmd) -> Result<Value, Failure> {
        let connected = self.connected().await.map_err(|error| Failure {
            error,
            reconnect: false,
            no_script: false,
            moved: false,
            dropped: false,
        })?;
        let mut connection = connected.connection.clone();
        let answer = connection.send_packed_command(command).await;
        // A script's error arrives as a value where it is part of an answer.
        let answer = answer.and_then(Value::extract_error);
        answer.map_err(|error| {
            let failure = failure::of(&error);
            if failure.reconnect {
                self.discard(&connected);
            }
            failure
        })
    }

    /// Sends one command.
    pub async fn send(&self, command: &Cmd, repeat: Repeat) -> Result<Value, Failure> {
        let first = self.attempt(command).await;
        match first {
            Err(failure) if failure.moved || (failure.dropped && repeat == Repeat::Safe) => {
                self.attempt(command).await
            }
            answer => answer,
        }
    }

    /// Runs a script by its digest, or whole where Redis has forgotten it.
    pub async fn run(&self, script: &Script, call: &Call, repeat: Repeat) -> Result<Value, Error> {
        let answer = self.try_run(script, call, repeat).await;
        answer.map_err(|failure| failure.error)
    }

    /// The same, with all that is known about a failure.
    pub async fn try_run(
        &self,
        script: &Script,
        call: &Call,
        repeat: Repeat,
    ) -> Result<Value, Failure> {
        let began = tokio::time::Instant::now();
        let by_sha = call.command("EVALSHA", &script.sha);
        let answer = match self.send(&by_sha, repeat).await {
            Err(failure) if failure.no_script => {
                let whole = call.command("EVAL", &script.text);
                self.send(&whole, repeat).await
            }
            answer => answer,
        };
        if answer.is_ok() {
            crate::timing::committed(began.elapsed());
        }
        answer
    }
}

/// The keys and arguments of a script.
pub(super) struct Call {
    meta: String,
    /// The arguments one behind the other, and where each ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Call {
    /// A call that names the store's counters, and with them its slot on a cluster: all other keys
    /// are in the same one.
    pub fn new(keys: &Keys) -> Self {
        Self {
            meta: keys.meta(),
            bytes: Vec::with_capacity(256),
            ends: Vec::with_capacity(24),
        }
    }

    /// One more argument.
    pub fn arg(&mut self, argument: impl AsRef<[u8]>) -> &mut Self {
        self.bytes.extend_from_slice(argument.as_ref());
        self.ends.push(self.bytes.len());
        self
    }

    /// One more argument, a number.
    pub fn number(&mut self, number: u64) -> &mut Self {
        // Writing to a vector cannot fail.
        let _ = write!(self.bytes, "{number}");
        self.ends.push(self.bytes.len());
        self
    }

    /// All arguments of another call.
    pub fn all_of(&mut self, other: &Self) -> &mut Self {
        let shift = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.ends.extend(other.ends.iter().map(|end| end + shift));
        self
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let size = self.bytes.len() + self.meta.len() + script.len() + verb.len() + 1;
        let mut command = Cmd::with_capacity(self.ends.len() + 4, size);
        command.arg(verb).arg(script).arg(1).arg(&self.meta);
        let mut from = 0;
        for &end in &self.ends {
            command.arg(&self.bytes[from..end]);
            from = end;
        }
        command
    }
}
