//! Floods: what a bystander's renewals cost while others read everything there is, again and again, or follow
//! everything that happens. The real binary is driven over HTTP.
//!
//! The bystander has a thread and a connection of its own, and the threads of those who flood have a lower priority, so
//! that it does not wait for their work in this program: they would be on other machines.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use comfy_table::Table;
use futures_util::{StreamExt as _, stream};
use hdrhistogram::Histogram;
use leasehold_bench::usage::Processes;
use leasehold_testkit::{Child, Dir, Program, port};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::oneshot,
    task::JoinSet,
};

/// Measures renewals under floods on this machine.
#[derive(Parser)]
struct Arguments {
    /// How many leases are live.
    #[arg(long, default_value_t = 100_000)]
    leases: usize,
    /// How many read everything at the same time.
    #[arg(long, default_value_t = 50)]
    readers: usize,
    /// How many follow every change at the same time.
    #[arg(long, default_value_t = 1_000)]
    subscribers: usize,
    /// How many changes a second they follow.
    #[arg(long, default_value_t = 2_000)]
    changes: usize,
    /// How many wait for hundreds of keys at the same time.
    #[arg(long, default_value_t = 200)]
    waiters: usize,
    /// How many holders' streams are open while what one costs is measured.
    #[arg(long, default_value_t = 2_000)]
    sockets: usize,
    /// How long each flood is measured, in seconds.
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// The server's binary, if not the one beside this program.
    #[arg(long)]
    binary: Option<std::path::PathBuf>,
}

const TOKEN: &str = "a-token-for-the-length-of-this-measurement";
const READER: &str = "a-reader-of-another-tenant-for-this-measurement";
const SOON: Duration = Duration::from_secs(30);
/// The slowest renewal of a bystander that is accepted.
const AIM: Duration = Duration::from_millis(100);
/// The most memory that a holder's stream may cost the server.
const SOCKET_AIM: u64 = 16 * 1000;
/// How often the bystander renews.
const EVERY: Duration = Duration::from_millis(5);
/// How many keys one request takes.
const KEYS: usize = 100;
/// How many keys each waiter wants.
const WANTED: usize = 250;
/// How much lower than the bystander and the server those who flood stand.
const NICE: i32 = 10;
/// How often leases are renewed for those who follow every change.
const CHANGE_EVERY: Duration = Duration::from_millis(20);

#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures the machine's own time"
)]
fn start() -> Instant {
    Instant::now()
}

/// What floods the server.
#[derive(Clone, Copy)]
enum Flood {
    Nothing,
    Listings,
    Snapshots,
    ForeignSnapshots,
    Subscribers,
    Waiters,
}

