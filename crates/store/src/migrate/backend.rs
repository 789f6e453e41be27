//! What a backend must be able to do to be moved from or to. Both halves work in pages, so that memory
//! stays bounded whatever a store holds.

use lease::{
    Answer, Event, Key, Record, Revision, Token, UnixMillis,
    engine::{Ended, StoredSlot},
};

use super::Maintenance;

/// How many items go from one backend to the other at a time: large enough that round trips do not
/// count, small enough that one step never blocks a database for long.
pub(crate) const PAGE: usize = 500;

/// The kind of the keys under which servers share their own background work.
const LEADERS: &str = "leadership";

/// Whether this key belongs to the servers themselves.
pub(crate) fn is_leadership(key: &Key) -> bool {
    key.kind() == LEADERS
}

/// What a backend says about itself as a whole. Leases of its leaders do not count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    /// The revision of the last change.
    pub revision: Revision,
    /// The revision before the first one of the store's life.
    pub base: Revision,
    /// The first revision from which on the history has every event; one above the newest when it
    /// has none.
    pub oldest: Revision,
    /// Every new token is larger than this.
    pub floor: Token,
    /// Keys with a token of their own.
    pub keys: u64,
    /// How many of them have a lease.
    pub live: u64,
    pub records: u64,
    pub events: u64,
}

impl Default for Head {
    /// Of a backend that nothing ever happened to.
    fn default() -> Self {
        Self {
            revision: Revision::ZERO,
            base: Revision::ZERO,
            oldest: Revision::new(1),
            floor: Token::ZERO,
            keys: 0,
            live: 0,
            records: 0,
            events: 0,
        }
    }
}

impl Head {
    /// Nothing would be lost if this backend were overwritten.
    pub fn is_empty(&self) -> bool {
        self.keys == 0 && self.records == 0 && self.events == 0
    }
}

/// A page, and where the next one starts.
pub(crate) struct Part<T> {
    pub items: Vec<T>,
    /// `None` after the last page.
    pub next: Option<String>,
}

impl<T> Part<T> {
    /// Nothing, and nothing after it.
    pub const fn none() -> Self {
        Self {
            items: Vec::new(),
            next: None,
        }
    }
}

impl<T> Default for Part<T> {
    fn default() -> Self {
        Self::none()
    }
}

/// What is written last, in one step that also opens the backend.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub base: Revision,
    pub oldest: Revision,
    pub floor: Token,
    /// The largest token that ever arrived.
    pub largest: Token,
    /// The news of the move itself. Its revision becomes the backend's.
    pub event: Event,
}

/// Looking at a backend. The first page of anything is asked for with an empty cursor.
pub(crate) trait Export: Send + Sync {
    /// A word for the sort of backend.
    fn store(&self) -> &'static str;

    /// Whether it is closed to servers, and why.
    fn maintenance(&self) -> Answer<'_, Option<Maintenance>>;

    /// A server that is at work on it right now.
    fn at_work(&self) -> Answer<'_, Option<String>>;

    /// Counters and counts.
    fn head(&self) -> Answer<'_, Head>;

    /// The time on its clock, in which its leases count. It stands still where time does (L14).
    fn now(&self) -> Answer<'_, UnixMillis>;

    /// Every key that has a token of its own, each once.
    fn slots(&self, cursor: String) -> Answer<'_, Part<StoredSlot>>;

    /// Every record.
    fn records(&self, cursor: String) -> Answer<'_, Part<Record>>;

    /// Events after a revision, at most [`PAGE`].
    fn events(&self, after: Revision) -> Answer<'_, Vec<Event>>;

    /// The newest tokens of these keys, in their order; [`Token::ZERO`] for one without.
    fn tokens(&self, keys: Vec<Key>) -> Answer<'_, Vec<Token>>;

    /// Keys that other programs hold here without a token of ours.
    fn foreign(&self, _cursor: String) -> Answer<'_, Part<Key>> {
        Box::pin(async { Ok(Part::none()) })
    }
}

/// Changing a backend. Everything may be repeated.
pub(crate) trait Import: Export {
    /// Closes it to servers, or opens it (`None`). When this returns, no server changes a closed backend,
    /// not even one that works on it.
    fn set_maintenance(&self, maintenance: Option<Maintenance>) -> Answer<'_, ()>;

    /// How many events its history keeps: more would only be thrown away there.
    fn keeps(&self) -> u64;

    /// Removes everything of ours but the maintenance lock.
    fn clear(&self) -> Answer<'_, ()>;

    fn put_slots(&self, slots: Vec<StoredSlot>) -> Answer<'_, ()>;

    fn put_records(&self, records: Vec<Record>) -> Answer<'_, ()>;

    /// In the order of their revisions.
    fn put_events(&self, events: Vec<Event>) -> Answer<'_, ()>;

    /// Writes the counters and opens the backend, in one step.
    fn finish(&self, arrival: Arrival) -> Answer<'_, ()>;
}

/// How a lease ended of which nothing but the token is known any more.
pub(crate) fn forgotten(at: UnixMillis) -> Ended {
    Ended {
        id: lease::LeaseId(uuid::Uuid::nil()),
        loss: lease::Loss::Unknown,
        at,
    }
}
