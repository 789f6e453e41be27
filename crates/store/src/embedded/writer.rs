//! The one writer: a thread that owns the engine and the tables.
//!
//! It takes what is queued, decides it, writes all of it in one transaction with one sync, and only then
//! answers and notifies the watchers. A batch that changed nothing durable (renewals, reads) is answered
//! without touching the disk. Reads go through the same queue, so they never show what is not durable.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use lease::{
    Command, Error, LeaseRef, Outcome, Token, UnixMillis, Watching,
    engine::{self, Decision, Effects, Engine, RenewalEvents, Ticket},
};
use tokio::sync::{mpsc, oneshot};

use super::{
    job::{Call, Gone, GoneList, Job, Reply, Seen, Settled},
    journal::{Failure, Journal, is_change},
    outage::Outage,
    start::Folder,
    time::Time,
    wait,
};
use crate::live::{Joined, Live};

/// How many requests one batch takes: enough to share a sync among many, few enough that the first
/// does not wait long for the last.
pub(super) const BATCH: usize = 1024;

/// How often the others get the processor in vain before a batch goes on without them.
const QUIET_YIELDS: u32 = 200;
/// How often others are let run before the writer sleeps because nobody asks.
const IDLE_YIELDS: u32 = 4;

/// How often the past is tidied up while nothing else happens, in ms.
const TIDY_MS: u64 = 60_000;

/// How long nobody must have asked for a change before a long log is written back, in ms.
const QUIET_MS: u64 = 50;

/// An outcome that waits for its batch to be durable.
struct Held {
    reply: Reply<Outcome>,
    outcome: Result<Outcome, Error>,
    /// The caller could have gone away waiting: what it was granted must not be lost then.
    returns: bool,
}

/// What waits for its batch to be durable, and for its events to be passed on.
enum Later {
    Seen(Seen),
    Settled(Settled),
    Watch {
        watching: Arc<Watching>,
        snapshot: bool,
        reply: Reply<Joined>,
    },
}

/// A wait in the engine and the caller behind it.
struct Waiter {
    call: Call,
    reply: Reply<Outcome>,
}

/// The writer's state.
pub(super) struct Writer {
    pub(super) options: engine::Options,
    pub(super) engine: Engine,
    pub(super) journal: Journal,
    pub(super) time: Time,
    gone: GoneList,
    pub(super) live: Live,
    pub(super) folder: Option<Folder>,
    /// Set while the disk does not take what must be written.
    pub(super) outage: Option<Outage>,
    /// The same, for those who ask without waiting for the writer.
    pub(super) degraded: Arc<AtomicBool>,
    tidy_at: UnixMillis,
    /// When the log is written back if nobody asks until then, so that no commit has to.
    write_back_at: Option<UnixMillis>,
    effects: Effects,
    held: Vec<Held>,
    later: Vec<Later>,
    /// How many requests the last batch had.
    last_batch: usize,
    waiting: HashMap<Ticket, Waiter>,
    tickets: HashMap<Call, Ticket>,
    /// Grants that reached nobody, to be given back.
    returned: Vec<LeaseRef>,
    /// Those that the batch at hand gives back: until it is durable they may have to be again.
    giving_back: Vec<LeaseRef>,
    closing: Option<oneshot::Sender<Result<(), Error>>>,
}

impl Writer {
    pub fn new(
        options: engine::Options,
        engine: Engine,
        journal: Journal,
        time: Time,
        gone: GoneList,
        live: Live,
        folder: Option<Folder>,
    ) -> Self {
        Self {
            tidy_at: time.now().plus(TIDY_MS),
            write_back_at: None,
            options,
            engine,
            journal,
            time,
            gone,
            live,
            folder,
            outage: None,
            degraded: Arc::default(),
            effects: Effects::default(),
            held: Vec::with_capacity(BATCH),
            later: Vec::new(),
            last_batch: 0,
            waiting: HashMap::new(),
            tickets: HashMap::new(),
            returned: Vec::new(),
            giving_back: Vec::new(),
            closing: None,
        }
    }

