//! Sessions: what many live ones cost a server that they send heartbeats to, and how late it is to end
//! those that fell silent. The real binary is driven over HTTP with connections that stay open.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use comfy_table::Table;
use hdrhistogram::Histogram;
use lease::{Clock, UnixMillis, session::State};
use leasehold_api::{
    EventList,
    sessions::{IntentAnswer, SessionHeartbeat},
};
use leasehold_clock::System;
use leasehold_testkit::{Child, Dir, Program, port};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

/// Measures sessions on this machine.
#[derive(Parser)]
struct Arguments {
    /// How many sessions are alive.
    #[arg(long, default_value_t = 10_000)]
    sessions: usize,
    /// How often each sends a heartbeat, in seconds.
    #[arg(long, default_value_t = 5)]
    interval: u64,
    /// How many of them fall silent while it is measured.
    #[arg(long, default_value_t = 1_000)]
    silent: usize,
    /// How long it is measured, in seconds.
    #[arg(long, default_value_t = 45)]
    seconds: u64,
    /// How many connections the heartbeats share.
    #[arg(long, default_value_t = 64)]
    connections: usize,
}

const TOKEN: &str = "a-token-for-the-length-of-this-measurement";
/// Long enough to start them all before the first heartbeat, short enough to see them expire.
const INTERVALS_PER_TTL: u64 = 6;
const SOON: Duration = Duration::from_secs(30);

struct Figure {
    what: &'static str,
    measured: String,
    aim: &'static str,
    met: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut table = Table::new();
    table.set_header(["", "measured", "aim", ""]);
    for figure in measure(&arguments).await? {
        let verdict = if figure.met { "met" } else { "MISSED" };
        table.add_row([figure.what, &figure.measured, figure.aim, verdict]);
    }
    println!("{table}");
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures the machine's own time"
)]
fn start() -> Instant {
    Instant::now()
}

