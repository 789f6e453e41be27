//! Sites in memory: what a heartbeat is answered from. Each requested site is read once and then
//! kept up to date from the changes, by one task with one follower; what should be where is computed once
//! per change and not once per request.
//!
//! Nothing depends on it being right: the kernel decides about every lease. An answer contains everything
//! that this server wrote, and everything up to the revision that the caller names.

mod state;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lease::{
    Event, Revision, UnixMillis, Watching,
    registry::{CAMERA, DEPLOYMENT, RUNNER, Split, TROUBLE, ZONE},
};
use leasehold_api::SiteVersion;
use leasehold_client::{Change, Follower};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, timeout},
};

use super::{SiteId, index_kind, site::SITE_CHANGE};
use crate::{App, Reject};
use state::State;

pub(crate) use state::{Planned, load, with_reports};

/// How many sites are kept; beyond that the least recently requested one is dropped.
const MAX_SITES: usize = 1_024;
/// How many requests may wait for the task.
const QUEUE: usize = 256;
/// How long an answer waits for changes that it must contain, before the site is read again.
const CATCH_UP: Duration = Duration::from_millis(250);
/// Computing who should have what takes at most one part in so many of the time.
const SHARE: u32 = 4;
/// Below so many pairs of cameras and runners it is computed where it is asked for.
const SMALL: usize = 4_096;

/// The sites in memory. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sites {
    asks: mpsc::Sender<Ask>,
    /// Up to where every change is in the sites that are kept.
    seen: watch::Receiver<Revision>,
    /// The newest change that this server made.
    wrote: Arc<AtomicU64>,
}

struct Ask {
    place: SiteId,
    /// What the answer must contain, when it is to be read again for that.
    again: Option<Revision>,
    answer: oneshot::Sender<Option<Arc<Kept>>>,
}

/// What the task needs.
pub(crate) struct Pending {
    asks: mpsc::Receiver<Ask>,
    seen: watch::Sender<Revision>,
}

/// A site, kept up to date.
struct Kept {
    // Held for a few instructions or for one copy, never over an await.
    state: Mutex<State>,
    /// Up to where everything is in it although no change said so.
    proven: Revision,
    /// The revision that somebody asked for in vain, before it was read again.
    asked_for: Option<Revision>,
    latest: tokio::sync::Mutex<Latest>,
}

#[derive(Default)]
struct Latest {
    plan: Option<Arc<Planned>>,
    split: Option<(u64, Arc<Split>)>,
    version: Option<(u64, SiteVersion)>,
    /// When the last computation ended, and how long it took.
    done: Option<(Instant, Duration)>,
}

impl Sites {
    pub fn new() -> (Self, Pending) {
        let (asks, asked) = mpsc::channel(QUEUE);
        let (seen, seeing) = watch::channel(Revision::new(0));
        let sites = Self {
            asks,
            seen: seeing,
            wrote: Arc::default(),
        };
        (sites, Pending { asks: asked, seen })
    }

    /// This server changed something: answers contain it from now on.
    pub fn wrote(&self, revision: Revision) {
        self.wrote.fetch_max(revision.get(), Ordering::AcqRel);
    }

    /// A site and what should be where, with everything up to `revision`. `now` is the authority's.
    pub async fn planned(
        &self,
        app: &App,
        place: &SiteId,
        revision: Option<Revision>,
        now: UnixMillis,
    ) -> Result<Arc<Planned>, Reject> {
        if let Some(kept) = self.kept(place, revision).await
            && let Some(plan) = kept.plan(now).await
        {
            return Ok(plan);
        }
        let state = State::load(app.authority(), place).await?;
        let split = state.at(now).split();
        Ok(Arc::new(state.plan(&split, state.version(), now)))
    }

    async fn kept(&self, place: &SiteId, revision: Option<Revision>) -> Option<Arc<Kept>> {
        let wrote = Revision::new(self.wrote.load(Ordering::Acquire));
        let revision = revision.map_or(wrote, |revision| revision.max(wrote));
        let mut again = None;
        loop {
            let (answer, answered) = oneshot::channel();
            let ask = Ask {
                place: place.clone(),
                again,
                answer,
            };
            self.asks.send(ask).await.ok()?;
            let kept = answered.await.ok()??;
            if kept.proven >= revision || kept.asked_for == Some(revision) {
                return Some(kept);
            }
            let mut seen = self.seen.clone();
            let caught_up = timeout(CATCH_UP, seen.wait_for(|seen| *seen >= revision)).await;
            match caught_up {
                Ok(Ok(_)) => return Some(kept),
                Err(_) if again.is_none() => again = Some(revision),
                Ok(Err(_)) | Err(_) => return None,
            }
        }
    }
}

