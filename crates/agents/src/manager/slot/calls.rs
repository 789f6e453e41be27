//! What a slot says to its worker, and what the worker answers.

use std::time::Duration;

use http::{Method, StatusCode};
use lease::BootMillis;
use leasehold_api::worker::worker_paths;
use tokio::sync::mpsc;

use super::{
    super::{
        Context,
        process::{Ending, Pending, Process, Shard},
        timing::Timing,
    },
    Stop,
};

/// How often a worker that starts is asked whether it is there.
pub(super) const KNOCK_MS: u64 = 50;
/// How long a worker may take to answer.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Between two attempts to give a worker its cameras.
pub(super) const RETRY_MS: u64 = 200;
/// From SIGTERM to SIGKILL, where there is time.
pub(super) const TERMINATE_GRACE: Duration = Duration::from_secs(5);

/// An answer of a worker.
pub(super) enum Note {
    Health {
        id: String,
        ok: bool,
    },
    Ready {
        id: String,
        ok: bool,
    },
    Posted {
        id: String,
        outcome: Option<StatusCode>,
    },
    Drained {
        id: String,
        ok: bool,
    },
}

pub(super) fn end(process: &mut Process, ending: Ending, grace: Duration) {
    if process.ending.is_none() || grace.is_zero() {
        process.ending.get_or_insert(ending);
        if process.child.stop(grace).is_err() {
            process.child.kill_by_hand();
        }
    }
}

/// Drain, then SIGTERM, then SIGKILL; or SIGKILL now.
pub(super) fn stop_process(
    context: &Context,
    notes: &mpsc::Sender<Note>,
    process: &mut Process,
    stop: Stop,
    now: BootMillis,
) {
    if stop == Stop::Now {
        if !process.terminated {
            process.terminated = true;
            process.ending = Some(Ending::Stopping);
            if process.child.stop(Duration::ZERO).is_err() {
                process.child.kill_by_hand();
            }
        }
        return;
    }
    match process.drain_until {
        None => {
            let grace = process.command.drain_grace_seconds.millis();
            process.drain_until = Some(now.plus(grace));
            let (link, notes, id) = (context.link.clone(), notes.clone(), process.id.clone());
            let url = process.url(worker_paths::DRAIN);
            let up = process.up;
            tokio::spawn(async move {
                let answer = link.call(Method::POST, &url, None, CALL_LIMIT).await;
                let ok = up && answer.is_ok_and(|(status, _)| status.is_success());
                let _ = notes.send(Note::Drained { id, ok }).await;
            });
        }
        Some(until) if now >= until => end(process, Ending::Stopping, TERMINATE_GRACE),
        Some(_) => {}
    }
}

/// Asks for health, or with `ready` whether enough cameras work.
pub(super) fn check(
    context: &Context,
    notes: &mpsc::Sender<Note>,
    process: &mut Process,
    now: BootMillis,
    ready: bool,
) {
    let pause = if process.up && !ready {
        process.command.health_interval_seconds.millis()
    } else {
        KNOCK_MS
    };
    if process.checking || now.since(process.checked_at) < pause {
        return;
    }
    process.checking = true;
    process.checked_at = now;
    let (link, notes, id) = (context.link.clone(), notes.clone(), process.id.clone());
    let path = if ready {
        worker_paths::READY
    } else {
        worker_paths::HEALTH
    };
    let url = process.url(path);
    tokio::spawn(async move {
        let answer = link.call(Method::GET, &url, None, CALL_LIMIT).await;
        let ok = answer.is_ok_and(|(status, _)| status.is_success());
        let note = if ready {
            Note::Ready { id, ok }
        } else {
            Note::Health { id, ok }
        };
        let _ = notes.send(note).await;
    });
}

/// Gives a worker its new full set.
pub(super) fn post(
    context: &Context,
    notes: &mpsc::Sender<Note>,
    process: &mut Process,
    index: usize,
    generation: u64,
    set: Shard,
    timing: Timing,
) {
    let now = context.clock.boot();
    let body = match process.write_config(context, index, generation, &set, true) {
        Ok(body) => body,
        Err(error) => {
            tracing::warn!(worker = process.id, %error, "config file not written");
            process.retry_at = now.plus(RETRY_MS);
            return;
        }
    };
    let removes = process.running.keys().any(|name| !set.contains_key(name));
    process.pending = Some(Pending {
        set,
        sent: now,
        removes,
        publish: true,
    });
    // Before the worker knows of a camera, its guardian knows until when.
    process.order_deadline(now, timing);
    let (link, notes, id) = (context.link.clone(), notes.clone(), process.id.clone());
    let url = process.url(worker_paths::CAMERAS);
    tokio::spawn(async move {
        let answer = link.call(Method::POST, &url, Some(body), CALL_LIMIT).await;
        let outcome = match answer {
            Ok((status, _)) => Some(status),
            Err(error) => {
                tracing::debug!(worker = id, %error, "worker not reached");
                None
            }
        };
        let _ = notes.send(Note::Posted { id, outcome }).await;
    });
}
