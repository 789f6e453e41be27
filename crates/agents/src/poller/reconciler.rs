//! The loop: hears what changes, reads the fleet in full now and then, plans, and acts.

use std::{collections::BTreeSet, sync::Arc};

use lease::{
    BootMillis, Event, EventCause, EventKind, Key, Watching,
    polling::{NODE, POLL, TARGET},
};
use leasehold_client::{Change, Follower};
use leasehold_clock::Backoff;
use tokio::sync::mpsc;

use super::{
    Targets,
    coordinator::Shared,
    discovery::{Extent, discover, limited, look_at_foreign},
    handover::{self, Given},
    plan::{Holdings as _, Planner, Room},
};

/// Events that wait for the loop. When there are more the stream is held up, and a store that cannot
/// wait sends a snapshot, which means: read everything again.
const FEED: usize = 1_024;
/// How many acquires are under way concurrently.
const CONCURRENT_ACQUIRES: usize = 32;
/// How long reading everything may take.
const DISCOVERY_LIMIT_MS: u64 = 10_000;
/// The shortest time between two full reads.
const DISCOVERY_PAUSE_MS: u64 = 50;
/// Pauses after a failure grow from the first to the second.
const RETRY_MS: (u64, u64) = (100, 2_000);
/// Changed targets that are read one by one; with more than these everything is read.
const TARGETS_ONE_BY_ONE: usize = 16;
/// How many discoveries read only what foreign programs write, until one reads all leases again.
const FLEET_ONLY: u64 = 6;
/// How many foreign programs' leases are looked at in one round, and how far rounds are apart.
const FOREIGN_LOOKS: usize = 256;
const FOREIGN_PAUSE_MS: u64 = 250;

/// What the stream of changes says.
enum Feed {
    Event(Arc<Event>),
    /// Something may have been missed: read everything.
    Resync,
}

/// What a task that the loop started came to.
enum Done {
    Asked {
        target: String,
        failed: bool,
    },
    Given {
        target: String,
        successor: String,
        given: Given,
    },
    Taken {
        target: String,
    },
}

pub(super) fn spawn(shared: Arc<Shared>) {
    let (events, feed) = mpsc::channel(FEED);
    shared.tasks.spawn(listen(shared.clone(), events));
    let tasks = shared.tasks.clone();
    tasks.spawn(Reconciler::new(shared).run(feed));
}

/// Follows what happens to the fleet. Renewals are wanted: they say how long the others' leases last.
async fn listen(shared: Arc<Shared>, events: mpsc::Sender<Feed>) {
    let watching = Watching::kinds([NODE, POLL, TARGET]).with_renewals();
    let mut follower = Follower::new(shared.authority.clone(), shared.clock.clone(), watching)
        .with_pauses(RETRY_MS.0, RETRY_MS.1);
    loop {
        let change = tokio::select! {
            () = shared.end.cancelled() => return,
            change = follower.next() => change,
        };
        let feed = match change {
            Ok(Change::Event(event)) => Feed::Event(event),
            Ok(Change::Progress(_)) => continue,
            // While the stream is interrupted something may be missed.
            Ok(Change::Resync(_) | Change::Interrupted(_)) => Feed::Resync,
            Err(error) => {
                tracing::error!(instance = %shared.id, %error, "changes cannot be watched");
                return;
            }
        };
        if events.send(feed).await.is_err() {
            return;
        }
    }
}

/// A tenth more or less, at random, so that a fleet that started together does not act together.
fn jittered(ms: u64) -> u64 {
    let tenth = ms / 10;
    ms - tenth + rand::random_range(0..=2 * tenth)
}

struct Reconciler {
    shared: Arc<Shared>,
    done: mpsc::Sender<Done>,
    finished: mpsc::Receiver<Done>,
    asked: BTreeSet<String>,
    taking: BTreeSet<String>,
    /// How many targets are on their way to another instance.
    giving: usize,
    planner: Planner,
    next_discovery: BootMillis,
    /// When leases are read again although nothing seems to be missing.
    next_everything: BootMillis,
    /// Foreign programs' leases are not looked at before this.
    foreign_from: BootMillis,
    /// Not before this: the last read, or a pause after a failure.
    discovery_from: BootMillis,
    retries: Backoff,
    resync: bool,
    /// Whether the last discovery failed.
    failing: bool,
}

