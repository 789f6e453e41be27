//! Leasehold's stores inside this process, through the interface that the server uses too.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, future::BoxFuture, stream};
use lease::{Acquire, Acquired, Authority, Holder, Key, LeaseRef, Ttl, Want};
use leasehold_bench::rounds::{Caller, Callers};
use leasehold_clock::System;
use leasehold_store::{embedded, postgres, redis};
use leasehold_testkit::Dir;

use super::{HELD_SECONDS, Keys, TTL_MS};

/// A store in this process.
#[derive(Clone)]
pub struct Store {
    pub authority: Arc<dyn Authority>,
    _dir: Option<Arc<Dir>>,
}

impl Store {
    pub async fn durable() -> Result<Self> {
        let dir = Dir::new("bench-embedded");
        let options = embedded::Options::at(dir.join("data"));
        let store = embedded::Embedded::open(options, Arc::new(System)).await?;
        Ok(Self {
            authority: Arc::new(store),
            _dir: Some(Arc::new(dir)),
        })
    }

    pub fn memory() -> Result<Self> {
        let options = embedded::Options::default();
        let store = embedded::Embedded::memory(options, Arc::new(System))?;
        Ok(Self {
            authority: Arc::new(store),
            _dir: None,
        })
    }

    pub async fn redis(url: &str) -> Result<Self> {
        Ok(Self {
            authority: Arc::new(redis::Redis::open_url(url).await?),
            _dir: None,
        })
    }

    pub async fn postgres(url: &str) -> Result<Self> {
        let options: postgres::Options = url.parse().context("the URL of PostgreSQL")?;
        Ok(Self {
            authority: Arc::new(postgres::Postgres::open(options).await?),
            _dir: None,
        })
    }

    /// Holders that acquire and release.
    pub fn cycles(&self, callers: usize) -> Result<Callers> {
        let mut all: Callers = Vec::new();
        for caller in 0..callers {
            all.push(Box::new(Cycle {
                store: self.clone(),
                keys: Keys::new(caller, callers),
                holder: Holder::new(&format!("client-{caller}"), "1")?,
            }));
        }
        Ok(all)
    }

    /// Takes leases: each of `holders` gets its share.
    pub async fn fill(&self, kind: &str, leases: usize, holders: usize) -> Result<()> {
        let share = leases.div_ceil(holders);
        let mut requests = Vec::new();
        for holder in 0..holders {
            let mine: Vec<usize> = (holder * share..((holder + 1) * share).min(leases)).collect();
            for chunk in mine.chunks(Acquire::MAX_KEYS) {
                let keys = chunk
                    .iter()
                    .map(|number| Key::new(kind, &format!("lease-{number:09}")))
                    .collect::<Result<Vec<_>, _>>()?;
                let holder = Holder::new(&format!("holder-{holder}"), "1")?;
                let ttl = Ttl::from_secs(HELD_SECONDS)?;
                requests.push(Acquire::of(Want::All(keys), holder, ttl));
            }
        }
        stream::iter(requests)
            .map(|request| async move {
                match self.authority.acquire(request).await? {
                    Acquired::Granted { .. } => Ok(()),
                    Acquired::Refused(refusal) => bail!("{refusal:?}"),
                }
            })
            .buffer_unordered(16)
            .try_collect::<()>()
            .await
    }

    /// Holders that renew everything they have: `lanes` callers who speak for the holders in turn.
    pub fn renewals(&self, holders: usize, lanes: usize) -> Result<Callers> {
        let mut all: Callers = Vec::new();
        for lane in 0..lanes {
            let holders = (lane..holders)
                .step_by(lanes)
                .map(|holder| Holder::new(&format!("holder-{holder}"), "1"))
                .collect::<Result<Vec<_>, _>>()?;
            all.push(Box::new(Renewal {
                store: self.clone(),
                holders,
                turn: 0,
            }));
        }
        Ok(all)
    }
}

struct Cycle {
    store: Store,
    keys: Keys,
    holder: Holder,
}

impl Caller for Cycle {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let key = Key::new("job", &self.keys.next().to_string())?;
            let ttl = Ttl::from_millis(TTL_MS)?;
            let request = Acquire::one(key, self.holder.clone(), ttl);
            let lease = match self.store.authority.acquire(request).await? {
                Acquired::Granted { leases, .. } => LeaseRef::from(&leases[0]),
                Acquired::Refused(refusal) => bail!("{refusal:?}"),
            };
            ensure!(self.store.authority.release(lease).await?, "not released");
            Ok(())
        })
    }
}

struct Renewal {
    store: Store,
    holders: Vec<Holder>,
    turn: usize,
}

impl Caller for Renewal {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let holder = self.holders[self.turn % self.holders.len()].clone();
            self.turn += 1;
            let kept = self.store.authority.keep(holder).await?;
            ensure!(kept.leases > 0 && kept.lost.is_empty(), "a lease was lost");
            Ok(())
        })
    }
}
