//! Waiting for a key (L6): the queue is in Redis, and answers come to the replica that asked, by a
//! channel, or with its next sign of life when the channel failed.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt;
use lease::{Acquire, Acquired, Error, Want};
use tokio::{sync::oneshot, time::timeout};

use super::{
    Inner,
    batch::{self, Command},
    commands,
    link::Repeat,
    wire::{self, Decision},
};

/// How often a replica with waiters says that it lives.
const BEAT: Duration = Duration::from_secs(1);
/// How often a wait asks for itself, so that a lost queue is noticed.
const ASK: Duration = Duration::from_secs(2);
/// After its end, a wait whose store does not answer is given up after this.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause between attempts to listen again.
const AGAIN: Duration = Duration::from_millis(200);

/// The waits of this replica.
#[derive(Default)]
pub(super) struct Waits {
    last: AtomicU64,
    open: Mutex<HashMap<String, oneshot::Sender<Result<Acquired, Error>>>>,
    /// Answers that have arrived and can be removed in Redis.
    seen: Mutex<Vec<String>>,
}

impl Waits {
    fn deliver(&self, json: &[u8]) {
        let Ok((name, answer)) = wire::answer_of_wait(json) else {
            return;
        };
        let waiter = lock(&self.open).remove(&name);
        if let Some(waiter) = waiter {
            let acquired = wire::decision(&answer).and_then(|decision| match decision {
                Decision::Now(acquired) => Ok(acquired),
                Decision::Waiting(_) | Decision::Gone => Err(wire::broken("an answer")),
            });
            // A waiter that is gone meanwhile abandons its wait, which gives the grant back.
            let _ = waiter.send(acquired);
        }
    }

