//! Changes from where they are made to those who want them: each event goes only to the watchers whose
//! filter it matches. Watchers of one holder or one key are found by it, so that what one of them costs
//! does not grow with the number of the others.

mod queue;
mod watcher;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
};

use lease::{Event, HolderName, Key, Revision, Watching};
use queue::{End, Queue, Reader};

pub(crate) use watcher::{Joined, Source, Stretch, watch};

/// The live changes of one store, in order. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Live {
    shared: Arc<Shared>,
}

struct Shared {
    /// How many events may wait for one watcher before it has to begin again.
    room: usize,
    newest: AtomicU64,
    count: AtomicUsize,
    /// Each watcher that wants renewals has one more of it.
    renewals: Arc<()>,
    // A plain mutex: held while one batch of events is handed out, never over an await.
    seats: Mutex<Seats>,
}

#[derive(Default)]
struct Seats {
    last: u64,
    closed: bool,
    by_key: HashMap<Key, Vec<Seat>>,
    by_holder: HashMap<HolderName, Vec<Seat>>,
    others: Vec<Seat>,
}

/// One watcher as the sender sees it.
struct Seat {
    number: u64,
    watching: Arc<Watching>,
    events: Queue,
    _renewals: Option<Arc<()>>,
}

/// One watcher's events. Leaves when it is dropped.
pub(crate) struct Events {
    live: Live,
    number: u64,
    watching: Arc<Watching>,
    received: Reader,
}

/// What comes next on a watcher's stream.
pub(crate) enum Next {
    /// A wanted change.
    Event(Arc<Event>),
    /// The watcher was too slow, or the store's history is another one: begin again with a snapshot.
    Missed,
    /// The store is closed.
    Closed,
}

impl Live {
    pub fn new(room: usize, newest: Revision) -> Self {
        Self {
            shared: Arc::new(Shared {
                room: room.max(1),
                newest: AtomicU64::new(newest.get()),
                count: AtomicUsize::new(0),
                renewals: Arc::default(),
                seats: Mutex::default(),
            }),
        }
    }

    /// Whether anybody watches.
    pub fn is_watched(&self) -> bool {
        self.shared.count.load(Ordering::Relaxed) > 0
    }

    /// Whether anybody wants to see renewals.
    pub fn are_renewals_watched(&self) -> bool {
        Arc::strong_count(&self.shared.renewals) > 1
    }

    /// Up to where everything was handed out.
    pub fn newest(&self) -> Revision {
        Revision::new(self.shared.newest.load(Ordering::Acquire))
    }

    /// Joins: every wanted change after the revision that is returned will come.
    pub fn join(&self, watching: Arc<Watching>) -> (Revision, Events) {
        let (events, received) = queue::new(self.shared.room);
        let mut seats = self.seats();
        seats.last += 1;
        let number = seats.last;
        if seats.closed {
            events.end(End::Closed);
        } else {
            let seat = Seat {
                number,
                watching: watching.clone(),
                events,
                _renewals: watching.renewals.then(|| self.shared.renewals.clone()),
            };
            seats.row(&watching).push(seat);
            self.shared.count.fetch_add(1, Ordering::Relaxed);
        }
        let newest = self.newest();
        drop(seats);
        let events = Events {
            live: self.clone(),
            number,
            watching,
            received,
        };
        (newest, events)
    }

    /// Hands events out, in order, and notes how far the history has come.
    pub fn publish(&self, events: impl IntoIterator<Item = Event>) {
        let mut seats = self.is_watched().then(|| self.seats());
        let mut newest = 0;
        let (mut left, mut woken) = (0, Vec::new());
        for event in events {
            newest = newest.max(event.revision.get());
            if let Some(seats) = &mut seats {
                left += seats.offer(&Arc::new(event), &mut woken);
            }
        }
        self.shared.count.fetch_sub(left, Ordering::Relaxed);
        // After the events: whoever reads this has everything up to it in its queue.
        self.shared.newest.fetch_max(newest, Ordering::AcqRel);
        drop(seats);
        // At the end, so that a watcher finds everything at once.
        for waker in woken {
            waker.wake();
        }
    }

    /// The history is another one, or has a hole: everybody begins again from `newest`.
    pub fn begin_again(&self, newest: Revision) {
        let mut seats = self.seats();
        let left = seats.remove(|_| true, End::Missed);
        self.shared.count.fetch_sub(left, Ordering::Relaxed);
        self.shared.newest.store(newest.get(), Ordering::Release);
    }

    /// Changes that the history does not keep were dropped: those who want them begin again.
    pub fn begin_again_with_renewals(&self) {
        let mut seats = self.seats();
        let left = seats.remove(|seat| seat.watching.renewals, End::Missed);
        self.shared.count.fetch_sub(left, Ordering::Relaxed);
    }

    /// Ends every stream: the store is closed.
    pub fn close(&self) {
        let mut seats = self.seats();
        seats.closed = true;
        let left = seats.remove(|_| true, End::Closed);
        self.shared.count.fetch_sub(left, Ordering::Relaxed);
    }

