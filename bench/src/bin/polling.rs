//! A fleet of real processes that share many targets over one Redis: how long until everybody has its
//! share, and what the fleet costs once it stands still.
//!
//! It takes the binary `leasehold` beside its own.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Parser;
use comfy_table::Table;
use leasehold_testkit::{Binary, Child, Dir, Redis};
use redis::AsyncCommands as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::Instant,
};

/// How long Redis may take to answer this program.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A fleet that polls.
#[derive(Parser)]
struct Arguments {
    /// How many targets there are.
    #[arg(long, default_value_t = 10_000)]
    targets: usize,
    /// How many instances share them.
    #[arg(long, default_value_t = 10)]
    instances: usize,
    /// How long the fleet is watched once it is even, in seconds.
    #[arg(long, default_value_t = 30)]
    steady: u64,
    /// How long it may take to become even, in seconds.
    #[arg(long, default_value_t = 120)]
    patience: u64,
}

/// Answers every request with nothing.
async fn answer_everything() -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                while let Ok(1..) = stream.read(&mut request).await {
                    let answer = b"HTTP/1.1 204 No Content\r\n\r\n";
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(format!("http://{address}/{{id}}"))
}

/// The processor time that Redis has used, in ms.
async fn redis_cpu_ms(redis: &Redis) -> anyhow::Result<f64> {
    let info = redis.cli(&["INFO", "cpu"]).await;
    let of = |name: &str| -> anyhow::Result<f64> {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        Ok(line.context("no processor time")?.trim().parse::<f64>()? * 1_000.0)
    };
    Ok(of("used_cpu_user:")? + of("used_cpu_sys:")?)
}

/// How often a command was executed.
async fn calls(redis: &Redis, command: &str) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]).await;
    let name = format!("cmdstat_{command}:");
    let line = stats.lines().find(|line| line.starts_with(&name));
    let calls = line.and_then(|line| line.split("calls=").nth(1)?.split(',').next()?.parse().ok());
    calls.unwrap_or(0)
}

/// The processor time that the instances have used, in ms.
fn fleet_cpu_ms(fleet: &[Child]) -> anyhow::Result<f64> {
    fleet
        .iter()
        .map(|child| leasehold_bench::cpu_ms(child.pid()))
        .sum()
}

/// How many targets each owner has, most first.
async fn loads(
    redis: &mut redis::aio::MultiplexedConnection,
    targets: usize,
) -> anyhow::Result<Vec<usize>> {
    let keys: Vec<String> = (0..targets).map(|n| format!("poll:lease:t-{n}")).collect();
    let owners: Vec<Option<String>> = redis.mget(keys).await?;
    let mut loads = std::collections::BTreeMap::new();
    for owner in owners.into_iter().flatten() {
        *loads.entry(owner).or_insert(0) += 1;
    }
    let mut loads: Vec<usize> = loads.into_values().collect();
    loads.sort_unstable_by(|a, b| b.cmp(a));
    Ok(loads)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let (targets, instances) = (arguments.targets, arguments.instances);
    let redis = Redis::start().await;
    let client = redis::Client::open(redis.url())?;
    // Ten thousand keys at once may take a while on a busy machine.
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_LIMIT));
    let mut connection = client
        .get_multiplexed_async_connection_with_config(&patient)
        .await?;
    for batch in (0..targets).collect::<Vec<_>>().chunks(1_000) {
        let documents: Vec<(String, String)> = batch
            .iter()
            .map(|n| {
                (
                    format!("session:t-{n}"),
                    format!(r#"{{"id":"t-{n}","isPaused":false}}"#),
                )
            })
            .collect();
        let _: () = connection.mset(&documents).await?;
    }
    let dir = Dir::new("polling");
    let url = answer_everything().await?;
    let settings = format!(
        "log: {{level: warn}}\npoll:\n  store: '{}'\n  url: '{url}'\n  interval_seconds: 120\n  sinks: [{{http: {{url: '{url}'}}}}]\n",
        redis.url()
    );
    let file = dir.write("poll.yaml", &settings)?;
    let began = Instant::now();
    let program = Binary::leasehold().arg("poll").arg("--config").arg(&file);
    let fleet: Vec<Child> = (0..instances).map(|_| program.clone().spawn()).collect();
    let mut last = Vec::new();
    loop {
        ensure!(
            began.elapsed() < Duration::from_secs(arguments.patience),
            "not even after {:?}: {last:?}",
            began.elapsed()
        );
        last = loads(&mut connection, targets).await?;
        let even = last.len() == instances && last[0] - last[instances - 1] <= 1;
        if even && last.iter().sum::<usize>() == targets {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let even = began.elapsed();
    let start_redis = redis_cpu_ms(&redis).await?;
    let start_fleet = fleet_cpu_ms(&fleet)?;
    // What just moved settles first.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = (
        redis_cpu_ms(&redis).await?,
        fleet_cpu_ms(&fleet)?,
        calls(&redis, "scan").await,
    );
    let span = Duration::from_secs(arguments.steady);
    tokio::time::sleep(span).await;
    let per_cent = |ms: f64| ms / span.as_secs_f64() / 10.0;
    let steady_redis = per_cent(redis_cpu_ms(&redis).await? - before.0);
    let steady_fleet = per_cent(fleet_cpu_ms(&fleet)? - before.1);
    let scans = calls(&redis, "scan").await - before.2;
    let mut table = Table::new();
    table.load_style(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header([
        "targets",
        "instances",
        "even after",
        "Redis until then",
        "fleet until then",
        "Redis, steady",
        "fleet, steady",
        "SCANs per look",
    ]);
    let looks = instances as f64 * span.as_secs_f64() / 10.0;
    table.add_row([
        targets.to_string(),
        instances.to_string(),
        format!("{:.1} s", even.as_secs_f64()),
        format!("{:.1} s", start_redis / 1_000.0),
        format!("{:.1} s", start_fleet / 1_000.0),
        format!("{steady_redis:.1} % of a core"),
        format!("{steady_fleet:.1} % of a core"),
        format!("{:.0}", scans as f64 / looks),
    ]);
    println!("{table}");
    Ok(())
}