impl Flood {
    const ALL: [(Self, &'static str); 6] = [
        (Self::Nothing, "nothing else"),
        (Self::Listings, "full listings, page by page"),
        (Self::Snapshots, "streams that begin with a snapshot"),
        (
            Self::ForeignSnapshots,
            "the same, by one who may see nothing of it",
        ),
        (Self::Subscribers, "subscribers to every change"),
        (Self::Waiters, "releases that many wait for"),
    ];
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .on_thread_start(|| {
            // On Linux a priority is the thread's own.
            let _ = rustix::process::nice(NICE);
        })
        .enable_all()
        .build()?;
    runtime.block_on(flood(arguments))
}

async fn flood(arguments: Arguments) -> Result<()> {
    let dir = Dir::new("bench-floods");
    let (child, address) = serve(&arguments, &dir).await?;
    let bench = Bench {
        http: Client::builder().pool_max_idle_per_host(256).build()?,
        url: format!("http://{address}"),
        address,
    };
    // First: memory that floods leave behind would hide what sockets cost.
    let socket = socket_bytes(&child, address, arguments.sockets).await?;
    println!(
        "a holder's stream costs {:.1} kB (aim <= {:.1} kB), with {} open",
        socket as f64 / 1000.0,
        SOCKET_AIM as f64 / 1000.0,
        arguments.sockets
    );
    bench.fill(arguments.leases).await?;
    let mut table = Table::new();
    table.set_header([
        "flood", "reads", "renewals", "p50", "p99", "slowest", "aim", "",
    ]);
    let mut met = true;
    for (flood, name) in Flood::ALL {
        let (latency, reads) = bench.measure(flood, &arguments).await?;
        let millis = |micros: u64| format!("{:.1} ms", micros as f64 / 1000.0);
        let fine = latency.max() <= u64::try_from(AIM.as_micros())?;
        met &= fine;
        table.add_row([
            name.to_owned(),
            reads.to_string(),
            latency.len().to_string(),
            millis(latency.value_at_quantile(0.5)),
            millis(latency.value_at_quantile(0.99)),
            millis(latency.max()),
            format!("<= {} ms", AIM.as_millis()),
            if fine { "met" } else { "MISSED" }.to_owned(),
        ]);
    }
    println!(
        "{} leases, {} readers, {} subscribers at {} changes a second, {} waiters for {WANTED} keys each",
        arguments.leases,
        arguments.readers,
        arguments.subscribers,
        arguments.changes,
        arguments.waiters
    );
    println!("{table}");
    drop(child);
    ensure!(socket <= SOCKET_AIM, "a holder's stream costs too much");
    ensure!(met, "a renewal took longer than {} ms", AIM.as_millis());
    Ok(())
}

/// The server beside this program, in a folder of its own.
async fn serve(arguments: &Arguments, dir: &Dir) -> Result<(Child, SocketAddr)> {
    let beside = std::env::current_exe()?.with_file_name("leasehold");
    let binary = arguments.binary.clone().unwrap_or(beside);
    ensure!(
        binary.is_file(),
        "build the server first: cargo build --release -p leasehold"
    );
    let address = SocketAddr::from(([127, 0, 0, 1], port::free()));
    let tokens = json!([
        {"token": TOKEN, "scopes": ["leases:admin"]},
        {"token": READER, "scopes": ["leases:read"], "tenant": "other"},
    ]);
    let mut child = Program::new(binary)
        .args(["serve", "--log", "warn", "--listen", &address.to_string()])
        .arg("--data-dir")
        .arg(dir.join("data"))
        .env("LEASEHOLD_TOKENS", tokens.to_string())
        .env("LEASEHOLD_SESSIONS_WORKER", "false")
        .spawn();
    child.wait_for_line("listening on", SOON).await;
    Ok((child, address))
}

#[derive(Clone)]
struct Bench {
    http: Client,
    url: String,
    address: SocketAddr,
}

impl Bench {
    async fn post(&self, path: &str, body: &Value) -> Result<Response> {
        let request = self.http.post(format!("{}{path}", self.url));
        let response = request.bearer_auth(TOKEN).json(body).send().await?;
        Ok(response.error_for_status()?)
    }

    async fn get(&self, token: &str, path: &str) -> Result<Response> {
        let request = self.http.get(format!("{}{path}", self.url));
        Ok(request.bearer_auth(token).send().await?)
    }

    /// Takes all leases, many at a time, each thousand for a holder of its own.
    async fn fill(&self, leases: usize) -> Result<()> {
        let mut filling = JoinSet::new();
        for first in (0..leases).step_by(KEYS) {
            let bench = self.clone();
            filling.spawn(async move {
                let keys: Vec<Value> = (first..(first + KEYS).min(leases))
                    .map(|number| json!({"kind": "job", "id": format!("{number:07}")}))
                    .collect();
                let holder = format!("holder-{}", first / 1000);
                let body = json!({"keys": keys, "holder": holder, "incarnation": "1",
                    "ttl_seconds": 3600, "tenant_id": "one"});
                bench.post("/api/v1/leases/acquire", &body).await
            });
            if filling.len() >= 32 {
                filling.join_next().await.context("a task")???;
            }
        }
        while let Some(filled) = filling.join_next().await {
            filled??;
        }
        Ok(())
    }