impl Reconciler {
    fn new(shared: Arc<Shared>) -> Self {
        // One message per task, and tasks are bounded; a full channel only makes one of them wait.
        let (done, finished) = mpsc::channel(CONCURRENT_ACQUIRES);
        let now = shared.clock.boot();
        Self {
            planner: Planner::new(shared.me()),
            shared,
            done,
            finished,
            asked: BTreeSet::new(),
            taking: BTreeSet::new(),
            giving: 0,
            next_discovery: now,
            next_everything: now,
            foreign_from: now,
            discovery_from: now,
            retries: Backoff::new(RETRY_MS.0, RETRY_MS.1),
            resync: false,
            failing: false,
        }
    }

    async fn run(mut self, mut feed: mpsc::Receiver<Feed>) {
        let shared = self.shared.clone();
        let mut wake_at = self.next_discovery;
        loop {
            tokio::select! {
                () = shared.end.cancelled() => return,
                Some(news) = feed.recv() => {
                    let mut batch = vec![news];
                    while batch.len() < FEED && let Ok(news) = feed.try_recv() {
                        batch.push(news);
                    }
                    self.hear(batch).await;
                }
                Some(done) = self.finished.recv() => self.note(done),
                () = shared.wake.notified() => {}
                () = shared.clock.sleep_until(wake_at) => {}
            }
            while let Ok(done) = self.finished.try_recv() {
                self.note(done);
            }
            if shared.table.is_stopping() {
                // Only the end is waited for.
                wake_at = shared.clock.boot().plus(1_000);
                continue;
            }
            self.look().await;
            self.look_at_foreign().await;
            wake_at = self.act();
        }
    }

    /// Takes over what the stream says.
    async fn hear(&mut self, batch: Vec<Feed>) {
        let mut changed = BTreeSet::new();
        let now = self.shared.clock.boot();
        for news in batch {
            let Feed::Event(event) = news else {
                self.resync = true;
                continue;
            };
            match (event.key.kind(), event.kind) {
                (TARGET, _) => {
                    changed.insert(event.key.clone());
                }
                (POLL, EventKind::HandoffOffered) => {
                    let successor = event.cause.as_ref().and_then(EventCause::holder);
                    if successor == Some(&self.shared.holder) {
                        self.take(event.key.id());
                    }
                }
                (POLL, EventKind::HandoffPrepared) => {
                    let target = event.key.id();
                    let moving = self.shared.table.mine(target).is_some_and(|it| it.moving);
                    if moving {
                        let heard = target.to_owned();
                        self.shared.prepared.send_modify(|targets| {
                            targets.insert(heard);
                        });
                    }
                }
                _ => self.shared.mirror().apply(now, &event),
            }
        }
        if matches!(self.shared.targets, Targets::Store) {
            if changed.len() > TARGETS_ONE_BY_ONE {
                self.resync = true;
            } else {
                for key in changed {
                    self.read_target(key).await;
                }
            }
        }
    }

    async fn read_target(&mut self, key: Key) {
        if self.shared.read_target(key).await.is_err() {
            self.resync = true;
        }
    }

    fn note(&mut self, done: Done) {
        match done {
            Done::Asked { target, failed } => {
                self.asked.remove(&target);
                self.shared.mirror().touch(&target);
                if failed {
                    self.failed();
                }
            }
            Done::Given {
                target,
                successor,
                given,
            } => {
                self.giving -= 1;
                let now = self.shared.clock.boot();
                match given {
                    Given::Moved => self.planner.answered(&successor),
                    Given::Kept => self.planner.declined(now, &target, &successor),
                    Given::NoAnswer => {
                        let longest_ms = 2 * self.shared.options.lease_ttl_ms;
                        self.planner.silent(now, &successor, longest_ms);
                        self.planner.declined(now, &target, &successor);
                    }
                }
                self.shared.mirror().touch(&target);
            }
            Done::Taken { target } => {
                self.taking.remove(&target);
            }
        }
    }

    /// The store could not say: look at everything again after a pause.
    fn failed(&mut self) {
        let pause_ms = self.retries.next_ms();
        self.discovery_from = self.shared.clock.boot().plus(pause_ms);
        self.resync = true;
    }