/// Keeps sites up to date until it is dropped.
pub(crate) async fn run(app: App, mut pending: Pending) {
    let (cameras, runners) = (index_kind(CAMERA), index_kind(RUNNER));
    // Every kind that this server writes here, so that it sees its own changes go by.
    let watching = Watching::kinds([
        CAMERA,
        ZONE,
        RUNNER,
        DEPLOYMENT,
        TROUBLE,
        SITE_CHANGE,
        &cameras,
        &runners,
    ]);
    let mut changes = Follower::new(app.shared_authority(), app.clock().clone(), watching);
    let mut kept = Keeping::default();
    loop {
        tokio::select! {
            // What was published before a question was asked is in the answer.
            biased;
            change = changes.next() => match change {
                Ok(Change::Event(event)) => {
                    kept.followed = true;
                    kept.apply(&app, &event).await;
                    pending.seen.send_replace(event.revision);
                }
                Ok(Change::Progress(revision)) => {
                    kept.followed = true;
                    pending.seen.send_replace(revision);
                }
                Ok(Change::Resync(_)) => {
                    kept.sites.clear();
                    kept.followed = true;
                    pending.seen.send_replace(Revision::new(0));
                }
                Ok(Change::Interrupted(_)) => {
                    kept.sites.clear();
                    kept.followed = false;
                }
                Err(error) => {
                    tracing::info!(%error, "changes cannot be followed: every heartbeat reads its site");
                    return;
                }
            },
            Some(ask) = pending.asks.recv() => {
                let found = kept.answer(&app, &ask.place, ask.again).await;
                drop(ask.answer.send(found));
            }
            else => return,
        }
    }
}

/// The sites that are kept, and when each was last asked about.
#[derive(Default)]
struct Keeping {
    sites: HashMap<SiteId, (Arc<Kept>, u64)>,
    followed: bool,
    asked: u64,
}

impl Keeping {
    async fn answer(
        &mut self,
        app: &App,
        place: &SiteId,
        again: Option<Revision>,
    ) -> Option<Arc<Kept>> {
        if !self.followed {
            return None;
        }
        self.asked += 1;
        let asked = self.asked;
        if again.is_none()
            && let Some((kept, last)) = self.sites.get_mut(place)
        {
            *last = asked;
            return Some(kept.clone());
        }
        let state = match State::load(app.authority(), place).await {
            Ok(state) => state,
            Err(error) => {
                tracing::debug!(error = error.problem().detail, "a site was not read");
                return None;
            }
        };
        if self.sites.len() >= MAX_SITES {
            let oldest = self.sites.iter().min_by_key(|(_, (_, last))| *last);
            let oldest = oldest.map(|(place, _)| place.clone());
            oldest.map(|place| self.sites.remove(&place));
        }
        let kept = Arc::new(Kept {
            state: Mutex::new(state.state),
            proven: state.newest,
            // Read after it was asked for, so everything that the asker knew is in it.
            asked_for: again,
            latest: tokio::sync::Mutex::default(),
        });
        self.sites.insert(place.clone(), (kept.clone(), asked));
        Some(kept)
    }

    fn find(&self, event: &Event) -> Option<(SiteId, Arc<Kept>)> {
        let place = match &event.lease {
            None => SiteId::of_id(event.key.id()),
            Some(lease) => lease
                .labels
                .tenant()
                .zip(lease.labels.get(lease::SITE))
                .and_then(|(tenant, site)| SiteId::new(tenant, site).ok()),
        };
        match place {
            Some(place) => {
                let (kept, _) = self.sites.get(&place)?;
                Some((place, kept.clone()))
            }
            // A lease that says nothing of its site.
            None if event.key.kind() == CAMERA => {
                let found = self
                    .sites
                    .iter()
                    .find(|(_, (kept, _))| kept.state().site.cameras.contains_key(event.key.id()));
                found.map(|(place, (kept, _))| (place.clone(), kept.clone()))
            }
            None => None,
        }
    }

    async fn apply(&mut self, app: &App, event: &Event) {
        let Some((place, kept)) = self.find(event) else {
            return;
        };
        if event.lease.is_some() {
            kept.state().lease(event);
            return;
        }
        match app.authority().record(event.key.clone()).await {
            Ok(record) => kept.state().record(event, record),
            Err(error) => {
                tracing::debug!(%error, "a changed document was not read");
                self.sites.remove(&place);
            }
        }
    }
}

impl Kept {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What should be where, computed again only when something changed.
    async fn plan(&self, now: UnixMillis) -> Option<Arc<Planned>> {
        let mut latest = self.latest.lock().await;
        let generation = self.state().generation;
        if let Some(plan) = &latest.plan
            && plan.generation == generation
            && plan.until.is_none_or(|until| now < until)
        {
            return Some(plan.clone());
        }
        // Everybody who asks meanwhile waits for the same one.
        if let Some((done, took)) = latest.done {
            tokio::time::sleep_until(done + took * (SHARE - 1)).await;
        }
        let state = self.state().clone();
        let timed = latest
            .plan
            .as_ref()
            .is_some_and(|plan| plan.until.is_some());
        let split = latest.split.clone();
        let split = split.filter(|(shape, _)| *shape == state.shape && !timed);
        let version = latest.version.clone();
        let version = version.filter(|(config, _)| *config == state.config);
        let began = Instant::now();
        let compute = move || {
            let split = match split {
                Some((_, split)) => split,
                None => Arc::new(state.at(now).split()),
            };
            let version = version.map_or_else(|| state.version(), |(_, version)| version);
            let marks = (state.shape, state.config);
            let plan = state.plan(&split, version.clone(), now);
            (marks, split, version, Arc::new(plan))
        };
        let size = {
            let site = &self.state().site;
            site.cameras.len() * site.runners.len().max(1)
        };
        let ((shape, config), split, version, plan) = if size <= SMALL {
            compute()
        } else {
            tokio::task::spawn_blocking(compute).await.ok()?
        };
        *latest = Latest {
            plan: Some(plan.clone()),
            split: Some((shape, split)),
            version: Some((config, version)),
            done: Some((Instant::now(), began.elapsed())),
        };
        Some(plan)
    }
}