/// The server beside this program, in a folder of its own.
async fn serve(arguments: &Arguments, dir: &Dir) -> Result<(Child, SocketAddr)> {
    let binary = std::env::current_exe()?.with_file_name("leasehold");
    ensure!(
        binary.is_file(),
        "build the server first: cargo build --release -p leasehold"
    );
    let address = SocketAddr::from(([127, 0, 0, 1], port::free()));
    let ttl = arguments.interval * INTERVALS_PER_TTL;
    let tokens = format!(r#"[{{"token":"{TOKEN}","scopes":["v3:admin","leases:read"]}}]"#);
    let mut child = Program::new(binary)
        .args(["serve", "--log", "warn", "--listen", &address.to_string()])
        .arg("--data-dir")
        .arg(dir.join("data"))
        .env("LEASEHOLD_TOKENS", tokens)
        .env("LEASEHOLD_SESSIONS_LEASE_TTL", format!("{ttl}s"))
        .env(
            "LEASEHOLD_SESSIONS_HEARTBEAT_INTERVAL",
            format!("{}s", arguments.interval),
        )
        // Workers have machines of their own; ending what nobody claimed is then this server's work.
        .env("LEASEHOLD_SESSIONS_WORKER", "false")
        .spawn();
    child.wait_for_line("listening on", SOON).await;
    Ok((child, address))
}

async fn measure(arguments: &Arguments) -> Result<Vec<Figure>> {
    let ttl = arguments.interval * INTERVALS_PER_TTL;
    ensure!(
        arguments.seconds > ttl + arguments.seconds / 4,
        "--seconds: too short to see sessions expire after {ttl} s"
    );
    let dir = Dir::new("bench-sessions");
    let (child, address) = serve(arguments, &dir).await?;
    let began = start();
    // Each connection starts its sessions and keeps them: what a proxy in front of clients does.
    let share = arguments.sessions / arguments.connections;
    let silent = arguments.silent / arguments.connections;
    let ready = Arc::new(tokio::sync::Barrier::new(arguments.connections + 1));
    let mut drivers = JoinSet::new();
    for number in 0..arguments.connections {
        let driver = Driver {
            connection: Connection::open(address).await?,
            number,
            ready: ready.clone(),
            interval: Duration::from_secs(arguments.interval),
            seconds: Duration::from_secs(arguments.seconds),
            share,
            silent,
        };
        drivers.spawn(driver.run());
    }
    all_ready(&ready, &mut drivers).await?;
    let filled = began.elapsed();
    // One round of heartbeats in peace, then the measurement.
    all_ready(&ready, &mut drivers).await?;
    let (cpu, from) = (cpu_seconds(child.pid())?, start());
    tokio::time::sleep(Duration::from_secs(arguments.seconds)).await;
    let cores = (cpu_seconds(child.pid())? - cpu) / from.elapsed().as_secs_f64();
    let mut latency = Histogram::<u64>::new(3)?;
    let mut silent = HashMap::new();
    while let Some(driver) = drivers.join_next().await {
        let driven = driver??;
        latency.add(driven.latency)?;
        silent.extend(driven.silent);
    }
    let heartbeats = latency.len();
    let late = lateness(address, &silent).await?;
    let (p50, p99) = (late.value_at_quantile(0.5), late.value_at_quantile(0.99));
    let live = share * arguments.connections;
    let per_second = heartbeats as f64 / arguments.seconds as f64;
    let millis = |quantile| latency.value_at_quantile(quantile) as f64 / 1000.0;
    Ok(vec![
        Figure {
            what: "live sessions, and heartbeats",
            measured: format!("{live}, {per_second:.0}/s"),
            aim: "10,000, every 5 s",
            met: live >= 9_900 && per_second >= 0.9 * live as f64 / arguments.interval as f64,
        },
        Figure {
            what: "the server's processor time",
            measured: format!("{cores:.2} cores"),
            aim: "< 0.5 cores",
            met: cores < 0.5,
        },
        Figure {
            what: "expiry: from its moment to `stopped`, p99",
            measured: format!("{p99} ms (p50 {p50} ms, max {} ms)", late.max()),
            aim: "<= 250 ms",
            met: p99 <= 250 && late.len() == silent.len() as u64,
        },
        Figure {
            what: "a heartbeat, p99",
            measured: format!("{:.1} ms (p50 {:.1} ms)", millis(0.99), millis(0.5)),
            aim: "",
            met: true,
        },
        Figure {
            what: "accepting them all",
            measured: format!("{:.0}/s", live as f64 / filled.as_secs_f64()),
            aim: "",
            met: true,
        },
    ])
}

/// Waits for every driver; one that failed is told of instead.
async fn all_ready(
    ready: &tokio::sync::Barrier,
    drivers: &mut JoinSet<Result<Driven>>,
) -> Result<()> {
    tokio::select! {
        _ = ready.wait() => Ok(()),
        Some(ended) = drivers.join_next() => {
            ended??;
            bail!("a driver ended too early")
        }
    }
}

/// Some of the sessions, on one connection.
struct Driver {
    connection: Connection,
    number: usize,
    ready: Arc<tokio::sync::Barrier>,
    interval: Duration,
    seconds: Duration,
    share: usize,
    silent: usize,
}

/// What a driver saw.
struct Driven {
    latency: Histogram<u64>,
    /// Those that fell silent, and when they were to end.
    silent: HashMap<String, UnixMillis>,
}

impl Driver {
    async fn run(mut self) -> Result<Driven> {
        let mut sessions = Vec::with_capacity(self.share);
        for number in 0..self.share {
            let body = format!(
                r#"{{"service_ref":"{}:{number}","profile":"virtual"}}"#,
                self.number
            );
            let answer = self.connection.post("/api/v3/intents", &body).await?;
            let answer: IntentAnswer = serde_json::from_slice(&answer)?;
            sessions.push(answer.session_id);
        }
        self.ready.wait().await;
        // Spread evenly over the interval, each connection at its own offset.
        let step = self.interval / u32::try_from(self.share.max(1))?;
        let mut ticks = tokio::time::interval(step);
        for id in &sessions {
            ticks.tick().await;
            self.beat(id).await?;
        }
        self.ready.wait().await;
        let began = start();
        let mut driven = Driven {
            latency: Histogram::new(3)?,
            silent: HashMap::new(),
        };
        // Those that fall silent do so one after the other in the first quarter, so that the last of
        // them ends while the others still send.
        let quiet_every = self.seconds / 4 / u32::try_from(self.silent.max(1))?;
        let mut turn = 0;
        while began.elapsed() < self.seconds {
            ticks.tick().await;
            let quiet = driven.silent.len() < self.silent
                && began.elapsed() >= quiet_every * u32::try_from(driven.silent.len())?;
            let place = turn % sessions.len();
            let sent = start();
            let expires_at = self.beat(&sessions[place]).await?;
            let took = u64::try_from(sent.elapsed().as_micros())?;
            driven.latency.record(took)?;
            if quiet {
                // Its last heartbeat.
                driven
                    .silent
                    .insert(sessions.swap_remove(place), expires_at);
            }
            turn += 1;
        }
        Ok(driven)
    }

    async fn beat(&mut self, id: &str) -> Result<UnixMillis> {
        let path = format!("/api/v3/sessions/{id}/heartbeat");
        let answer = self.connection.post(&path, "").await?;
        let answer: SessionHeartbeat = serde_json::from_slice(&answer)?;
        Ok(answer.lease_expires_at.0)
    }
}

/// How long after its moment each silent session was `stopped`, as the history has it.
async fn lateness(
    address: SocketAddr,
    silent: &HashMap<String, UnixMillis>,
) -> Result<Histogram<u64>> {
    let last = silent.values().max().copied().unwrap_or_default();
    let left = last.since(System.unix()) + 2_000;
    tokio::time::sleep(Duration::from_millis(left)).await;
    let mut connection = Connection::open(address).await?;
    let mut late = Histogram::new(3)?;
    let mut after = 0;
    loop {
        let path = format!("/api/v1/events/?kind=session&type=record_put&limit=1000&after={after}");
        let page: EventList<'_> = serde_json::from_slice(&connection.get(&path).await?)?;
        for event in &page.events {
            let state = event
                .cause
                .as_ref()
                .and_then(|cause| cause.state.as_deref());
            if state == Some(State::Stopped.as_str())
                && let Some(due) = silent.get(&*event.id)
            {
                late.record(event.timestamp.0.since(*due))?;
            }
        }
        after = page.next_after;
        if !page.more {
            return Ok(late);
        }
    }
}

/// One connection, one request after the other.
struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            address,
            buffer: Vec::with_capacity(4096),
        })
    }

    async fn post(&mut self, path: &str, body: &str) -> Result<Vec<u8>> {
        self.send("POST", path, body).await
    }

    async fn get(&mut self, path: &str) -> Result<Vec<u8>> {
        self.send("GET", path, "").await
    }

    async fn send(&mut self, method: &str, path: &str, body: &str) -> Result<Vec<u8>> {
        let kind = if body.is_empty() {
            ""
        } else {
            "content-type: application/json\r\n"
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {TOKEN}\r\n{kind}content-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await?;
        self.buffer.clear();
        let head = loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            self.fill().await?;
        };
        let text = std::str::from_utf8(&self.buffer[..head])?;
        let status = text.split(' ').nth(1).unwrap_or_default().to_owned();
        let length: usize = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .context("an answer without its length")?
            .1
            .trim()
            .parse()?;
        while self.buffer.len() < head + length {
            self.fill().await?;
        }
        let answer = self.buffer[head..head + length].to_vec();
        if !status.starts_with('2') {
            bail!("{path}: {status} {}", String::from_utf8_lossy(&answer));
        }
        Ok(answer)
    }

    async fn fill(&mut self) -> Result<()> {
        let read = tokio::time::timeout(SOON, self.stream.read_buf(&mut self.buffer)).await??;
        ensure!(read > 0, "the server closed a connection");
        Ok(())
    }
}

/// The processor time of a process so far.
fn cpu_seconds(pid: u32) -> Result<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, after_name) = stat.rsplit_once(") ").context("an odd /proc/PID/stat")?;
    let fields: Vec<&str> = after_name.split(' ').collect();
    // User and system time are fields 14 and 15, and the name was the second.
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / TICKS_PER_SECOND)
}
