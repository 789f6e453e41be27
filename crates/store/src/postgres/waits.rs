//! The waits of this replica (L6): their rows are in the database, their callers are here.

use std::{collections::HashMap, time::Duration};

use lease::{Acquired, Error};
use tokio::time::Instant;

use super::{
    Options,
    connect::Database,
    row,
    task::Task,
    writer::{Decided, Reply},
};

struct Wait {
    reply: Reply,
    deadline: Instant,
}

/// All waits whose callers are in this process.
pub(super) struct Waits {
    replica: String,
    /// How long after its end a wait whose answer cannot be fetched is given up.
    patience: Duration,
    timed: bool,
    waiting: HashMap<u64, Wait>,
    /// Whether an answer of the database got lost, so that nobody knows who still waits there.
    doubt: bool,
}

impl Waits {
    pub fn new(replica: String, options: &Options) -> Self {
        Self {
            replica,
            patience: options.statement_timeout,
            timed: options.timed_waits,
            waiting: HashMap::new(),
            doubt: false,
        }
    }

    /// Whether anything is left to look after.
    pub fn is_busy(&self) -> bool {
        self.doubt || !self.waiting.is_empty()
    }

    /// Whether something is to be looked after when its time comes.
    pub fn are_timed(&self) -> bool {
        self.timed && self.is_busy()
    }

    pub fn is_doubtful(&self) -> bool {
        self.doubt
    }

    pub fn keep_doubt(&mut self) {
        self.doubt = true;
    }

    /// When to look after the waits: when one ends, and at least every `interval`.
    pub fn next_look(&self, last: Instant, interval: Duration) -> Instant {
        let deadlines = self.waiting.values().map(|wait| wait.deadline);
        let next = deadlines.filter(|deadline| *deadline > last).min();
        next.unwrap_or(last + interval).min(last + interval)
    }

    /// A command became a wait.
    pub fn join(&mut self, ticket: u64, wait_ms: u64, reply: Reply) {
        let deadline = Instant::now() + Duration::from_millis(wait_ms);
        self.waiting.insert(ticket, Wait { reply, deadline });
    }

    /// A wait got its answer. Returns what must be given back when nobody is there to hear it.
    pub fn answer(&mut self, ticket: u64, decided: Decided) -> Vec<Task> {
        let unheard = match self.waiting.remove(&ticket) {
            Some(wait) => match wait.reply.send(Ok(decided)) {
                Err(Ok(unheard)) => unheard,
                _ => return Vec::new(),
            },
            None => decided,
        };
        give_back(&unheard)
    }

    /// Commands that end the waits of callers that went away.
    pub fn gone(&mut self) -> Vec<Task> {
        let gone: Vec<u64> = self
            .waiting
            .iter()
            .filter(|(_, wait)| wait.reply.is_closed())
            .map(|(ticket, _)| *ticket)
            .collect();
        gone.into_iter()
            .map(|ticket| {
                self.waiting.remove(&ticket);
                Task::Abandon(ticket)
            })
            .collect()
    }

    /// Answers callers whose time is long over that the database cannot be asked.
    pub fn expire(&mut self) {
        let now = Instant::now();
        let over: Vec<u64> = self
            .waiting
            .iter()
            .filter(|(_, wait)| wait.deadline + self.patience <= now)
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in over {
            if let Some(wait) = self.waiting.remove(&ticket) {
                // Should the database have granted it meanwhile, that is given back.
                self.doubt = true;
                let error = Error::Unavailable("the database cannot be asked".to_owned());
                let _ = wait.reply.send(Err(error));
            }
        }
    }

    /// After an answer got lost: compares what waits here with what waits there.
    pub async fn reconcile(&mut self, database: &Database) -> Result<(), Error> {
        const WAITING: &str = "SELECT ticket FROM lease_waiters WHERE replica = $1";
        let rows = database.read(WAITING, &[&self.replica]).await?;
        let mut there = Vec::with_capacity(rows.len());
        for row in &rows {
            there.push(row::count(row, 0)?);
        }
        let lost: Vec<u64> = self
            .waiting
            .keys()
            .copied()
            .filter(|ticket| !there.contains(ticket))
            .collect();
        for ticket in lost {
            if let Some(wait) = self.waiting.remove(&ticket) {
                let error = Error::Unknown("the answer to this wait got lost".to_owned());
                let _ = wait.reply.send(Err(error));
            }
        }
        self.doubt = false;
        for ticket in there {
            self.waiting.entry(ticket).or_insert_with(|| {
                // Its caller was answered that nobody knows; now nobody waits for it.
                let (reply, _) = tokio::sync::oneshot::channel();
                let deadline = Instant::now();
                Wait { reply, deadline }
            });
        }
        Ok(())
    }
}

/// What gives back what an unheard answer granted anew.
pub(super) fn give_back(unheard: &Decided) -> Vec<Task> {
    let Ok(Acquired::Granted { leases, .. }) = unheard.outcome() else {
        return Vec::new();
    };
    leases
        .iter()
        .filter(|lease| lease.renewed_at.is_none())
        .map(|lease| Task::release(lease.into()))
        .collect()
}