    /// Reads everything when it is time to.
    async fn look(&mut self) {
        let shared = self.shared.clone();
        let now = shared.clock.boot();
        let lapsed = shared.mirror().next_lapse().is_some_and(|at| at <= now);
        let due = self.resync || lapsed || !shared.is_present() || now >= self.next_discovery;
        if !due || now < self.discovery_from {
            return;
        }
        if !shared.is_present() && !shared.table.is_stopping() {
            // It is being announced; until then nothing new is begun.
            self.failed();
            return;
        }
        let everything = self.resync || lapsed || now >= self.next_everything;
        let extent = if everything {
            Extent::Everything
        } else {
            Extent::Fleet
        };
        let read = discover(&shared, extent);
        match limited(&*shared.clock, DISCOVERY_LIMIT_MS, read).await {
            Ok(()) => {
                shared.note_look(Ok(()));
                shared.log_renewals();
                self.resync = false;
                self.failing = false;
                self.retries.reset();
                let now = shared.clock.boot();
                if everything {
                    let pause_ms = jittered(FLEET_ONLY * shared.options.discovery_ms);
                    self.next_everything = now.plus(pause_ms);
                }
                self.next_discovery = now.plus(jittered(shared.options.discovery_ms));
                self.discovery_from = now.plus(DISCOVERY_PAUSE_MS);
            }
            Err(error) => {
                shared.note_look(Err(&error));
                if std::mem::replace(&mut self.failing, true) {
                    tracing::debug!(instance = %shared.id, %error, "discovery failed again");
                } else {
                    tracing::warn!(instance = %shared.id, %error, "discovery failed; retrying");
                }
                self.failed();
            }
        }
    }

    /// Looks at leases of foreign programs, which do not announce when they let go.
    async fn look_at_foreign(&mut self) {
        let shared = self.shared.clone();
        let now = shared.clock.boot();
        if self.resync || now < self.foreign_from {
            return;
        }
        let due = shared.mirror().foreign_due(now, FOREIGN_LOOKS);
        if due.is_empty() {
            return;
        }
        self.foreign_from = now.plus(FOREIGN_PAUSE_MS);
        let looks = look_at_foreign(&shared, due);
        if limited(&*shared.clock, DISCOVERY_LIMIT_MS, looks)
            .await
            .is_err()
        {
            self.failed();
        }
    }

    /// Plans and acts; returns when to think again if nothing happens.
    fn act(&mut self) -> BootMillis {
        let shared = self.shared.clone();
        let now = shared.clock.boot();
        // With something possibly missed, nothing new is begun: what looks free may not be.
        if self.resync {
            return self.discovery_from.max(now.plus(1));
        }
        let (plan, offers, offered) = {
            let mut mirror = shared.mirror();
            let room = Room {
                asked: &self.asked,
                acquires: CONCURRENT_ACQUIRES.saturating_sub(self.asked.len()),
                moving: self.giving,
            };
            let options = &shared.options;
            let plan = self
                .planner
                .plan(now, options, &mut mirror, &*shared.table, &room);
            let holder = |node: &String| mirror.member_holder(node).cloned();
            let offers: Vec<_> = plan
                .offer
                .iter()
                .filter_map(|(target, node)| Some((target.clone(), holder(node)?)))
                .collect();
            // Offers whose event was missed.
            (plan, offers, mirror.take_offered())
        };
        for target in offered {
            self.take(&target);
        }
        for (target, reason) in plan.release {
            let shared = shared.clone();
            self.shared.tasks.spawn(async move {
                // What is running ends by itself before its deadline; the lease goes immediately.
                let _ = shared.give_back(&target, reason).await;
            });
        }
        for target in plan.acquire {
            self.ask(target);
        }
        for (target, holder) in offers {
            let (shared, done) = (shared.clone(), self.done.clone());
            self.giving += 1;
            self.shared.tasks.spawn(async move {
                let successor = holder.name.to_string();
                let given = handover::give(&shared, &target, holder).await;
                let given = Done::Given {
                    target,
                    successor,
                    given,
                };
                let _ = done.send(given).await;
            });
        }
        for (target, successor) in plan.leave {
            let (shared, done) = (shared.clone(), self.done.clone());
            self.giving += 1;
            self.shared.tasks.spawn(async move {
                let given = handover::leave(&shared, &target, &successor).await;
                let given = Done::Given {
                    target,
                    successor,
                    given,
                };
                let _ = done.send(given).await;
            });
        }
        let next = plan
            .wake_at
            .map_or(self.next_discovery, |at| at.min(self.next_discovery));
        next.max(self.discovery_from).max(now.plus(1))
    }

    fn ask(&mut self, target: String) {
        let (shared, done) = (self.shared.clone(), self.done.clone());
        self.asked.insert(target.clone());
        self.shared.tasks.spawn(async move {
            let failed = shared.ask(&target, false).await.is_err();
            let _ = done.send(Done::Asked { target, failed }).await;
        });
    }

    fn take(&mut self, target: &str) {
        if !self.taking.insert(target.to_owned()) {
            return;
        }
        let (shared, done) = (self.shared.clone(), self.done.clone());
        let target = target.to_owned();
        self.shared.tasks.spawn(async move {
            handover::take(&shared, &target).await;
            let _ = done.send(Done::Taken { target }).await;
        });
    }
}
