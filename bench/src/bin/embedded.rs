//! The embedded store: what a lease costs, how punctual its end is, and what a sync is worth.

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use comfy_table::Table;
use futures_util::StreamExt;
use hdrhistogram::Histogram;
use lease::{
    Acquire, Acquired, Authority, Clock, Command, EventKind, Holder, Key, LeaseRef, Notice,
    Outcome, Ttl, UnixMillis, Want, Watch,
    engine::{self, Decision, Effects, Engine},
};
// Its allocator.
use leasehold_bench as _;
use leasehold_clock::System;
use leasehold_store::embedded::{Embedded, Options};

/// Measures the engine and the embedded store on this machine.
#[derive(Parser)]
struct Arguments {
    /// How many live leases the store holds while it is measured.
    #[arg(long, default_value_t = 1_000_000)]
    leases: usize,
    /// How many leases expire beside them, spread over five seconds.
    #[arg(long, default_value_t = 10_000)]
    expiring: usize,
    /// How many clients acquire and release durably.
    #[arg(long, default_value_t = 256)]
    clients: usize,
    /// How long each rate is measured, in seconds.
    #[arg(long, default_value_t = 9)]
    seconds: u64,
    /// Where the store is made; a folder of the system's temporary one unless given.
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// How long the disk and the store have their turns.
const ROUND: Duration = Duration::from_secs(1);

/// One line of the result.
struct Figure {
    what: &'static str,
    measured: String,
    aim: &'static str,
    met: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let dir = arguments.dir.clone().unwrap_or_else(|| {
        std::env::temp_dir().join(format!("leasehold-bench-{}", std::process::id()))
    });
    std::fs::create_dir_all(&dir)?;
    let measured = measure(&arguments, &dir).await;
    std::fs::remove_dir_all(&dir).context("removing the bench's folder")?;
    let mut table = Table::new();
    table.set_header(["", "measured", "aim", ""]);
    for figure in measured? {
        let verdict = if figure.met { "met" } else { "MISSED" };
        table.add_row([figure.what, &figure.measured, figure.aim, verdict]);
    }
    println!("{table}");
    Ok(())
}

async fn measure(arguments: &Arguments, dir: &Path) -> Result<Vec<Figure>> {
    let mut figures = vec![engine_pairs(arguments.seconds)?];
    figures.extend(durable(arguments, dir).await?);
    figures.extend(many_leases(arguments, &dir.join("many")).await?);
    Ok(figures)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures the machine's own time"
)]
fn start() -> Instant {
    Instant::now()
}

/// The pure engine on one core.
fn engine_pairs(seconds: u64) -> Result<Figure> {
    let mut engine = Engine::new(engine::Options::default());
    let mut effects = Effects::default();
    let now = System.unix();
    let ttl = Ttl::from_secs(30)?;
    let holder = Holder::new("bench", "1")?;
    let keys: Vec<Key> = (0..1024)
        .map(|n| Key::new("job", &n.to_string()))
        .collect::<Result<_, _>>()?;
    let (started, mut pairs) = (start(), 0_u64);
    while started.elapsed() < Duration::from_secs(seconds) {
        for key in &keys {
            let request = Acquire::one(key.clone(), holder.clone(), ttl);
            let outcome = engine.apply(now, Command::Acquire(request), &mut effects)?;
            let Decision::Now(Outcome::Acquired(Acquired::Granted { leases, .. })) = outcome else {
                bail!("not granted: {outcome:?}");
            };
            engine.apply(
                now,
                Command::Release(LeaseRef::from(&leases[0])),
                &mut effects,
            )?;
            effects.clear();
        }
        pairs += keys.len() as u64;
    }
    let rate = pairs as f64 / started.elapsed().as_secs_f64();
    Ok(Figure {
        what: "engine acquire+release on one core",
        measured: format!("{rate:.0} pairs/s"),
        aim: ">= 2,000,000 pairs/s",
        met: rate >= 2_000_000.0,
    })
}

