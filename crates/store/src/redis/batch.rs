//! Acquires and releases of many callers go to Redis together: while some are on their way, others
//! collect, and then go as one script that decides them one after the other. What the script costs by
//! itself, and writing the counters and indexes, is shared by all of them; a caller that is alone
//! sends by itself and waits for nobody.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ::redis::Value;
use lease::Error;
use tokio::sync::oneshot;

use super::{
    Inner,
    failure::Failure,
    link::{Call, Repeat},
    wire,
};

/// How many scripts are on their way concurrently: one is decided while the other's answers are read.
const ON_THE_WAY: usize = 2;
/// How many commands one script decides at most, and how many keys they may name together (a single
/// command may name more): longer ones would keep others waiting.
const COMMANDS: usize = 64;
const KEYS: usize = 256;
/// How many commands may wait to be sent: more than that means that Redis is too slow for all of them.
const QUEUE: usize = 4096;

/// A command that waits to be sent.
pub(super) struct Command {
    /// Its arguments.
    pub call: Call,
    /// How many keys it names.
    pub keys: usize,
    /// Whether it may be sent twice.
    pub repeat: Repeat,
}

struct Queued {
    command: Command,
    reply: oneshot::Sender<Result<Value, Error>>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Queued>,
    on_the_way: usize,
    /// Whether a caller sends by itself.
    lone: bool,
}

/// The commands of this replica that wait to be sent.
#[derive(Default)]
pub(super) struct Batches {
    state: Mutex<State>,
}

impl Batches {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way of a caller that found nobody else under way.
    fn lone(&self) -> Option<Lone<'_>> {
        let mut state = self.lock();
        let free = !state.lone && state.on_the_way == 0 && state.queue.is_empty();
        state.lone |= free;
        free.then(|| Lone(self))
    }

    /// Stands in the queue, and takes a place on the way if one became free, so that somebody is
    /// there to empty it.
    fn join(&self, queued: Queued) -> Result<bool, Error> {
        let mut state = self.lock();
        if state.queue.len() >= QUEUE {
            return Err(Error::Unavailable("too many requests are waiting".into()));
        }
        state.queue.push_back(queued);
        let free = state.on_the_way < ON_THE_WAY;
        state.on_the_way += usize::from(free);
        Ok(free)
    }

    /// Redis does not answer: whoever waits to be sent is answered now, instead of waiting as long
    /// again.
    fn give_up(&self) {
        let queued = std::mem::take(&mut self.lock().queue);
        fail(queued, &Error::Unavailable("no answer in time".into()));
    }

    /// What goes next, if anything waits. Whoever asks gives up its place otherwise.
    fn next(&self) -> Option<Vec<Queued>> {
        let mut state = self.lock();
        let (mut batch, mut keys) = (Vec::new(), 0);
        while batch.len() < COMMANDS && keys < KEYS {
            let Some(queued) = state.queue.pop_front() else {
                break;
            };
            // A caller that went away before anything was sent asks for nothing.
            if !queued.reply.is_closed() {
                keys += queued.command.keys;
                batch.push(queued);
            }
        }
        if batch.is_empty() {
            state.on_the_way -= 1;
            return None;
        }
        Some(batch)
    }
}

/// Held by a caller that sends by itself, without a task in between. Nobody waits for it: a caller that
/// stops to poll keeps it, and the others go the way of [`InFlight`].
struct Lone<'a>(&'a Batches);

impl Drop for Lone<'_> {
    fn drop(&mut self) {
        self.0.lock().lone = false;
    }
}

/// A place on the way, held by the task that sends and never by a caller: a caller may stop to poll its
/// future at any point. When it is given up, those who wait get it.
struct InFlight(Arc<Inner>);

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(batch) = self.0.batches.next() {
            let inner = self.0.clone();
            self.0.runtime.spawn(async move {
                let _place = Self(inner.clone());
                send(&inner, batch).await;
            });
        }
    }
}

/// Has one command decided.
pub(super) async fn decide(inner: &Arc<Inner>, command: Command) -> Result<Value, Error> {
    if let Some(_lone) = inner.batches.lone() {
        return alone(inner, &command, command.repeat).await;
    }
    let (reply, answer) = oneshot::channel();
    let place = inner.batches.join(Queued { command, reply })?;
    drop(place.then(|| InFlight(inner.clone())));
    let answer = answer.await;
    answer.unwrap_or_else(|_| Err(Error::Unknown("the store was closed".into())))
}

/// Sends one command by itself.
pub(super) async fn alone(
    inner: &Inner,
    command: &Command,
    repeat: Repeat,
) -> Result<Value, Error> {
    let mut call = inner.call();
    call.number(1).all_of(&command.call);
    match run(inner, &call, repeat).await {
        Ok(Value::Array(mut answers)) if answers.len() == 1 => Ok(answers.swap_remove(0)),
        Ok(_) => Err(wire::broken("an answer")),
        Err(failure) => Err(failure.error),
    }
}

async fn run(inner: &Inner, call: &Call, repeat: Repeat) -> Result<Value, Failure> {
    let answer = inner.link.try_run(&inner.scripts.apply, call, repeat).await;
    if let Err(failure) = &answer
        && failure.is_silence()
    {
        inner.batches.give_up();
    }
    answer
}

async fn send(inner: &Inner, batch: Vec<Queued>) {
    let mut call = inner.call();
    call.number(batch.len() as u64);
    for queued in &batch {
        call.all_of(&queued.command.call);
    }
    let all_safe = batch.iter().all(|it| it.command.repeat == Repeat::Safe);
    let repeat = if all_safe {
        Repeat::Safe
    } else {
        Repeat::Never
    };
    match run(inner, &call, repeat).await {
        Ok(Value::Array(answers)) if answers.len() == batch.len() => {
            for (queued, answer) in batch.into_iter().zip(answers) {
                let _ = queued.reply.send(Ok(answer));
            }
        }
        Ok(_) => fail(batch, &wire::broken("an answer")),
        // It is not known whether they arrived: those that may be sent twice are, as they would be
        // alone.
        Err(failure) if failure.dropped && !all_safe => {
            let (safe, others): (Vec<_>, Vec<_>) = batch
                .into_iter()
                .partition(|it| it.command.repeat == Repeat::Safe);
            fail(others, &failure.error);
            for queued in safe {
                let answer = alone(inner, &queued.command, Repeat::Never).await;
                let _ = queued.reply.send(answer);
            }
        }
        Err(failure) => fail(batch, &failure.error),
    }
}

fn fail(batch: impl IntoIterator<Item = Queued>, error: &Error) {
    for queued in batch {
        let _ = queued.reply.send(Err(error.clone()));
    }
}