    /// The bystander's renewals under a flood, and how often everything was read meanwhile.
    async fn measure(&self, flood: Flood, arguments: &Arguments) -> Result<(Histogram<u64>, u64)> {
        let (over, reads) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let mut readers = JoinSet::new();
        if matches!(flood, Flood::Subscribers) {
            self.subscribe(&mut readers, &reads, arguments).await?;
        } else if matches!(flood, Flood::Waiters) {
            self.wait(&mut readers, &reads, arguments).await?;
        } else if !matches!(flood, Flood::Nothing) {
            for _ in 0..arguments.readers {
                let (bench, over, reads) = (self.clone(), over.clone(), reads.clone());
                readers.spawn(async move {
                    while !over.load(Ordering::Relaxed) {
                        // One that is turned away comes back at once: that is what a flood does.
                        if bench.read(flood, &over).await.unwrap_or(false) {
                            reads.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        }
        let (url, address, seconds) = (self.url.clone(), self.address, arguments.seconds);
        let (done, latency) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let stood_by = match runtime {
                Ok(runtime) => runtime.block_on(stand_by(url, address, seconds)),
                Err(error) => Err(error.into()),
            };
            drop(done.send(stood_by));
        });
        let latency = latency.await??;
        over.store(true, Ordering::Relaxed);
        readers.abort_all();
        while readers.join_next().await.is_some() {}
        Ok((latency, reads.load(Ordering::Relaxed)))
    }

    /// Follows every change, many times over, and makes them.
    async fn subscribe(
        &self,
        tasks: &mut JoinSet<()>,
        reads: &Arc<AtomicU64>,
        arguments: &Arguments,
    ) -> Result<()> {
        // One connection each, as subscribers have them, and nothing else.
        let address = self.address;
        let opening = (0..arguments.subscribers).map(|_| async move {
            let mut socket = TcpStream::connect(address).await?;
            let request = format!(
                "GET /api/v1/events/stream HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            );
            socket.write_all(request.as_bytes()).await?;
            let mut head = Vec::new();
            while !head.windows(6).any(|it| it == b": open") {
                ensure!(socket.read_buf(&mut head).await? > 0, "no stream");
            }
            ensure!(head.starts_with(b"HTTP/1.1 200"), "no stream");
            Ok(socket)
        });
        let mut opening = stream::iter(opening).buffer_unordered(16);
        while let Some(subscriber) = opening.next().await {
            let (mut subscriber, reads) = (subscriber?, reads.clone());
            tasks.spawn(async move {
                let mut buffer = vec![0; 16 * 1024];
                while let Ok(1..) = subscriber.read(&mut buffer).await {
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        drop(opening);
        let in_a_round = arguments.changes * usize::try_from(CHANGE_EVERY.as_millis())? / 1000;
        let keys: Vec<Value> = (0..in_a_round)
            .map(|number| json!({"kind": "busy", "id": number.to_string()}))
            .collect();
        let body = json!({"keys": keys, "holder": "busy", "incarnation": "1", "ttl_seconds": 3600});
        self.post("/api/v1/leases/acquire", &body).await?;
        let bench = self.clone();
        tasks.spawn(async move {
            let mut ticks = tokio::time::interval(CHANGE_EVERY);
            let all = json!({"holder": "busy", "incarnation": "1"});
            loop {
                ticks.tick().await;
                // What could not be renewed is renewed in the next round.
                drop(bench.post("/api/v1/leases/renew", &all).await);
            }
        });
        Ok(())
    }

    /// Lets many wait for hundreds of keys, of which one stays taken, and gives the others back again and again.
    async fn wait(
        &self,
        tasks: &mut JoinSet<()>,
        reads: &Arc<AtomicU64>,
        arguments: &Arguments,
    ) -> Result<()> {
        let key = |number: usize| json!({"kind": "wanted", "id": number.to_string()});
        let keys: Vec<Value> = (0..WANTED).map(key).collect();
        let last = json!({"keys": [key(WANTED - 1)], "holder": "last", "incarnation": "1",
            "ttl_seconds": 3600});
        self.post("/api/v1/leases/acquire", &last).await?;
        for number in 0..arguments.waiters {
            let bench = self.clone();
            let body = json!({"keys": keys, "holder": format!("waiter-{number}"), "incarnation": "1",
                "ttl_seconds": 60, "wait_seconds": 600});
            tasks.spawn(async move {
                drop(bench.post("/api/v1/leases/acquire", &body).await);
            });
        }
        let (bench, reads) = (self.clone(), reads.clone());
        tasks.spawn(async move {
            for number in (0..WANTED - 1).cycle() {
                if bench.hold_for_a_moment(number).await.is_ok() {
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Ok(())
    }

    async fn hold_for_a_moment(&self, number: usize) -> Result<()> {
        let body = json!({"kind": "wanted", "id": number.to_string(), "holder": "other",
            "incarnation": "1", "ttl_seconds": 60});
        let lease = self.post("/api/v1/leases/acquire", &body).await?;
        let lease: Value = lease.json().await?;
        let id = lease["lease_id"].as_str().context("a lease")?;
        let path = format!("{}/api/v1/leases/{id}/release", self.url);
        let released = self.http.delete(path).bearer_auth(TOKEN).send().await?;
        released.error_for_status()?;
        Ok(())
    }

    /// Reads everything once. Says whether it came to its end.
    async fn read(&self, flood: Flood, over: &AtomicBool) -> Result<bool> {
        let token = match flood {
            Flood::ForeignSnapshots => READER,
            _ => TOKEN,
        };
        if let Flood::Listings = flood {
            let mut path = "/api/v1/leases?limit=1000".to_owned();
            while !over.load(Ordering::Relaxed) {
                let response = self.get(token, &path).await?;
                let page = response.error_for_status()?.text().await?;
                // Without reading all of it: what this costs is not the server's.
                let cursor = page.rsplit_once("\"next_cursor\":\"");
                let Some((cursor, _)) = cursor.and_then(|(_, rest)| rest.split_once('"')) else {
                    return Ok(true);
                };
                path = format!("/api/v1/leases?limit=1000&cursor={cursor}");
            }
            return Ok(false);
        }
        let path = "/api/v1/events/stream?after=900000000000";
        let mut response = self.get(token, path).await?.error_for_status()?;
        let mut end = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            // An event ends with an empty line; the first is the greeting.
            end.extend_from_slice(&chunk);
            let began = end.windows(6).any(|it| it == b"event:");
            if began && end.ends_with(b"\n\n") {
                return Ok(true);
            }
            let keep = end.len().saturating_sub(4096);
            if keep > 0 && !began {
                end.drain(..keep);
            }
            if began && end.len() > 8192 {
                // Only its beginning and its end matter.
                let tail = end.split_off(end.len() - 16);
                end.truncate(64);
                end.extend(tail);
                end.splice(0..0, *b"event:");
            }
        }
        Ok(false)
    }
}

/// Renews one lease, again and again, and measures how long each renewal takes.
async fn stand_by(url: String, address: SocketAddr, seconds: u64) -> Result<Histogram<u64>> {
    let bench = Bench {
        http: Client::new(),
        url,
        address,
    };
    let body = json!({"kind": "bystander", "id": "1", "holder": "bystander",
        "incarnation": "1", "ttl_seconds": 30});
    let lease = bench.post("/api/v1/leases/acquire", &body).await?;
    let lease: Value = lease.json().await?;
    let renewal = json!({"holder": "bystander", "incarnation": "1", "leases": [
        {"kind": "bystander", "id": "1", "token": lease["token"]}]});
    let mut latency = Histogram::<u64>::new(3)?;
    let (began, mut ticks) = (start(), tokio::time::interval(EVERY));
    while began.elapsed() < Duration::from_secs(seconds) {
        ticks.tick().await;
        let sent = start();
        let answer = bench.post("/api/v1/leases/renew", &renewal).await?;
        let answer: Value = answer.json().await?;
        latency.record(u64::try_from(sent.elapsed().as_micros())?)?;
        ensure!(answer["results"][0]["renewed"] == true, "lost: {answer}");
    }
    Ok(latency)
}

/// What one idle holder's stream costs the server in memory.
async fn socket_bytes(server: &Child, address: SocketAddr, sockets: usize) -> Result<u64> {
    let server = Processes::one(server.pid());
    // What the first ones make the server allocate once is not theirs.
    let warm = open_sockets(address, "warm", sockets / 4).await?;
    let before = server.resident_bytes()?;
    let held = open_sockets(address, "held", sockets).await?;
    let after = server.resident_bytes()?;
    drop((warm, held));
    Ok(after.saturating_sub(before) / u64::try_from(sockets.max(1))?)
}

async fn open_sockets(address: SocketAddr, name: &str, sockets: usize) -> Result<Vec<TcpStream>> {
    let opening = (0..sockets).map(|number| async move {
        let mut socket = TcpStream::connect(address).await?;
        let request = format!(
            "GET /api/v1/holders/{name}-{number}/stream?incarnation=1 HTTP/1.1\r\nHost: {address}\r\n\
             Authorization: Bearer {TOKEN}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: leasehold.v1\r\n\r\n"
        );
        socket.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        // The head, and after it the server's first frame.
        while !answer.windows(4).any(|it| it == b"\r\n\r\n") || answer.ends_with(b"\r\n\r\n") {
            ensure!(socket.read_buf(&mut answer).await? > 0, "no stream");
        }
        ensure!(answer.starts_with(b"HTTP/1.1 101"), "no stream");
        Ok(socket)
    });
    let opened: Vec<Result<TcpStream>> = stream::iter(opening).buffer_unordered(16).collect().await;
    opened.into_iter().collect()
}
