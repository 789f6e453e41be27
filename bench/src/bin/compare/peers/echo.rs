//! The physical limits beside which everything is shown: a round trip over the loopback, the bare
//! HTTP and JSON stack, and a sync of the disk.

use std::{fs::File, io::Write as _, net::SocketAddr};

use anyhow::{Context as _, Result};
use axum::{
    Json, Router,
    extract::Path,
    routing::{delete, post},
};
use futures_util::future::BoxFuture;
use leasehold_api::{AcquireRequest, Lease, Success, Time, paths};
use leasehold_bench::{rounds::Caller, usage::Processes};
use leasehold_testkit::{Child, Program, port};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::{SOON, wire::Wire};

/// What an echo sends and expects.
const MESSAGE: [u8; 64] = [b'.'; 64];

/// What this program serves in a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Bytes come back.
    Echo,
    /// The server's HTTP stack and JSON shapes, and nothing behind them.
    Json,
}

/// A process of this program that serves.
pub struct Echo {
    child: Child,
    pub address: SocketAddr,
}

impl Echo {
    pub async fn start(kind: Kind) -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], port::free()));
        let kind = match kind {
            Kind::Echo => "echo",
            Kind::Json => "json",
        };
        let mut child = Program::new(std::env::current_exe()?)
            .args(["--serve", kind, "--listen", &address.to_string()])
            .spawn();
        child.wait_for_line("listening", SOON).await;
        Ok(Self { child, address })
    }

    pub fn processes(&self) -> Processes {
        Processes::one(self.child.pid())
    }

    pub async fn callers(&self, callers: usize) -> Result<Vec<Box<dyn Caller>>> {
        let mut all: Vec<Box<dyn Caller>> = Vec::new();
        for _ in 0..callers {
            all.push(Box::new(Echoed(Wire::open(self.address).await?)));
        }
        Ok(all)
    }
}

/// Two round trips, as an acquire and a release are.
struct Echoed(Wire);

impl Caller for Echoed {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            for _ in 0..2 {
                self.0.send(&MESSAGE).await?;
                while self.0.input().len() < MESSAGE.len() {
                    self.0.fill().await?;
                }
                self.0.advance(MESSAGE.len());
            }
            Ok(())
        })
    }
}

/// Two syncs of a page each, as a durable acquire and release need.
pub struct Synced(pub File);

impl Caller for Synced {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            for _ in 0..2 {
                self.0.write_all(&[1; 4096])?;
                self.0.sync_data()?;
            }
            Ok(())
        })
    }
}

/// Serves until it is ended.
pub fn serve(kind: Kind, address: SocketAddr) -> Result<()> {
    let mut runtime = match kind {
        Kind::Echo => tokio::runtime::Builder::new_current_thread(),
        Kind::Json => tokio::runtime::Builder::new_multi_thread(),
    };
    runtime.enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("listening on {address}");
        match kind {
            Kind::Echo => echo(listener).await,
            Kind::Json => json(listener).await,
        }
    })
}

async fn echo(listener: TcpListener) -> Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                if stream.write_all(&buffer[..read]).await.is_err() {
                    break;
                }
            }
        });
    }
}

async fn json(listener: TcpListener) -> Result<()> {
    let router = Router::new()
        .route(paths::ACQUIRE, post(acquire))
        .route(paths::RELEASE, delete(release));
    axum::serve(
        axum::serve::ListenerExt::tap_io(listener, |stream| {
            // As the real server does.
            let _ = stream.set_nodelay(true);
        }),
        router,
    )
    .await
    .context("serving")
}

async fn acquire(Json(request): Json<AcquireRequest>) -> Json<Lease> {
    let now = Time::from(lease::UnixMillis::new(1_800_000_000_000));
    Json(Lease {
        lease_id: "01980000-0000-7000-8000-000000000001".into(),
        kind: request.kind,
        id: request.id,
        camera_uuid: None,
        holder: request.holder,
        incarnation: request.incarnation,
        runner_id: None,
        shard_id: None,
        tenant_id: None,
        site_id: None,
        token: 1_800_000_000_000,
        acquired_at: now,
        expires_at: now,
        ttl_seconds: request.ttl_seconds,
        renewed_at: None,
        status: "active".into(),
        last_heartbeat: Some(now),
        processing_stats: serde_json::json!({}),
        config_version: None,
        zone_version: None,
        on_outage: None,
        release_on_death: false,
        labels: request.labels,
    })
}

async fn release(Path(_): Path<String>) -> Json<Success> {
    Json(Success { success: true })
}
