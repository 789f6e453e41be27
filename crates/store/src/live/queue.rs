//! The events that wait for one watcher: put in one by one, taken out all at once, and its task is woken once
//! for a batch.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use lease::Event;

use super::Next;

/// For how many events room stays allocated: a watcher that had many at a time is not larger ever after.
const KEPT: usize = 128;

/// What a watcher sees instead of further events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// It has to begin again.
    Missed,
    /// The store is closed.
    Closed,
}

/// The sender's end.
pub(super) struct Queue(Arc<Shared>);

/// The watcher's end.
pub(super) struct Reader {
    shared: Arc<Shared>,
    /// Taken out already.
    taken: VecDeque<Arc<Event>>,
}

struct Shared {
    room: usize,
    // Held for a push or a swap.
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    events: VecDeque<Arc<Event>>,
    end: Option<End>,
    waker: Option<Waker>,
}

/// A queue with room for so many events, beside as many that were taken out together.
pub(super) fn new(room: usize) -> (Queue, Reader) {
    let shared = Arc::new(Shared {
        room,
        waiting: Mutex::default(),
    });
    let reader = Reader {
        shared: shared.clone(),
        taken: VecDeque::new(),
    };
    (Queue(shared), reader)
}

impl Shared {
    /// Every critical section leaves a whole value behind.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Puts an event in. Returns whether there was room, and who is to be woken; without room the watcher
    /// has to begin again.
    pub fn push(&self, event: Arc<Event>) -> (bool, Option<Waker>) {
        let mut waiting = self.0.waiting();
        let has_room = waiting.events.len() < self.0.room;
        if has_room {
            waiting.events.push_back(event);
        } else {
            waiting.end = Some(End::Missed);
        }
        (has_room, waiting.waker.take())
    }

    /// Nothing further comes but this.
    pub fn end(&self, end: End) {
        let waker = {
            let mut waiting = self.0.waiting();
            waiting.end = Some(end);
            waiting.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Reader {
    /// What comes next. Dropping it loses nothing.
    pub async fn next(&mut self) -> Next {
        poll_fn(|context| match self.take(Some(context.waker())) {
            Some(next) => Poll::Ready(next),
            None => Poll::Pending,
        })
        .await
    }

    /// What is here already.
    pub fn ready(&mut self) -> Option<Next> {
        self.take(None)
    }

    fn take(&mut self, waker: Option<&Waker>) -> Option<Next> {
        if let Some(event) = self.taken.pop_front() {
            return Some(Next::Event(event));
        }
        let mut waiting = self.shared.waiting();
        // What was missed comes first: an event before the hole would only delay the snapshot.
        if waiting.end == Some(End::Missed) {
            return Some(Next::Missed);
        }
        if self.taken.capacity() > KEPT {
            self.taken = VecDeque::new();
        }
        std::mem::swap(&mut self.taken, &mut waiting.events);
        if let Some(event) = self.taken.pop_front() {
            return Some(Next::Event(event));
        }
        if waiting.end == Some(End::Closed) {
            return Some(Next::Closed);
        }
        if let Some(waker) = waker {
            waiting.waker = Some(waker.clone());
        }
        None
    }
}