    /// Works until it is closed, or until nobody is left who could ask.
    pub async fn run(
        &mut self,
        jobs: &mut mpsc::Receiver<Job>,
    ) -> Option<oneshot::Sender<Result<(), Error>>> {
        let mut inbox = Vec::with_capacity(BATCH);
        loop {
            if self.returned.is_empty() || self.outage.is_some() {
                // Going to sleep and being woken costs more than a batch does.
                for _ in 0..IDLE_YIELDS {
                    if !jobs.is_empty() {
                        break;
                    }
                    std::thread::yield_now();
                }
                tokio::select! {
                    biased;
                    taken = jobs.recv_many(&mut inbox, BATCH) => if taken == 0 { return None },
                    () = self.time.sleep_until(self.wake_at()) => {}
                }
                self.gather(jobs, &mut inbox);
            }
            self.last_batch = inbox.len();
            self.batch(&mut inbox);
            if let Some(closing) = self.closing.take() {
                // What nobody took until now goes back too.
                self.batch(&mut inbox);
                return Some(closing);
            }
        }
    }

    /// Those who were answered last often ask again immediately: they are let in, as long as they keep
    /// coming, so that they share this batch's sync instead of waiting for it. Nobody waits for others
    /// when there were none the last time, or when there is no disk and nothing to share.
    fn gather(&self, jobs: &mut mpsc::Receiver<Job>, inbox: &mut Vec<Job>) {
        if self.folder.is_none() {
            return;
        }
        let mut quiet = 0;
        while inbox.len() < self.last_batch && quiet < QUIET_YIELDS {
            if let Ok(job) = jobs.try_recv() {
                quiet = 0;
                inbox.push(job);
            } else {
                quiet += 1;
                std::thread::yield_now();
            }
        }
    }

    /// When there is something to do even if nobody asks.
    fn wake_at(&self) -> UnixMillis {
        if let Some(outage) = &self.outage {
            return outage.next_try;
        }
        let tick = self.engine.next_tick().unwrap_or(self.tidy_at);
        let tick = tick.min(self.tidy_at);
        self.write_back_at.map_or(tick, |at| at.min(tick))
    }

    /// Decides one batch, makes it durable and answers it.
    fn batch(&mut self, inbox: &mut Vec<Job>) {
        let now = self.time.now();
        self.effects.clear();
        if self.outage.is_some() && !self.recover(now) {
            return self.serve_degraded(inbox);
        }
        // Before the clock is looked at: whoever went away is not granted what lapses now.
        for gone in self.gone.take() {
            self.forget(now, gone);
        }
        let asked = !inbox.is_empty();
        self.engine.watch_renewals(self.live.are_renewals_watched());
        if self.engine.next_tick().is_some_and(|at| at <= now) {
            self.engine.tick(now, &mut self.effects);
        }
        self.giving_back = std::mem::take(&mut self.returned);
        for lease in self.giving_back.clone() {
            self.give_back(now, lease);
        }
        for job in inbox.drain(..) {
            self.take(now, job);
        }
        self.wake(now);
        match self.write(now) {
            Ok(()) => {
                self.giving_back.clear();
                self.answer(now);
            }
            Err(failure) => {
                self.returned.append(&mut self.giving_back);
                self.fail(&failure, now);
            }
        }
        if !asked && self.write_back_at.is_some_and(|at| at <= now) {
            self.write_back_at = None;
            // It is durable where it is. A disk that fails is noticed by the next change.
            if let Err(failure) = self.journal.write_back() {
                tracing::debug!(%failure, "the log could not be written back");
            }
        }
    }

    /// Makes durable what must be.
    fn write(&mut self, now: UnixMillis) -> Result<(), Failure> {
        if self.journal.concerns(&self.effects) {
            let began = tokio::time::Instant::now();
            self.journal.write(&self.engine, &self.effects, now)?;
            self.write_back_at = self.journal.is_log_long().then(|| now.plus(QUIET_MS));
            crate::timing::committed(began.elapsed());
            if let Some(folder) = &mut self.folder {
                let tokens = self.effects.events.iter();
                let token = tokens
                    .filter_map(|event| Some(event.lease.as_ref()?.token))
                    .max();
                folder
                    .guard
                    .set(self.engine.revision(), token.unwrap_or(Token::ZERO));
            }
        }
        if now >= self.tidy_at {
            self.tidy_at = now.plus(TIDY_MS);
            // What this batch did is durable: a failure here must not be reported as one of the batch.
            if let Err(failure) = self.journal.tidy(&self.engine, now) {
                tracing::warn!(%failure, "old events could not be deleted");
            }
        }
        Ok(())
    }

