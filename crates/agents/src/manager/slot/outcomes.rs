//! How processes and calls to them came out: ends, crashes and answers.

use http::StatusCode;

use super::{
    super::{breaker::Verdict, process::Ending},
    Desired, Slot,
    calls::{Note, RETRY_MS},
};
use crate::supervise::{Cause, Exit};

impl Slot {
    pub(super) fn process_ended(&mut self, exit: Exit, desired: &Desired) {
        let Some(process) = self.process.take() else {
            return;
        };
        let now = self.context.clock.boot();
        let lived_ms = now.since(process.started_at);
        self.start_at = now;
        let reason = process.ending.map_or(exit.cause.as_str(), Ending::word);
        tracing::info!(
            worker = process.id,
            end = %exit.end,
            reason,
            lived_ms,
            "worker ended"
        );
        match (process.ending, exit.cause) {
            (Some(Ending::Unhealthy), _) => self.crashed(lived_ms, "unhealthy", desired),
            (Some(_), _) => {}
            // It was asked to finish, and did.
            (None, Cause::Own) if desired.stop.is_some() => {}
            (None, Cause::Deadline) => {
                tracing::warn!(
                    worker = process.id,
                    "worker stopped at its leases' deadline"
                );
                self.restarted("deadline");
            }
            (None, _) => self.crashed(lived_ms, "crashed", desired),
        }
    }

    pub(super) fn restarted(&mut self, reason: &'static str) {
        self.restarts += 1;
        let shard = format!("{}-{}", self.context.runner_id, self.index);
        self.context.metrics.restarted(&shard, reason);
    }

    pub(super) fn crashed(&mut self, lived_ms: u64, reason: &'static str, desired: &Desired) {
        self.restarted(reason);
        let now = self.context.clock.boot();
        let quick_ms = desired.command.start_grace_seconds.millis();
        match self.breaker.crashed(lived_ms, quick_ms) {
            Verdict::Restart { after_ms } => {
                self.start_at = now.plus(after_ms);
            }
            Verdict::GiveUp => {
                tracing::error!(
                    shard = self.index,
                    "worker crashed repeatedly; its cameras go back to the pool"
                );
                self.start_at = now.plus(RETRY_MS);
                // A full queue has this slot in it already, or will be asked again by the next crash.
                let _ = self.context.gave_up.try_send(self.index);
            }
        }
    }

    pub(super) fn heard(&mut self, note: &Note) {
        let now = self.context.clock.boot();
        let id = match note {
            Note::Health { id, .. }
            | Note::Ready { id, .. }
            | Note::Posted { id, .. }
            | Note::Drained { id, .. } => id,
        };
        let green = self.green.as_mut().map(|(green, _)| green);
        let found = self
            .process
            .iter_mut()
            .chain(green)
            .find(|process| process.id == *id);
        let Some(process) = found else { return };
        match note {
            Note::Health { ok, .. } => {
                process.checking = false;
                if *ok {
                    process.up = true;
                    process.last_seen = now;
                }
            }
            Note::Ready { ok, .. } => {
                process.checking = false;
                process.up |= *ok;
                process.ready = *ok;
            }
            Note::Drained { ok, .. } => {
                if !*ok {
                    process.drain_until = Some(now);
                }
            }
            Note::Posted { outcome, .. } => {
                let Some(pending) = process.pending.take() else {
                    return;
                };
                match *outcome {
                    Some(status) if status.is_success() => {
                        if pending.removes {
                            let took_ms = now.since(pending.sent);
                            self.context.metrics.takeaway.observe(took_ms as f64 / 1e3);
                        }
                        process.running = pending.set;
                        process.publish = pending.publish;
                        process.last_seen = now;
                        process.deaf_since = None;
                    }
                    outcome => {
                        let lacks = outcome.is_some_and(|status| {
                            matches!(
                                status,
                                StatusCode::NOT_FOUND
                                    | StatusCode::METHOD_NOT_ALLOWED
                                    | StatusCode::NOT_IMPLEMENTED
                            )
                        });
                        process.takes_changes &= !lacks;
                        process.deaf_since.get_or_insert(pending.sent);
                        tracing::warn!(
                            worker = process.id,
                            status = outcome.map(|status| status.as_u16()),
                            "worker did not accept its cameras"
                        );
                        // It may have taken a part of them.
                        if !lacks {
                            for (name, it) in pending.set {
                                process.running.entry(name).or_insert(it);
                            }
                        }
                        process.retry_at = now.plus(RETRY_MS);
                    }
                }
            }
        }
    }
}
