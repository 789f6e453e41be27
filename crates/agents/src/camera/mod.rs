//! The reference worker of the manager: reads cameras with ffmpeg, finds motion, attributes it to zones
//! and publishes what it finds, each message under the camera's fencing token.
//!
//! Its files and its HTTP interface are those of [`leasehold_api::worker`]; any other program that follows
//! them can take its place.

mod frame;
mod message;
mod metrics;
mod motion;
mod publish;
mod source;
mod still;
mod stream;
mod surface;
mod tenure;
mod worker;
mod zones;

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use lease::Clock;
use leasehold_api::worker::{FenceFile, ShardConfig, WorkerHeartbeat};
use leasehold_clock::Backoff;
use tokio::net::{TcpListener, TcpStream};

pub use publish::Sink;

use crate::supervise::Launcher;
use metrics::Metrics;
use stream::Common;
use worker::Worker;

/// Every metric with made-up figures: for the reference page, and for checks of what is written.
#[doc(hidden)]
pub fn metrics_example() -> String {
    Metrics::example()
}

/// How often the fence file and the manager's life are looked at.
const LOOK_MS: u64 = 200;
/// How often the worker reports to its manager.
const HEARTBEAT_MS: u64 = 5_000;
/// How long one report may take.
const HEARTBEAT_LIMIT: Duration = Duration::from_secs(2);
/// How long the messages that still wait may take at the end.
const FLUSH: Duration = Duration::from_secs(2);
/// More than the largest fence file or shard.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// What a worker is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// The shard's config file.
    pub config: PathBuf,
    /// The manager's name.
    pub runner_id: String,
    /// Which part of its cameras this is.
    pub shard_id: String,
    /// The worker's id at its manager.
    pub worker_id: String,
    /// The port on 127.0.0.1 that it serves.
    pub port: u16,
    /// The port on 127.0.0.1 where Prometheus finds its metrics, if it was given one.
    pub metrics_port: Option<u16>,
    /// The manager's process: the worker ends with it.
    pub manager_pid: Option<u32>,
    /// Where it reports to.
    pub manager_url: Option<String>,
    /// Where the deadlines are.
    pub fence_file: Option<PathBuf>,
    /// Where messages go.
    pub sink: Sink,
    /// How many pictures of each camera are looked at, per second.
    pub frames_per_second: f64,
    /// A stream without a picture for so long is begun again.
    pub stall: Duration,
    /// How often the state of a stream is published when nothing happens.
    pub status_interval: Duration,
    /// How often the manager gets a still of each camera; never when it is zero.
    pub picture_interval: Duration,
    /// How long a graceful end may take.
    pub grace: Duration,
}

impl Options {
    /// A path of this worker at its manager.
    fn at_manager(&self, url: &str, path: &str) -> String {
        let worker = leasehold_api::paths::encode(&self.worker_id);
        format!("{}/workers/{worker}/{path}", url.trim_end_matches('/'))
    }
}

/// Why a worker could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The config file cannot be used.
    #[error("config: {0}")]
    Config(String),
    /// The port cannot be had.
    #[error("cannot serve 127.0.0.1:{port}: {source}")]
    Port {
        /// Which.
        port: u16,
        /// Why.
        source: io::Error,
    },
}

/// Why a worker ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It was drained: nothing is left.
    Drained,
    /// It was ordered to end immediately, or did not drain in time.
    Terminated,
    /// Its manager is gone.
    ManagerGone,
}

impl Ended {
    const fn word(self) -> &'static str {
        match self {
            Self::Drained => "drained",
            Self::Terminated => "terminated",
            Self::ManagerGone => "manager gone",
        }
    }
}