    /// Every critical section leaves a whole value behind.
    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.shared
            .seats
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seats {
    /// Where watchers with this filter sit.
    fn row(&mut self, watching: &Watching) -> &mut Vec<Seat> {
        match (&watching.key, &watching.holder) {
            (Some(key), _) => self.by_key.entry(key.clone()).or_default(),
            (None, Some(holder)) => self.by_holder.entry(holder.clone()).or_default(),
            (None, None) => &mut self.others,
        }
    }

    /// Offers an event to those who may want it; returns how many seats became empty.
    fn offer(&mut self, event: &Arc<Event>, woken: &mut Vec<Waker>) -> usize {
        let mut left = hand_out(&mut self.others, event, woken);
        // Most often nobody has named a key or a holder: neither is hashed then.
        if !self.by_key.is_empty()
            && let Some(row) = self.by_key.get_mut(&event.key)
        {
            left += hand_out(row, event, woken);
        }
        if !self.by_holder.is_empty()
            && let Some(lease) = &event.lease
            && let Some(row) = self.by_holder.get_mut(&lease.holder.name)
        {
            left += hand_out(row, event, woken);
        }
        left
    }

    /// Takes seats away, whose watchers then see this.
    fn remove(&mut self, taken: impl Fn(&Seat) -> bool, end: End) -> usize {
        let mut left = 0;
        let rows = self
            .by_key
            .values_mut()
            .chain(self.by_holder.values_mut())
            .chain([&mut self.others]);
        for row in rows {
            row.retain(|seat| {
                let taken = taken(seat);
                if taken {
                    left += 1;
                    seat.events.end(end);
                }
                !taken
            });
        }
        left
    }
}

/// Offers an event to a row of seats; those whose queue is full become empty.
fn hand_out(row: &mut Vec<Seat>, event: &Arc<Event>, woken: &mut Vec<Waker>) -> usize {
    let before = row.len();
    row.retain(|seat| {
        if !seat.watching.matches(event) {
            return true;
        }
        let (has_room, waiting) = seat.events.push(event.clone());
        woken.extend(waiting);
        has_room
    });
    before - row.len()
}

impl Events {
    /// What comes next.
    pub async fn next(&mut self) -> Next {
        self.received.next().await
    }

    /// What is here already.
    pub fn ready(&mut self) -> Option<Next> {
        self.received.ready()
    }

    /// Up to where everything was handed out.
    pub fn newest(&self) -> Revision {
        self.live.newest()
    }

    /// Whether the store is closed.
    pub fn is_closed(&self) -> bool {
        self.live.seats().closed
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let mut seats = self.live.seats();
        let row = seats.row(&self.watching);
        let before = row.len();
        row.retain(|seat| seat.number != self.number);
        let left = before - row.len();
        let empty = row.is_empty();
        if empty {
            match (&self.watching.key, &self.watching.holder) {
                (Some(key), _) => drop(seats.by_key.remove(key)),
                (None, Some(holder)) => drop(seats.by_holder.remove(holder)),
                (None, None) => {}
            }
        }
        drop(seats);
        self.live.shared.count.fetch_sub(left, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Wake},
    };

    use lease::{EventKind, UnixMillis};

    use super::*;

    fn event(revision: u64, key: &str) -> Event {
        Event {
            revision: Revision::new(revision),
            at: UnixMillis::new(1),
            kind: EventKind::RecordPut,
            key: key.parse().unwrap(),
            lease: None,
            cause: None,
            detail: None,
        }
    }

    fn watching(key: &str) -> Arc<Watching> {
        Arc::new(Watching::key(key.parse().unwrap()))
    }

    #[test]
    fn events_go_only_to_those_who_want_them() {
        let live = Live::new(8, Revision::new(3));
        let (from, mut one) = live.join(watching("job:1"));
        let (_, mut all) = live.join(Arc::new(Watching::default()));
        assert_eq!(from, Revision::new(3));
        live.publish([event(4, "job:1"), event(5, "job:2")]);
        let Some(Next::Event(first)) = one.ready() else {
            panic!("wanted")
        };
        assert_eq!(first.revision, Revision::new(4));
        assert!(one.ready().is_none(), "not wanted");
        assert_eq!(one.newest(), Revision::new(5), "but passed over");
        assert!(matches!(all.ready(), Some(Next::Event(_))));
        assert!(matches!(all.ready(), Some(Next::Event(_))));
        assert!(!live.are_renewals_watched());
        let (_, renewals) = live.join(Arc::new(Watching::everything()));
        assert!(live.are_renewals_watched());
        drop((one, all, renewals));
        assert!(!live.is_watched() && !live.are_renewals_watched());
        assert!(live.seats().by_key.is_empty(), "nothing is left behind");
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_batch_wakes_its_watcher_once() {
        let live = Live::new(8, Revision::ZERO);
        let (_, mut events) = live.join(watching("job:1"));
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let mut context = Context::from_waker(&waker);
        let mut poll = || match pin!(events.next()).poll(&mut context) {
            Poll::Ready(Next::Event(event)) => Some(event.revision.get()),
            Poll::Ready(_) => panic!("it has not ended"),
            Poll::Pending => None,
        };
        assert_eq!(poll(), None);
        live.publish([event(1, "job:1"), event(2, "job:1"), event(3, "job:2")]);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert_eq!((poll(), poll(), poll()), (Some(1), Some(2), None));
        live.publish([event(4, "job:1")]);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
        assert_eq!(poll(), Some(4));
    }

    #[test]
    fn whoever_is_too_slow_begins_again() {
        let live = Live::new(2, Revision::ZERO);
        let (_, mut slow) = live.join(watching("job:1"));
        for revision in 1..=3 {
            live.publish([event(revision, "job:1")]);
        }
        assert!(matches!(slow.ready(), Some(Next::Missed)));
        assert!(!live.is_watched(), "its seat is free");
        let (_, mut next) = live.join(watching("job:1"));
        live.begin_again(Revision::new(1));
        assert!(matches!(next.ready(), Some(Next::Missed)));
        let (from, mut last) = live.join(watching("job:1"));
        assert_eq!(from, Revision::new(1));
        live.close();
        assert!(matches!(last.ready(), Some(Next::Closed)));
        let (_, mut late) = live.join(watching("job:1"));
        assert!(matches!(late.ready(), Some(Next::Closed)));
    }
}