/// Durable acquires and releases beside the disk's own syncs: in turns of a second, since a disk's rate
/// is not the same a moment later.
async fn durable(arguments: &Arguments, dir: &Path) -> Result<Vec<Figure>> {
    let store = Embedded::open(Options::at(dir.join("pairs")), Arc::new(System)).await?;
    let mut log = std::fs::File::create(dir.join("syncs"))?;
    let (mut syncs, mut pairs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..arguments.seconds {
        let sync_rate = sync_rate(&mut log)?;
        let pair_rate = pair_rate(&store, arguments.clients).await?;
        syncs.push(sync_rate);
        pairs.push(pair_rate);
        ratios.push(pair_rate / sync_rate);
    }
    store.close().await?;
    let (syncs, pairs, ratio) = (median(syncs), median(pairs), median(ratios));
    Ok(vec![
        Figure {
            what: "the disk's own syncs, one after the other",
            measured: format!("{syncs:.0}/s"),
            aim: "",
            met: true,
        },
        Figure {
            what: "durable acquire+release, all clients",
            measured: format!("{pairs:.0} pairs/s = {ratio:.1} x syncs"),
            aim: ">= 20 x syncs",
            met: ratio >= 20.0,
        },
    ])
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

/// How often the disk makes a page durable, written one after the other as a log is.
fn sync_rate(log: &mut std::fs::File) -> Result<f64> {
    let page = [1_u8; 4096];
    let (started, mut syncs) = (start(), 0_u32);
    while started.elapsed() < ROUND {
        log.write_all(&page)?;
        log.sync_data()?;
        syncs += 1;
    }
    Ok(f64::from(syncs) / started.elapsed().as_secs_f64())
}

async fn pair_rate(store: &Embedded, count: usize) -> Result<f64> {
    let ttl = Ttl::from_secs(30)?;
    let started = start();
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..count {
        let store = store.clone();
        clients.spawn(async move {
            let key = Key::new("job", &client.to_string())?;
            let holder = Holder::new(&format!("client-{client}"), "1")?;
            let mut pairs = 0_u64;
            while started.elapsed() < ROUND {
                let request = Acquire::one(key.clone(), holder.clone(), ttl);
                let Acquired::Granted { leases, .. } = store.acquire(request).await? else {
                    bail!("refused");
                };
                store.release(LeaseRef::from(&leases[0])).await?;
                pairs += 1;
            }
            Ok(pairs)
        });
    }
    let mut pairs = 0;
    while let Some(client) = clients.join_next().await {
        pairs += client??;
    }
    Ok(pairs as f64 / started.elapsed().as_secs_f64())
}

/// A million live leases: memory, punctuality, stop and start.
async fn many_leases(arguments: &Arguments, dir: &Path) -> Result<Vec<Figure>> {
    let before = resident_bytes()?;
    let store = Embedded::open(Options::at(dir), Arc::new(System)).await?;
    fill(&store, arguments.leases).await?;
    let crashed = after_a_crash(dir).await?;
    let lateness = lateness(&store, arguments.expiring).await?;
    let stop = start();
    store.close().await?;
    let stop = stop.elapsed();
    drop(store);
    let begin = start();
    let store = Embedded::open(Options::at(dir), Arc::new(System)).await?;
    let begin = begin.elapsed();
    // After a restart nothing is left of the way the leases came in.
    let bytes = resident_bytes()?.saturating_sub(before) / arguments.leases as u64;
    store.close().await?;
    let p99 = lateness.value_at_quantile(0.99);
    Ok(vec![
        Figure {
            what: "memory per live lease, everything included",
            measured: format!("{bytes} bytes"),
            aim: "<= 300 bytes",
            met: bytes <= 300,
        },
        Figure {
            what: "start-up",
            measured: format!(
                "{:.2} s (orderly stop {:.2} s)",
                begin.as_secs_f64(),
                stop.as_secs_f64()
            ),
            aim: "<= 5 s",
            met: begin <= Duration::from_secs(5),
        },
        Figure {
            what: "start-up after a crash",
            measured: format!("{:.2} s", crashed.as_secs_f64()),
            aim: "<= 10 s",
            met: crashed <= Duration::from_secs(10),
        },
        Figure {
            what: "expiry lateness beside them, p99",
            measured: format!(
                "{p99} ms (p50 {} ms, max {} ms)",
                lateness.value_at_quantile(0.5),
                lateness.max()
            ),
            aim: "<= 50 ms",
            met: p99 <= 50,
        },
    ])
}

/// How long a start takes that finds the folder as a crash leaves it now.
async fn after_a_crash(dir: &Path) -> Result<Duration> {
    let image = dir.with_extension("crashed");
    std::fs::create_dir_all(&image)?;
    for file in std::fs::read_dir(dir)? {
        let file = file?;
        std::fs::copy(file.path(), image.join(file.file_name()))?;
    }
    let begin = start();
    let store = Embedded::open(Options::at(&image), Arc::new(System)).await?;
    let begin = begin.elapsed();
    store.close().await?;
    std::fs::remove_dir_all(&image)?;
    Ok(begin)
}

async fn fill(store: &Embedded, leases: usize) -> Result<()> {
    let ttl = Ttl::from_millis(Ttl::MAX_MILLIS)?;
    let keys: Vec<usize> = (0..leases).collect();
    let mut chunks = Vec::new();
    for chunk in keys.chunks(Acquire::MAX_KEYS) {
        let keys = chunk
            .iter()
            .map(|n| Key::new("live", &format!("lease-{n:09}")))
            .collect::<Result<Vec<_>, _>>()?;
        let holder = Holder::new(&format!("holder-{}", chunk[0] % 1000), "1")?;
        chunks.push(Acquire::of(Want::All(keys), holder, ttl));
    }
    let mut answers = futures_util::stream::iter(chunks)
        .map(|request| store.acquire(request))
        .buffer_unordered(16);
    while let Some(answer) = answers.next().await {
        let Acquired::Granted { .. } = answer? else {
            bail!("refused");
        };
    }
    Ok(())
}

/// How long after its expiry each lease's end is told, durably.
async fn lateness(store: &Embedded, expiring: usize) -> Result<Histogram<u64>> {
    let watch = store.watch(lease::Watching::everything()).await?;
    // Read while the leases are taken: the first may expire before the last is granted.
    let reported = tokio::spawn(expiries(store.clone(), watch, expiring));
    let spread = Duration::from_secs(5).as_millis() as u64;
    for n in 0..expiring {
        let key = Key::new("short", &n.to_string())?;
        let ttl = Ttl::from_millis(3_000 + n as u64 * spread / expiring as u64)?;
        store
            .acquire(Acquire::one(key, Holder::new("short", "1")?, ttl))
            .await?;
    }
    reported.await?
}

/// Notes for each expiry how late it was told.
async fn expiries(store: Embedded, mut watch: Watch, expiring: usize) -> Result<Histogram<u64>> {
    let mut lateness = Histogram::new(3)?;
    while lateness.len() < expiring as u64 {
        let notice = tokio::time::timeout(Duration::from_secs(60), watch.next()).await?;
        match notice.context("the stream ended")?? {
            Notice::Event(event) if event.kind == EventKind::LeaseExpired => {
                let due = event
                    .lease
                    .as_ref()
                    .map_or(UnixMillis::default(), |lease| lease.expires_at);
                lateness.record(store.now().await?.since(due))?;
            }
            Notice::Event(_) | Notice::Progress(_) => {}
            Notice::Snapshot(_) => bail!("the watcher fell behind"),
        }
    }
    Ok(lateness)
}

/// The memory this process has in use.
fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS in /proc/self/status")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kilobytes * 1024)
}
