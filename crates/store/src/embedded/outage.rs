//! The disk is full, read-only or broken: what still works, and the way back.
//!
//! The engine is ahead of the disk by the batch that failed, so it is built again from what is durable,
//! as after a crash. From there on time stands still for the leases: none lapses, renewals and reads
//! go on, and whoever wants a change learns that nothing happened. The disk is tried again every few
//! seconds; once it takes a write, the store starts over, and the event of the restart says so.

use std::sync::atomic::Ordering;

use lease::{Error, UnixMillis, engine::RenewalEvents};
use leasehold_clock::Backoff;

use super::{journal::Failure, start, writer::Writer};

/// The first pause before the disk is tried again, and the longest, in ms.
const PAUSE_MS: (u64, u64) = (500, 15_000);

/// A disk that does not take what must be written.
pub(super) struct Outage {
    /// When it began: the time that it is for the leases.
    pub since: UnixMillis,
    /// When the disk is tried again.
    pub next_try: UnixMillis,
    /// Not even reading works: nothing can be answered.
    pub blind: bool,
    backoff: Backoff,
    why: String,
}

impl Outage {
    /// What callers get: nothing happened, and it may work later.
    pub fn error(&self) -> Error {
        Error::Unavailable(format!(
            "the store takes no changes until its disk does: {}",
            self.why
        ))
    }
}

impl Writer {
    /// The last batch could not be written.
    pub(super) fn begin_outage(&mut self, failure: &Failure, now: UnixMillis) {
        tracing::error!(%failure, "the store cannot write to its disk; renewals and reads continue");
        let mut backoff = Backoff::new(PAUSE_MS.0, PAUSE_MS.1);
        self.outage = Some(Outage {
            since: now,
            next_try: now.plus(backoff.next_ms()),
            blind: false,
            backoff,
            why: failure.to_string(),
        });
        self.rebuild();
    }

    /// Takes the engine back to what is durable, with a full ttl for every lease.
    pub(super) fn rebuild(&mut self) {
        let Some(outage) = &mut self.outage else {
            return;
        };
        let (since, mut options) = (outage.since, self.options.clone());
        // Neither a kept renewal nor a key that is forgotten can be written.
        if options.renewals == RenewalEvents::Kept {
            options.renewals = RenewalEvents::Live;
        }
        (options.idle_keys, options.idle_ms) = (usize::MAX, u64::MAX);
        let restored = self.journal.reopen().and_then(|()| {
            self.journal.restore(options, |slot| {
                if let Some(lease) = &mut slot.lease {
                    lease.expires_at = lease.expires_at.max(since.plus(lease.ttl.millis()));
                }
            })
        });
        match restored {
            Ok(engine) => {
                self.engine = engine;
                outage.blind = false;
            }
            Err(failure) => {
                tracing::error!(%failure, "the store cannot be read either; nothing can be answered");
                outage.blind = true;
                outage.why = failure.to_string();
            }
        }
    }

    /// Tries the disk when it is time to. Says whether the outage is over.
    pub(super) fn recover(&mut self, now: UnixMillis) -> bool {
        let Some(outage) = &mut self.outage else {
            return true;
        };
        if now < outage.next_try {
            return false;
        }
        let recovered = self.journal.probe(now).and_then(|()| {
            self.journal.reopen()?;
            let mut engine = self.journal.restore(self.options.clone(), |_| {})?;
            let guard = self.folder.as_mut().map(|folder| &mut folder.guard);
            let event = start::resume(&mut self.journal, &mut engine, &self.time, guard)?;
            Ok((engine, event))
        });
        match recovered {
            Ok((engine, events)) => {
                tracing::info!("the store can write to its disk again");
                self.engine = engine;
                self.outage = None;
                self.degraded.store(false, Ordering::Release);
                self.live.publish(events);
                true
            }
            Err(failure) => {
                outage.why = failure.to_string();
                outage.next_try = now.plus(outage.backoff.next_ms());
                false
            }
        }
    }
}