    fn is_idle(&self) -> bool {
        lock(&self.open).is_empty() && lock(&self.seen).is_empty()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A wait under way; when it is dropped unanswered, it leaves its queues.
struct Ticket {
    inner: Arc<Inner>,
    name: String,
    settled: bool,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        lock(&self.inner.waits.open).remove(&self.name);
        if self.settled {
            return;
        }
        let (inner, name) = (self.inner.clone(), std::mem::take(&mut self.name));
        self.inner.runtime.clone().spawn(async move {
            let mut call = inner.call();
            call.arg(&inner.replica).arg(&name);
            // Without it the wait ends by itself at its deadline.
            if let Err(error) = inner
                .link
                .run(&inner.scripts.abandon, &call, Repeat::Safe)
                .await
            {
                tracing::debug!(%error, "a wait could not be abandoned");
            }
        });
    }
}

/// Asks for keys, and waits as long as the request says.
pub(super) async fn acquire(inner: &Arc<Inner>, request: Acquire) -> Result<Acquired, Error> {
    // For the same holder a repeated grant is the same grant; a second slot of a pool is not.
    let repeat = match request.want {
        Want::All(_) => Repeat::Safe,
        Want::Any(_) => Repeat::Never,
    };
    let mut call = inner.call();
    call.arg("acquire");
    let keys = request.want.keys().len();
    if request.wait_ms == 0 {
        call.arg("").arg("");
        commands::request(&mut call, &request)?;
        let reply = batch::decide(inner, Command { call, keys, repeat }).await?;
        return match wire::decision(&reply)? {
            Decision::Now(acquired) => Ok(acquired),
            Decision::Waiting(_) | Decision::Gone => Err(wire::broken("an answer")),
        };
    }
    let number = inner.waits.last.fetch_add(1, Ordering::Relaxed);
    let name = format!("{}:{number}", inner.replica);
    let (sender, receiver) = oneshot::channel();
    lock(&inner.waits.open).insert(name.clone(), sender);
    let mut ticket = Ticket {
        inner: inner.clone(),
        name,
        settled: false,
    };
    call.arg(&inner.replica).arg(&ticket.name);
    commands::request(&mut call, &request)?;
    // A wait that was sent twice would stand in the queue twice, so it is not repeated. It goes
    // alone: when its caller goes away, it must be on its way before it is abandoned.
    let repeat = Repeat::Never;
    let reply = batch::alone(inner, &Command { call, keys, repeat }, repeat).await?;
    let answer = match wire::decision(&reply)? {
        Decision::Now(acquired) => Ok(acquired),
        Decision::Waiting(left) => wait(inner, &ticket.name, left, receiver).await,
        Decision::Gone => Err(wire::broken("an answer")),
    };
    if answer.is_ok() {
        ticket.settled = true;
        lock(&inner.waits.seen).push(ticket.name.clone());
    }
    answer
}

async fn wait(
    inner: &Inner,
    name: &str,
    left_ms: u64,
    mut receiver: oneshot::Receiver<Result<Acquired, Error>>,
) -> Result<Acquired, Error> {
    let mut left = Duration::from_millis(left_ms);
    let mut late = Duration::ZERO;
    loop {
        // A moment more than is left, so that the store agrees that the wait is over.
        let pause = left.saturating_add(Duration::from_millis(1)).min(ASK);
        match timeout(pause, &mut receiver).await {
            Ok(Ok(answer)) => return answer,
            Ok(Err(_)) => return Err(Error::Unavailable("the store is closed".into())),
            Err(_) => left = left.saturating_sub(pause),
        }
        let mut call = inner.call();
        call.arg(&inner.replica).arg(name);
        let reply = inner
            .link
            .run(&inner.scripts.wait, &call, Repeat::Never)
            .await;
        match reply.and_then(|reply| wire::decision(&reply)) {
            Ok(Decision::Now(acquired)) => return Ok(acquired),
            Ok(Decision::Waiting(ms)) => left = Duration::from_millis(ms),
            Ok(Decision::Gone) => {
                // The answer may be on its way through the channel.
                return match timeout(AGAIN, &mut receiver).await {
                    Ok(Ok(answer)) => answer,
                    _ => Err(Error::Unavailable("the queue was lost".into())),
                };
            }
            Err(error) if left.is_zero() && late >= PATIENCE => return Err(error),
            Err(_) if left.is_zero() => {
                late += AGAIN;
                left = AGAIN;
            }
            Err(_) => {}
        }
    }
}

/// Begins to listen for answers, and returns once it does (or after a failed attempt, which goes on
/// in the background).
pub(super) async fn start(inner: &Arc<Inner>) {
    let (ready, listening) = oneshot::channel();
    let stop = inner.stop.clone();
    let task = listen(inner.clone(), ready);
    inner.runtime.spawn(async move {
        stop.run_until_cancelled(task).await;
    });
    // The sender is dropped when the first attempt failed.
    let _ = timeout(inner.link.connect_timeout(), listening).await;
}

async fn listen(inner: Arc<Inner>, ready: oneshot::Sender<()>) {
    let mut ready = Some(ready);
    loop {
        if let Err(error) = hear(&inner, &mut ready).await {
            tracing::debug!(%error, "not listening for waiters");
        }
        ready = None;
        tokio::time::sleep(AGAIN).await;
    }
}

async fn hear(inner: &Inner, ready: &mut Option<oneshot::Sender<()>>) -> Result<(), Error> {
    let (mut channel, generation) =
        super::feed::subscribe(inner, inner.keys.wake(&inner.replica)).await?;
    if !inner.waits.is_idle() {
        beat(inner, true).await?;
    }
    if let Some(ready) = ready.take() {
        let _ = ready.send(());
    }
    loop {
        match timeout(BEAT, channel.next()).await {
            Ok(Some(message)) => inner.waits.deliver(message.get_payload_bytes()),
            Ok(None) => return Err(Error::Unavailable("the channel was closed".into())),
            Err(_) => {
                if !inner.waits.is_idle() {
                    beat(inner, false).await?;
                }
                // Another server decides now: listen there.
                if inner.link.generation() != generation {
                    return Ok(());
                }
            }
        }
    }
}

/// Says that this replica lives and which answers it has, and takes those that the channel lost.
async fn beat(inner: &Inner, anew: bool) -> Result<(), Error> {
    let seen = std::mem::take(&mut *lock(&inner.waits.seen));
    let mut call = inner.call();
    call.arg(&inner.replica)
        .arg(if anew { "1" } else { "0" })
        .number(seen.len() as u64);
    for name in &seen {
        call.arg(name);
    }
    let reply = inner
        .link
        .run(&inner.scripts.beat, &call, Repeat::Safe)
        .await?;
    for answer in wire::items(&reply) {
        if let ::redis::Value::BulkString(json) = answer {
            inner.waits.deliver(json);
        }
    }
    Ok(())
}