/// Works until it is drained or terminated, or until its manager is gone. `stop` resolving asks for a
/// graceful end.
pub async fn run(
    options: Options,
    launcher: Launcher,
    clock: Arc<dyn Clock>,
    stop: impl Future<Output = ()>,
) -> Result<Ended, Error> {
    let config = read_config(&options)?;
    let manager = options.manager_pid.map(Manager::new);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, options.port));
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| Error::Port {
            port: options.port,
            source,
        })?;
    let metrics = Arc::new(Metrics::new());
    let (publisher, publishing) =
        publish::start(options.sink.clone(), metrics.clone(), clock.clone());
    let publishing = tokio::spawn(publishing);
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let worker = Arc::new(Worker::new(Arc::new(Common {
        clock: clock.clone(),
        launcher,
        publisher,
        metrics,
        runner_id: options.runner_id.clone(),
        shard_id: options.shard_id.clone(),
        worker_id: options.worker_id.clone(),
        frames_per_second: options.frames_per_second,
        stall_ms: millis(options.stall),
        status_ms: millis(options.status_interval),
    })));
    worker
        .apply(config)
        .await
        .map_err(|refused| Error::Config(refused.to_string()))?;
    let serving = tokio::spawn(crate::surface::serve(listener, {
        let worker = worker.clone();
        move |request| surface::answer(worker.clone(), request)
    }));
    tracing::info!(%address, shard = options.shard_id, "worker serves");
    let ended = tokio::select! {
        () = worker.terminated() => Ended::Terminated,
        () = gone(manager.as_ref(), &*clock) => Ended::ManagerGone,
        () = fences(options.fence_file.as_deref(), &worker, &*clock) => Ended::Terminated,
        () = heartbeats(&options, &worker, &*clock) => Ended::Terminated,
        () = still::send(&options, &worker, &*clock) => Ended::Terminated,
        () = serve_metrics(&options, &worker, &*clock) => Ended::Terminated,
        () = worker.drained() => Ended::Drained,
        () = stop => Ended::Drained,
    };
    tracing::info!(reason = ended.word(), "worker exiting");
    let ended = match ended {
        Ended::Drained => {
            let limit = clock.boot().plus(millis(options.grace));
            tokio::select! {
                () = worker.stop() => Ended::Drained,
                () = fences(options.fence_file.as_deref(), &worker, &*clock) => Ended::Terminated,
                () = worker.terminated() => Ended::Terminated,
                () = gone(manager.as_ref(), &*clock) => Ended::ManagerGone,
                () = clock.sleep_until(limit) => Ended::Terminated,
            }
        }
        ended => ended,
    };
    // Guardians end what still runs when this process is gone.
    serving.abort();
    drop(worker);
    if ended == Ended::Drained {
        let _ = tokio::time::timeout(FLUSH, publishing).await;
    }
    Ok(ended)
}

fn read_config(options: &Options) -> Result<ShardConfig, Error> {
    let named = |error: &dyn std::fmt::Display| {
        Error::Config(format!("{}: {error}", options.config.display()))
    };
    let text = read_file(&options.config).map_err(|error| named(&error))?;
    parse(&text).map_err(|error| named(&error))
}

/// Reads JSON. What is wrong is said by its place alone: the parser would repeat values, and with them
/// logins.
fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| {
        let what = match error.classify() {
            serde_json::error::Category::Data => "unexpected value",
            _ => "not JSON",
        };
        format!("{what} at line {} column {}", error.line(), error.column())
    })
}

fn read_file(path: &Path) -> io::Result<String> {
    if fs::metadata(path)?.len() > MAX_FILE_BYTES {
        return Err(io::Error::other("the file is too large"));
    }
    fs::read_to_string(path)
}

/// Follows the fence file for ever. One that cannot be read changes nothing: the deadlines that are known
/// pass by themselves.
async fn fences(path: Option<&Path>, worker: &Worker, clock: &dyn Clock) {
    let Some(path) = path else {
        return std::future::pending().await;
    };
    // Replaced with every change, so it is another file then.
    let mut seen = None;
    loop {
        let version = fs::metadata(path)
            .map(|it| (it.ino(), it.mtime(), it.mtime_nsec(), it.len()))
            .ok();
        if version.is_some() && version != seen {
            let file = read_file(path)
                .map_err(|error| error.to_string())
                .and_then(|text| parse::<FenceFile>(&text));
            match file {
                Ok(file) => {
                    worker.fence(&file);
                    seen = version;
                }
                Err(error) => tracing::warn!(error, "fence file unreadable"),
            }
        }
        clock.sleep_until(clock.boot().plus(LOOK_MS)).await;
    }
}