    /// The batch could not be written: none of it happened for anyone.
    fn fail(&mut self, failure: &Failure, now: UnixMillis) {
        // Whoever hears of it and looks finds it so.
        self.degraded.store(true, Ordering::Release);
        // It was not acknowledged; whether the disk has it all the same is for the next start to find out.
        let broken = Error::Unknown(failure.to_string());
        let unavailable = Error::Unavailable(failure.to_string());
        for Held { reply, outcome, .. } in self.held.drain(..) {
            // A wrong request stays a wrong request.
            let answer = outcome.and(Err(broken.clone()));
            let _ = reply.send(answer);
        }
        for later in self.later.drain(..) {
            match later {
                Later::Seen(seen) => seen(Some(&unavailable)),
                Later::Settled(settled) => settled(Err(&unavailable)),
                Later::Watch { reply, .. } => {
                    let _ = reply.send(Err(unavailable.clone()));
                }
            }
        }
        self.tickets.clear();
        for (_, waiter) in self.waiting.drain() {
            let _ = waiter.reply.send(Err(unavailable.clone()));
        }
        self.begin_outage(failure, now);
    }

    /// A batch while the disk does not take anything: time stands still, renewals and reads are
    /// answered from memory, and nothing changes hands (L14).
    fn serve_degraded(&mut self, inbox: &mut Vec<Job>) {
        for gone in self.gone.take() {
            // Nobody waits now; what was granted goes back when the disk takes that.
            if let Gone::Granted(leases) = gone {
                self.returned.extend(leases);
            }
        }
        for job in inbox.drain(..) {
            let Some(outage) = &self.outage else { break };
            let (since, error) = (outage.since, outage.error());
            match job {
                Job::Decide { command, reply, .. } => {
                    let answer = match command {
                        Command::Renew(_) | Command::Keep(_) if !outage.blind => {
                            self.renew_in_outage(since, command)
                        }
                        _ => Err(error),
                    };
                    let _ = reply.send(answer);
                }
                Job::Look(look) => {
                    let failed = outage.blind.then_some(error);
                    look(&self.engine, since)(failed.as_ref());
                }
                Job::Settled(settled) if outage.blind => settled(Err(&error)),
                Job::Watch { reply, .. } if outage.blind => {
                    let _ = reply.send(Err(error));
                }
                job @ (Job::Settled(_) | Job::Watch { .. } | Job::Wake | Job::Close(_)) => {
                    self.take(since, job);
                }
            }
        }
        let since = self.outage.as_ref().map(|outage| outage.since);
        self.answer(since.unwrap_or_default());
    }

    /// A renewal needs no disk, unless it changes more than the expiry: then the engine goes back to
    /// what is durable.
    fn renew_in_outage(&mut self, since: UnixMillis, command: Command) -> Result<Outcome, Error> {
        let events = self.effects.events.len();
        let decision = self.apply(since, command)?;
        if is_change(RenewalEvents::Live, &self.effects) {
            self.effects.events.truncate(events);
            self.effects.touched.clear();
            self.effects.forgotten.clear();
            self.rebuild();
            let error = self.outage.as_ref().map(Outage::error);
            return Err(error.unwrap_or_else(|| Error::Unavailable("try again".into())));
        }
        match decision {
            Decision::Now(outcome) => Ok(outcome),
            Decision::Waiting(_) => Err(Error::Broken("a renewal does not wait".into())),
        }
    }

    /// The orderly stop: waits end, and the time that every lease has left is written down (L14).
    pub fn stop(&mut self) -> Result<(), Error> {
        self.waiting.clear();
        let now = match &self.outage {
            Some(outage) if outage.blind => return Err(outage.error()),
            Some(outage) => outage.since,
            None => self.time.now(),
        };
        self.journal
            .stop(&self.engine, now)
            .map_err(|failure| Error::Broken(failure.to_string()))?;
        if let Some(folder) = &self.folder {
            folder.guard.sync();
        }
        Ok(())
    }

