//! Floods: what a bystander's renewals cost while others read everything there is, again and again. The
//! real binary is driven over HTTP.

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
use hdrhistogram::Histogram;
use leasehold_testkit::{Child, Dir, Program, port};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Measures renewals under floods on this machine.
#[derive(Parser)]
struct Arguments {
    /// How many leases are live.
    #[arg(long, default_value_t = 100_000)]
    leases: usize,
    /// How many read everything at the same time.
    #[arg(long, default_value_t = 50)]
    readers: usize,
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
/// How often the bystander renews.
const EVERY: Duration = Duration::from_millis(5);
/// How many keys one request takes.
const KEYS: usize = 100;

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
}

impl Flood {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Nothing, "nothing else"),
        (Self::Listings, "full listings, page by page"),
        (Self::Snapshots, "streams that begin with a snapshot"),
        (
            Self::ForeignSnapshots,
            "the same, by one who may see nothing of it",
        ),
    ];
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let dir = Dir::new("bench-floods");
    let (child, address) = serve(&arguments, &dir).await?;
    let bench = Bench {
        http: Client::builder().pool_max_idle_per_host(256).build()?,
        url: format!("http://{address}"),
    };
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
    println!("{} leases, {} readers", arguments.leases, arguments.readers);
    println!("{table}");
    drop(child);
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
        if !matches!(flood, Flood::Nothing) {
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
        let body = json!({"kind": "bystander", "id": "1", "holder": "bystander",
            "incarnation": "1", "ttl_seconds": 30});
        let lease: Value = self
            .post("/api/v1/leases/acquire", &body)
            .await?
            .json()
            .await?;
        let renewal = json!({"holder": "bystander", "incarnation": "1", "leases": [
            {"kind": "bystander", "id": "1", "token": lease["token"]}]});
        let mut latency = Histogram::<u64>::new(3)?;
        let (began, mut ticks) = (start(), tokio::time::interval(EVERY));
        while began.elapsed() < Duration::from_secs(arguments.seconds) {
            ticks.tick().await;
            let sent = start();
            let answer = self.post("/api/v1/leases/renew", &renewal).await?;
            let answer: Value = answer.json().await?;
            latency.record(u64::try_from(sent.elapsed().as_micros())?)?;
            ensure!(answer["results"][0]["renewed"] == true, "lost: {answer}");
        }
        over.store(true, Ordering::Relaxed);
        readers.abort_all();
        while readers.join_next().await.is_some() {}
        Ok((latency, reads.load(Ordering::Relaxed)))
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
                let page: Value = response.error_for_status()?.json().await?;
                let Some(cursor) = page["next_cursor"].as_str() else {
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
