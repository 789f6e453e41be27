//! What a holder over HTTP costs a server process in bytes, beside fleets of different sizes: with a
//! watch of its own leases, as a keeper has it, and with a watch of everything, as it had before.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::Parser;
use comfy_table::Table;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use lease::{Authority as _, Key, Ttl, Watching};
use leasehold_client::{Client, Guard, Keeper, Options, Remote, keeper, new_holder};
use leasehold_clock::System;
use leasehold_testkit::{Binary, Child, Dir, port};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// How many holders begin at a time.
const STARTS_AT_ONCE: usize = 8;
/// How long a server may take to start.
const SOON: Duration = Duration::from_secs(20);

/// Bytes from the server per holder and second.
#[derive(Parser)]
struct Arguments {
    /// How many holders, once for each.
    #[arg(long, value_delimiter = ',', default_value = "20,200")]
    holders: Vec<usize>,
    /// The ttl of each holder's lease, in ms.
    #[arg(long, default_value_t = 1_000)]
    ttl_ms: u64,
    /// How long each measurement takes.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut table = Table::new();
    table.set_header([
        "holders",
        "watch",
        "from the server kB/s",
        "per holder B/s",
        "leases kept",
    ]);
    for &holders in &arguments.holders {
        for everything in [true, false] {
            let (bytes, kept) = measure(&arguments, holders, everything).await?;
            let per_second = bytes / arguments.seconds.max(1);
            table.add_row([
                holders.to_string(),
                if everything { "everything" } else { "its own" }.to_owned(),
                format!("{}.{}", per_second / 1000, per_second / 100 % 10),
                (per_second / holders as u64).to_string(),
                kept.to_string(),
            ]);
        }
    }
    println!("{table}");
    Ok(())
}

/// A server process on an empty store.
struct Server {
    address: SocketAddr,
    token: String,
    _child: Child,
    _dir: Dir,
}

impl Server {
    async fn start() -> Result<Self> {
        let dir = Dir::new("bench-fanout");
        let address = SocketAddr::from(([127, 0, 0, 1], port::free()));
        let mut child = Binary::leasehold()
            .args(["serve", "--log", "warn", "--store", "memory:", "--listen"])
            .arg(address.to_string())
            .arg("--data-dir")
            .arg(dir.join("data"))
            .env("LEASEHOLD_SESSIONS_WORKER", "false")
            .spawn();
        child.wait_for_line("listening on", SOON).await;
        let token = std::fs::read_to_string(dir.join("data").join("admin.token"))?;
        Ok(Self {
            address,
            token: token.trim().to_owned(),
            _child: child,
            _dir: dir,
        })
    }
}

/// Bytes from the server while every holder renews.
async fn measure(arguments: &Arguments, holders: usize, everything: bool) -> Result<(u64, usize)> {
    let server = Server::start().await?;
    let counted = Arc::new(AtomicU64::new(0));
    let proxy = count(server.address, counted.clone()).await?;
    let holding = (0..holders).map(|number| {
        let url = format!("http://{proxy}");
        let options = Options::new(&url).token(&server.token);
        hold(options, number, arguments.ttl_ms, everything)
    });
    let holding: Vec<_> = stream::iter(holding)
        .buffer_unordered(STARTS_AT_ONCE)
        .try_collect()
        .await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = counted.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(arguments.seconds)).await;
    let bytes = counted.load(Ordering::Relaxed) - before;
    let kept = holding.iter().filter(|(_, guard)| guard.is_owned()).count();
    Ok((bytes, kept))
}

async fn hold(
    options: Options,
    number: usize,
    ttl_ms: u64,
    everything: bool,
) -> Result<(Keeper, Guard)> {
    let remote = Arc::new(Remote::connect(Client::new(options)?).await?);
    if everything {
        let mut watch = remote.watch(Watching::everything()).await?;
        tokio::spawn(async move { while watch.next().await.is_some() {} });
    }
    let settings = keeper::Options {
        watch: !everything,
        stream: false,
        call_limit_ms: 5_000,
        ..keeper::Options::default()
    };
    let holder = new_holder(&format!("holder-{number}"))?;
    let keeper = Keeper::start(remote, holder, Arc::new(System), settings);
    let key = Key::new("job", &number.to_string())?;
    let guard = keeper
        .acquire_one(key, Ttl::from_millis(ttl_ms)?)
        .await
        .context("a key of its own")?;
    Ok((keeper, guard))
}

/// A proxy that counts what comes from the server.
async fn count(server: SocketAddr, counted: Arc<AtomicU64>) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let counted = counted.clone();
            tokio::spawn(async move {
                let Ok(upstream) = TcpStream::connect(server).await else {
                    return;
                };
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = upstream.into_split();
                let up = async { tokio::io::copy(&mut from_client, &mut to_server).await };
                let down = async {
                    let mut buffer = vec![0; 16 * 1024];
                    while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
                        counted.fetch_add(length as u64, Ordering::Relaxed);
                        if to_client.write_all(&buffer[..length]).await.is_err() {
                            return;
                        }
                    }
                };
                tokio::select! {
                    _ = up => {}
                    () = down => {}
                }
            });
        }
    });
    Ok(address)
}