    fn apply(&mut self, now: UnixMillis, command: Command) -> Result<Decision, Error> {
        self.engine
            .apply(now, command, &mut self.effects)
            .map_err(Error::from)
    }

    fn take(&mut self, now: UnixMillis, job: Job) {
        match job {
            Job::Decide {
                command,
                call,
                reply,
            } => {
                if call.is_some() && reply.is_closed() {
                    return;
                }
                let outcome = match (self.apply(now, command), call) {
                    (Ok(Decision::Waiting(ticket)), Some(call)) => {
                        self.waiting.insert(ticket, Waiter { call, reply });
                        self.tickets.insert(call, ticket);
                        return;
                    }
                    (Ok(Decision::Waiting(ticket)), None) => {
                        self.engine.abandon(now, ticket, &mut self.effects);
                        Err(Error::Broken("a wait that nobody could end".into()))
                    }
                    (Ok(Decision::Now(outcome)), _) => Ok(outcome),
                    (Err(error), _) => Err(error),
                };
                self.held.push(Held {
                    reply,
                    outcome,
                    returns: call.is_some(),
                });
            }
            Job::Look(look) => self.later.push(Later::Seen(look(&self.engine, now))),
            Job::Settled(settled) => self.later.push(Later::Settled(settled)),
            Job::Watch {
                watching,
                snapshot,
                reply,
            } => self.later.push(Later::Watch {
                watching,
                snapshot,
                reply,
            }),
            Job::Wake => {}
            Job::Close(reply) => self.closing = Some(reply),
        }
    }

    /// A caller that waited went away (L6).
    fn forget(&mut self, now: UnixMillis, gone: Gone) {
        match gone {
            Gone::Waiting(call) => {
                if let Some(ticket) = self.tickets.remove(&call) {
                    self.waiting.remove(&ticket);
                    self.engine.abandon(now, ticket, &mut self.effects);
                }
            }
            Gone::Granted(leases) => self.returned.extend(leases),
        }
    }

    /// Passes grants on to those who waited. One that is no longer there gives its grant back in the
    /// same batch, which may wake the next.
    fn wake(&mut self, now: UnixMillis) {
        while !self.effects.woken.is_empty() {
            for (ticket, acquired) in std::mem::take(&mut self.effects.woken) {
                let waiter = self.waiting.remove(&ticket);
                if let Some(waiter) = &waiter {
                    self.tickets.remove(&waiter.call);
                }
                match waiter.filter(|waiter| !waiter.reply.is_closed()) {
                    Some(waiter) => self.held.push(Held {
                        reply: waiter.reply,
                        outcome: Ok(Outcome::Acquired(acquired)),
                        returns: true,
                    }),
                    None => {
                        for lease in wait::fresh(&acquired) {
                            self.give_back(now, lease);
                        }
                    }
                }
            }
        }
    }

    /// A grant that reached nobody, unless a later call of the same holder got the lease too: that one did.
    fn give_back(&mut self, now: UnixMillis, lease: LeaseRef) {
        if self.engine.is_as_granted(&lease) {
            let _ = self.apply(now, Command::Release(lease));
        }
    }

    /// Answers the batch. Those who decided come first: watchers, who are more, would delay them.
    fn answer(&mut self, now: UnixMillis) {
        for held in self.held.drain(..) {
            if let Err(Ok(Outcome::Acquired(acquired))) = held.reply.send(held.outcome)
                && held.returns
            {
                self.returned.extend(wait::fresh(&acquired));
            }
        }
        self.live.publish(self.effects.events.drain(..));
        for later in self.later.drain(..) {
            match later {
                Later::Seen(seen) => seen(None),
                Later::Settled(settled) => settled(Ok((&self.engine, now))),
                Later::Watch {
                    watching,
                    snapshot,
                    reply,
                } => {
                    let revision = self.engine.revision();
                    let snapshot = snapshot.then(|| Box::new(self.engine.snapshot(now, &watching)));
                    let (_, events) = self.live.join(watching);
                    let _ = reply.send(Ok(Joined {
                        live_from: revision,
                        newest: revision,
                        events,
                        snapshot,
                    }));
                }
            }
        }
    }
}
