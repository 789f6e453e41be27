//! What a runner's heartbeat costs the server, for sites of several sizes: it must not grow with the site.
//! A real server on an embedded store, with every camera leased by a runner.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use comfy_table::Table;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use leasehold_bench::cpu_ms;
use leasehold_testkit::{Binary, Child, Dir, port};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

/// What a heartbeat may cost, in milliseconds of the server's processors.
const AIM_MS: f64 = 2.0;
/// How many calls prepare a site at the same time.
const AT_ONCE: usize = 32;
const SOON: Duration = Duration::from_secs(60);

/// The server's processor time per heartbeat.
#[derive(Parser)]
struct Arguments {
    /// How many cameras the sites have.
    #[arg(long, value_delimiter = ',', default_values_t = [500, 2_000, 5_000])]
    cameras: Vec<usize>,
    /// How many runners share them.
    #[arg(long, default_value_t = 100)]
    runners: usize,
    /// How many heartbeats are measured.
    #[arg(long, default_value_t = 500)]
    heartbeats: usize,
}

struct Server {
    url: String,
    token: String,
    child: Child,
    http: reqwest::Client,
    _dir: Dir,
}

impl Server {
    async fn start() -> Result<Self> {
        let dir = Dir::new("bench-heartbeat");
        let address = SocketAddr::from(([127, 0, 0, 1], port::free()));
        let mut child = Binary::leasehold()
            .args(["serve", "--log", "warn", "--listen"])
            .arg(address.to_string())
            .arg("--data-dir")
            .arg(dir.join("data"))
            .spawn();
        child.wait_for_line("listening on", SOON).await;
        let token = std::fs::read_to_string(dir.join("data").join("admin.token"))?;
        Ok(Self {
            url: format!("http://{address}/api/v1"),
            token: token.trim().to_owned(),
            child,
            http: reqwest::Client::new(),
            _dir: dir,
        })
    }

    async fn call(&self, method: Method, path: &str, body: Value) -> Result<Value> {
        let request = self.http.request(method, format!("{}{path}", self.url));
        let request = request.bearer_auth(&self.token).timeout(SOON).json(&body);
        let response = request.send().await?;
        let status = response.status();
        let answer: Value = response.json().await?;
        ensure!(status.is_success(), "{path}: {status} {answer}");
        Ok(answer)
    }

    async fn each(&self, count: usize, call: impl AsyncFn(usize) -> Result<Value>) -> Result<()> {
        let calls = stream::iter(0..count).map(|n| call(n));
        calls
            .buffer_unordered(AT_ONCE)
            .try_for_each(|_| async { Ok(()) })
            .await
    }
}

/// A site with every camera leased.
async fn prepare(server: &Server, cameras: usize, runners: usize) -> Result<()> {
    server
        .each(cameras, async |n| {
            let body = json!({"camera_uuid": format!("cam-{n:05}"), "rtsp_url": "rtsp://camera.local/stream"});
            let path = "/tenants/t/sites/s/cameras/";
            server.call(Method::POST, path, body).await
        })
        .await?;
    server
        .each(runners, async |n| {
            let body = json!({"runner_id": format!("runner-{n}"), "tenant_id": "t", "site_id": "s",
                "capacity": cameras.div_ceil(runners) + 8, "deployment_group": "g", "deployment_version": "1",
                "host": "h", "port": 1, "ttl_seconds": 3600});
            server.call(Method::POST, "/runners/register/", body).await
        })
        .await?;
    server
        .each(cameras, async |n| {
            let body = json!({"camera_uuid": format!("cam-{n:05}"), "ttl_seconds": 3600,
                "runner_id": format!("runner-{}", n % runners)});
            server.call(Method::POST, "/leases/acquire/", body).await
        })
        .await
}

async fn measure(cameras: usize, arguments: &Arguments) -> Result<[String; 6]> {
    let server = Server::start().await?;
    let runners = arguments.runners;
    prepare(&server, cameras, runners).await?;
    let beat = async |n: usize| {
        let path = format!("/runners/runner-{}/heartbeat/", n % runners);
        let body = json!({"current_load": cameras / runners, "metrics": {"fps": 25}});
        server.call(Method::PUT, &path, body).await
    };
    let began = Instant::now();
    let first = beat(0).await?;
    let first_ms = began.elapsed().as_secs_f64() * 1e3;
    let leases = first["leases"].as_array().context("leases")?.len();
    for n in 0..runners {
        beat(n).await?;
    }
    let pid = server.child.pid();
    let (before, began) = (cpu_ms(pid)?, Instant::now());
    for n in 0..arguments.heartbeats {
        beat(n).await?;
    }
    let count = arguments.heartbeats as f64;
    let cpu = (cpu_ms(pid)? - before) / count;
    let took = began.elapsed().as_secs_f64() * 1e3 / count;
    let verdict = if cpu <= AIM_MS { "met" } else { "MISSED" };
    Ok([
        cameras.to_string(),
        leases.to_string(),
        format!("{cpu:.2} ms"),
        format!("{took:.2} ms"),
        format!("{first_ms:.0} ms"),
        format!("at most {AIM_MS} ms: {verdict}"),
    ])
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut table = Table::new();
    table.set_header([
        "cameras",
        "leases of the runner",
        "server CPU per heartbeat",
        "time of a heartbeat",
        "the first one, which reads the site",
        "aim",
    ]);
    for &cameras in &arguments.cameras {
        table.add_row(measure(cameras, &arguments).await?);
    }
    println!(
        "heartbeats of {} runners, embedded store",
        arguments.runners
    );
    println!("{table}");
    Ok(())
}