/// The process that this worker belongs to. Its number alone could be another's later.
struct Manager {
    pid: u32,
    started: Option<String>,
}

impl Manager {
    fn new(pid: u32) -> Self {
        Self {
            pid,
            started: started_at(pid),
        }
    }

    fn is_gone(&self) -> bool {
        self.started.is_none() || started_at(self.pid) != self.started
    }
}

/// When a process was started, in the kernel's own units; `None` when there is none, or only its remains.
fn started_at(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    if fields.starts_with(['Z', 'X']) {
        return None;
    }
    fields.split(' ').nth(19).map(str::to_owned)
}

/// Resolves when the manager is gone.
async fn gone(manager: Option<&Manager>, clock: &dyn Clock) {
    let Some(manager) = manager else {
        return std::future::pending().await;
    };
    while !manager.is_gone() {
        clock.sleep_until(clock.boot().plus(LOOK_MS)).await;
    }
}

/// Reports to the manager for ever. A manager that does not listen asks by itself.
async fn heartbeats(options: &Options, worker: &Worker, clock: &dyn Clock) {
    let Some(url) = &options.manager_url else {
        return std::future::pending().await;
    };
    let url = options.at_manager(url, "heartbeat");
    let mut answered = true;
    loop {
        let cameras = worker.reports();
        let working = cameras.values().filter(|it| it.state == "working").count();
        let heartbeat = WorkerHeartbeat {
            stats: [
                ("cameras".to_owned(), cameras.len().into()),
                ("working".to_owned(), working.into()),
            ]
            .into_iter()
            .collect(),
            cameras,
        };
        let body = serde_json::to_vec(&heartbeat).unwrap_or_default();
        let sent = post(&url, "application/json", body, HEARTBEAT_LIMIT).await;
        let error = sent.err();
        if let Some(error) = &error
            && answered
        {
            tracing::warn!(error, "manager does not take heartbeats");
        }
        answered = error.is_none();
        clock.sleep_until(clock.boot().plus(HEARTBEAT_MS)).await;
    }
}

/// Serves the metrics on a port of their own. A worker that is being replaced may have it for a moment.
async fn serve_metrics(options: &Options, worker: &Arc<Worker>, clock: &dyn Clock) {
    let Some(port) = options.metrics_port else {
        return std::future::pending().await;
    };
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut backoff = Backoff::new(100, 5_000);
    let listener = loop {
        match crate::surface::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => tracing::info!(%error, "metrics not served yet"),
        }
        backoff.pause(clock).await;
    };
    // A scraper that stays connected does not keep the worker.
    let worker = Arc::downgrade(worker);
    crate::surface::serve(listener, move |request| {
        let worker = worker.upgrade();
        async move { surface::metrics_only(worker.as_deref(), &request) }
    })
    .await;
}

/// Sends something to the manager, with everything it takes within `limit`.
async fn post(
    url: &str,
    media: &'static str,
    body: Vec<u8>,
    limit: Duration,
) -> Result<(), String> {
    let sent = tokio::time::timeout(limit, send(url, media, body)).await;
    sent.unwrap_or_else(|_| Err("no answer".to_owned()))
}

async fn send(url: &str, media: &'static str, body: Vec<u8>) -> Result<(), String> {
    let uri: Uri = url.parse().map_err(|_| "not a URL".to_owned())?;
    let host = uri.host().ok_or("the URL names no host")?;
    let port = uri.port_u16().unwrap_or(80);
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let stream = TcpStream::connect((host.trim_matches(['[', ']']), port))
        .await
        .map_err(|error| text(&error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| text(&error))?;
    let path = uri.path_and_query().map_or("/", |it| it.as_str());
    let request = Request::post(path)
        .header(header::HOST, format!("{host}:{port}"))
        .header(header::CONTENT_TYPE, media)
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| text(&error))?;
    tokio::select! {
        answer = sender.send_request(request) => match answer {
            Ok(answer) if answer.status().is_success() => Ok(()),
            Ok(answer) => Err(format!("answered {}", answer.status())),
            Err(error) => Err(text(&error)),
        },
        _ = connection => Err("the connection ended".to_owned()),
    }
}
