//! The one writer: a thread that owns the engine and the tables.
//!
//! It takes what is queued, decides it, writes all of it in one transaction with one sync, and only then
//! answers and tells the watchers. A batch that changed nothing durable (renewals, reads) is answered
//! without touching the disk. Reads go through the same queue, so they never show what is not durable.

use std::{collections::HashMap, sync::Arc};

use lease::{
    Acquired, Error, Event, LeaseRef, UnixMillis,
    engine::{Command, Effects, Engine, Outcome, Ticket},
};
use tokio::sync::{broadcast, mpsc, oneshot};

use super::{
    job::{Call, Glimpse, Gone, GoneList, Job, Reply, Subscription},
    journal::Journal,
    time::Time,
    wait,
};

/// How many requests one batch takes: enough to share a sync among many, few enough that the first
/// does not wait long for the last.
pub(super) const BATCH: usize = 1024;

/// An answer that waits for its batch to be durable.
enum Held {
    Outcome {
        reply: Reply<Outcome>,
        outcome: Result<Outcome, Error>,
        /// The caller could have gone away waiting: what it was granted must not be lost then.
        returns: bool,
    },
    Glimpse(Glimpse),
    Watch {
        snapshot: bool,
        reply: Reply<Subscription>,
    },
}

/// A wait in the engine and the caller behind it.
struct Waiter {
    call: Call,
    reply: Reply<Outcome>,
}

/// The writer's state.
pub(super) struct Writer {
    pub engine: Engine,
    pub journal: Journal,
    pub time: Time,
    pub gone: GoneList,
    pub live: broadcast::Sender<Arc<Event>>,
    effects: Effects,
    held: Vec<Held>,
    waiting: HashMap<Ticket, Waiter>,
    tickets: HashMap<Call, Ticket>,
    /// Grants that reached nobody.
    returned: Vec<LeaseRef>,
    closing: Option<oneshot::Sender<Result<(), Error>>>,
}

impl Writer {
    pub fn new(
        engine: Engine,
        journal: Journal,
        time: Time,
        gone: GoneList,
        live: broadcast::Sender<Arc<Event>>,
    ) -> Self {
        Self {
            engine,
            journal,
            time,
            gone,
            live,
            effects: Effects::default(),
            held: Vec::with_capacity(BATCH),
            waiting: HashMap::new(),
            tickets: HashMap::new(),
            returned: Vec::new(),
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
            if self.returned.is_empty() {
                tokio::select! {
                    biased;
                    taken = jobs.recv_many(&mut inbox, BATCH) => if taken == 0 { return None },
                    () = self.time.sleep_until(self.engine.next_tick()) => {}
                }
            }
            self.turn(&mut inbox);
            if let Some(closing) = self.closing.take() {
                return Some(closing);
            }
        }
    }

    /// One batch.
    fn turn(&mut self, inbox: &mut Vec<Job>) {
        let now = self.time.now();
        self.effects.clear();
        if self.engine.next_tick().is_some_and(|at| at <= now) {
            let _ = self.apply(now, Command::Tick);
        }
        for lease in std::mem::take(&mut self.returned) {
            let _ = self.apply(now, Command::Release(lease));
        }
        for gone in self.gone.take() {
            self.forget(now, gone);
        }
        for job in inbox.drain(..) {
            self.take(now, job);
        }
        self.wake(now);
        let written = if self.journal.concerns(&self.effects) {
            self.journal.write(&self.engine, &self.effects, now)
        } else {
            Ok(())
        };
        match written {
            Ok(()) => {
                self.publish();
                self.answer(now);
            }
            Err(failure) => self.fail(&Error::Broken(failure.to_string())),
        }
    }

    fn fail(&mut self, error: &Error) {
        for held in self.held.drain(..) {
            match held {
                Held::Outcome { reply, .. } => {
                    let _ = reply.send(Err(error.clone()));
                }
                Held::Glimpse(glimpse) => glimpse(Some(error)),
                Held::Watch { reply, .. } => {
                    let _ = reply.send(Err(error.clone()));
                }
            }
        }
    }

    /// The orderly stop: waits end, and the time that every lease has left is written down (L14).
    pub fn stop(&mut self) -> Result<(), Error> {
        self.waiting.clear();
        let now = self.time.now();
        self.journal
            .stop(&self.engine, now)
            .map_err(|failure| Error::Broken(failure.to_string()))
    }

    fn apply(&mut self, now: UnixMillis, command: Command) -> Result<Outcome, Error> {
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
                match (self.apply(now, command), call) {
                    (Ok(Outcome::Waiting(ticket)), Some(call)) => {
                        self.waiting.insert(ticket, Waiter { call, reply });
                        self.tickets.insert(call, ticket);
                    }
                    (outcome, call) => self.held.push(Held::Outcome {
                        reply,
                        outcome,
                        returns: call.is_some(),
                    }),
                }
            }
            Job::Look(look) => self.held.push(Held::Glimpse(look(&self.engine, now))),
            Job::Watch { snapshot, reply } => self.held.push(Held::Watch { snapshot, reply }),
            Job::Poke => {}
            Job::Close(reply) => self.closing = Some(reply),
        }
    }

    /// A caller that waited went away (L6).
    fn forget(&mut self, now: UnixMillis, gone: Gone) {
        match gone {
            Gone::Waiting(call) => {
                if let Some(ticket) = self.tickets.remove(&call) {
                    self.waiting.remove(&ticket);
                    let _ = self.apply(now, Command::Abandon(ticket));
                }
            }
            Gone::Granted(leases) => {
                for lease in leases {
                    let _ = self.apply(now, Command::Release(lease));
                }
            }
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
                    Some(waiter) => self.held.push(Held::Outcome {
                        reply: waiter.reply,
                        outcome: Ok(Outcome::Acquired(acquired)),
                        returns: true,
                    }),
                    None => self.give_back(now, &acquired),
                }
            }
        }
    }

    fn give_back(&mut self, now: UnixMillis, acquired: &Acquired) {
        for lease in wait::fresh(acquired) {
            let _ = self.apply(now, Command::Release(lease));
        }
    }

    fn publish(&mut self) {
        if self.live.receiver_count() == 0 {
            return;
        }
        for event in self.effects.events.drain(..) {
            // Fails only when the last watcher just left.
            let _ = self.live.send(Arc::new(event));
        }
    }

    fn answer(&mut self, now: UnixMillis) {
        for held in self.held.drain(..) {
            match held {
                Held::Outcome {
                    reply,
                    outcome,
                    returns,
                } => {
                    if let Err(Ok(Outcome::Acquired(acquired))) = reply.send(outcome)
                        && returns
                    {
                        self.returned.extend(wait::fresh(&acquired));
                    }
                }
                Held::Glimpse(glimpse) => glimpse(None),
                Held::Watch { snapshot, reply } => {
                    let _ = reply.send(Ok(Subscription {
                        revision: self.engine.revision(),
                        events: self.live.subscribe(),
                        snapshot: snapshot.then(|| Box::new(self.engine.snapshot(now))),
                    }));
                }
            }
        }
    }
}
