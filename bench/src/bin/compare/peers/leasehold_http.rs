//! Leasehold over plain HTTP: the real binary, and callers with a kept connection each.

use std::{
    net::SocketAddr,
    ops::Range,
    sync::{Arc, atomic::AtomicU64},
};

use anyhow::{Context as _, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, future::BoxFuture, stream};
use lease::{Clock as _, UnixMillis};
use leasehold_api::paths;
use leasehold_bench::{
    rounds::{Caller, Callers},
    usage::Processes,
};
use leasehold_clock::System;
use leasehold_testkit::{Child, Dir, Program, port};

use super::{HELD_SECONDS, Keys, SOON, http};

/// What the callers show the server.
pub const TOKEN: &str = "a-token-for-the-length-of-this-measurement";
/// How many keys one acquire takes when many are wanted.
const BATCH: usize = 200;

/// Where the server keeps its state.
#[derive(Clone, Debug)]
pub enum Store {
    Durable,
    Memory,
    At(String),
}

/// A server.
pub struct Leasehold {
    child: Child,
    program: Program,
    pub address: SocketAddr,
    _dir: Dir,
}

impl Leasehold {
    pub async fn start(store: Store) -> Result<Self> {
        let binary = std::env::current_exe()?.with_file_name("leasehold");
        ensure!(
            binary.is_file(),
            "build the server first: cargo build --release -p leasehold"
        );
        let dir = Dir::new("bench-leasehold");
        let address = SocketAddr::from(([127, 0, 0, 1], port::free()));
        let mut program = Program::new(binary)
            .args(["serve", "--log", "warn", "--listen", &address.to_string()])
            .arg("--data-dir")
            .arg(dir.join("data"))
            .env(
                "LEASEHOLD_TOKENS",
                format!(r#"[{{"token":"{TOKEN}","scopes":["leases:admin"]}}]"#),
            )
            .env("LEASEHOLD_SESSIONS_WORKER", "false");
        match store {
            Store::Durable => {}
            Store::Memory => program = program.args(["--store", "memory:"]),
            Store::At(url) => program = program.args(["--store", &url]),
        }
        Ok(Self {
            child: launch(&program).await,
            program,
            address,
            _dir: dir,
        })
    }

    pub fn processes(&self) -> Processes {
        Processes::one(self.child.pid())
    }

    /// Stops it gracefully and starts it again, with what it has on disk.
    pub async fn restart(&mut self) {
        self.child.sigterm();
        self.child.wait(SOON).await;
        self.child = launch(&self.program).await;
    }

    /// Holders that acquire and release.
    pub async fn cycles(&self, callers: usize) -> Result<Callers> {
        cycles(self.address, callers).await
    }

    /// Takes leases: each of `holders` gets its share.
    pub async fn fill(&self, kind: &str, leases: usize, holders: usize) -> Result<()> {
        fill(self.address, kind, leases, holders).await
    }

    /// Holders that renew everything they have: `lanes` callers who speak for the holders in turn.
    pub async fn renewals(&self, holders: usize, lanes: usize) -> Result<Callers> {
        self.counted_renewals(holders, lanes, None).await
    }

    /// The same, with their bytes counted.
    pub async fn counted_renewals(
        &self,
        holders: usize,
        lanes: usize,
        counted: Option<&Arc<AtomicU64>>,
    ) -> Result<Callers> {
        let mut all: Callers = Vec::new();
        for lane in 0..lanes {
            let mut http = http::Http::open(self.address, TOKEN).await?;
            http.wire.counted = counted.cloned();
            all.push(Box::new(Renewal {
                http,
                bodies: (lane..holders).step_by(lanes).map(renewal).collect(),
                turn: 0,
            }));
        }
        Ok(all)
    }
}

fn renewal(holder: usize) -> String {
    format!(r#"{{"holder":"holder-{holder}","incarnation":"1","brief":true}}"#)
}

async fn launch(program: &Program) -> Child {
    let mut child = program.clone().spawn();
    child.wait_for_line("listening on", SOON).await;
    child
}

/// Callers that acquire and release at any server that speaks the API.
pub async fn cycles(address: SocketAddr, callers: usize) -> Result<Callers> {
    let mut all: Callers = Vec::new();
    for caller in 0..callers {
        all.push(Box::new(Cycle {
            http: http::Http::open(address, TOKEN).await?,
            keys: Keys::new(caller, callers),
            caller,
        }));
    }
    Ok(all)
}

/// Takes leases of a kind, many at a time; each holder's are consecutive.
async fn fill(address: SocketAddr, kind: &str, leases: usize, holders: usize) -> Result<()> {
    let share = leases.div_ceil(holders);
    let batches = (0..holders).flat_map(|holder| {
        let range = holder * share..((holder + 1) * share).min(leases);
        range
            .clone()
            .step_by(BATCH)
            .map(move |first| (holder, first..(first + BATCH).min(range.end)))
    });
    acquire_all(address, kind, batches.collect(), || HELD_SECONDS * 1000).await
}

/// Takes leases of a kind that all expire at the same moment.
pub async fn fill_until(
    address: SocketAddr,
    kind: &str,
    leases: usize,
    moment: UnixMillis,
) -> Result<()> {
    let batches = (0..leases).step_by(BATCH);
    let batches = batches.map(|first| (0, first..(first + BATCH).min(leases)));
    let ttl_ms = || moment.since(System.unix());
    acquire_all(address, kind, batches.collect(), ttl_ms).await
}

async fn acquire_all(
    address: SocketAddr,
    kind: &str,
    batches: Vec<(usize, Range<usize>)>,
    ttl_ms: impl Fn() -> u64,
) -> Result<()> {
    const LANES: usize = 16;
    let (batches, ttl_ms) = (&batches, &ttl_ms);
    let lanes = (0..LANES).map(|lane| async move {
        let mut http = http::Http::open(address, TOKEN).await?;
        for (holder, numbers) in batches.iter().skip(lane).step_by(LANES) {
            let keys: Vec<String> = numbers
                .clone()
                .map(|number| format!(r#"{{"kind":"{kind}","id":"lease-{number:09}"}}"#))
                .collect();
            let body = format!(
                r#"{{"keys":[{}],"holder":"holder-{holder}","incarnation":"1","ttl_seconds":{},"tenant_id":"tenant-1","labels":{{"region":"eu-west-1"}}}}"#,
                keys.join(","),
                ttl_ms() as f64 / 1000.0,
            );
            http.call("POST", paths::ACQUIRE, &body, |_| ()).await?;
        }
        anyhow::Ok(())
    });
    stream::iter(lanes)
        .buffer_unordered(LANES)
        .try_collect::<()>()
        .await
}

struct Cycle {
    http: http::Http,
    keys: Keys,
    caller: usize,
}

impl Caller for Cycle {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let body = format!(
                r#"{{"kind":"job","id":"{}","holder":"client-{}","incarnation":"1","ttl_seconds":60}}"#,
                self.keys.next(),
                self.caller
            );
            let acquired = self.http.call("POST", paths::ACQUIRE, &body, |answer| {
                http::field(answer, "lease_id").map(|id| format!("{}/{id}/release", paths::LEASES))
            });
            let path = acquired.await?.context("no lease in the answer")?;
            self.http.call("DELETE", &path, "", |_| ()).await
        })
    }
}

struct Renewal {
    http: http::Http,
    bodies: Vec<String>,
    turn: usize,
}

impl Caller for Renewal {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let body = &self.bodies[self.turn % self.bodies.len()];
            self.turn += 1;
            let kept = self.http.call("POST", paths::RENEW_MANY, body, |answer| {
                answer.contains(r#""results":[]"#) && !answer.contains(r#""kept":0"#)
            });
            ensure!(kept.await?, "a lease was lost");
            Ok(())
        })
    }
}
