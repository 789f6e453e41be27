//! Subscribers with the same filter share one watch: a change is filtered and serialised once, and its text is
//! sent to all of them. To the store they are one watcher. The first subscriber opens the room and listens to it; a
//! later one begins with a watch of its own, listens here too once it is no longer behind, and leaves its own watch at
//! the next change.
//!
//! Only watches of many keys are shared; a watcher of one key or one holder is usually the only one.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};

use axum::body::Bytes;
use lease::{EventKind, Revision, Watching};
use leasehold_api::authority::Frame;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::{
    text::{self, Format, Said},
    watcher::Watcher,
};
use crate::{
    App, Reject,
    auth::{Area, Caller, Level},
    readers,
};

/// How many pieces are kept for the slowest subscriber. Who is further behind goes on by itself.
const PIECES: usize = 32;
/// From how many bytes on a piece goes out although there is more.
const PIECE_BYTES: usize = 64 * 1024;
/// How many pieces may wait for the slowest subscriber before the next one does.
const WAITING: usize = PIECES / 2;
/// How long changes collect after a piece went out, for each subscriber that it went to: with many of them it
/// is the number of pieces that costs, and not their size.
const FOR_EACH: Duration = Duration::from_micros(30);
/// The shortest pause that the timer knows. While there is more to send, shorter ones are saved up until they are
/// as long.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(100);

/// What a room is about: who wants this, in this form, and may see as much, is in it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Wanted {
    watching: String,
    format: Format,
    sees_records: bool,
    sees_credentials: bool,
}

impl Wanted {
    /// Nothing when it is not worth sharing.
    pub fn of(caller: &Caller, watching: &Watching, format: Format) -> Option<Self> {
        if watching.key.is_some() || watching.holder.is_some() {
            return None;
        }
        let watching = Watching {
            from: None,
            ..watching.clone()
        };
        Some(Self {
            watching: serde_json::to_string(&watching).ok()?,
            format,
            sees_records: caller.is_agent(),
            sees_credentials: caller.may(Area::Credentials, Level::Read),
        })
    }
}

/// All rooms of a server. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Rooms {
    // A plain mutex: held for a look-up, by readers only, never over an await.
    rooms: Arc<Mutex<HashMap<Wanted, Entry>>>,
}

struct Entry {
    room: Arc<Room>,
    seats: usize,
}

/// What the subscribers of one watch share.
struct Room {
    state: Mutex<State>,
    /// Nobody is in it any more.
    left: CancellationToken,
}

struct State {
    /// Up to where everything was passed on, once that is known.
    position: Option<Revision>,
    /// Gone when the watch is over.
    pieces: Option<broadcast::Sender<Arc<Piece>>>,
}

/// Changes that go out together.
#[derive(Default)]
pub(super) struct Piece {
    text: Bytes,
    marks: Vec<Mark>,
    /// Where a snapshot begins that goes back behind what came before it: the store has lost changes, and whoever saw
    /// them has to see it.
    rewinds: Option<usize>,
    /// Nothing comes after it.
    pub last: bool,
}

/// Where a message ends.
struct Mark {
    revision: Option<Revision>,
    /// Messages of the same revision may be new although it was seen.
    repeats: bool,
    end: usize,
}

/// A seat in a room. A subscriber may have it before it listens.
pub(super) struct Seat {
    rooms: Rooms,
    wanted: Wanted,
    room: Arc<Room>,
}

pub(super) type Pieces = broadcast::Receiver<Arc<Piece>>;

impl Rooms {
    fn lock(&self) -> MutexGuard<'_, HashMap<Wanted, Entry>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A seat in a room that is there.
    fn find(&self, rooms: &mut HashMap<Wanted, Entry>, wanted: &Wanted) -> Option<Seat> {
        let entry = rooms.get_mut(wanted)?;
        entry.room.lock().pieces.as_ref()?;
        entry.seats += 1;
        Some(Seat {
            rooms: self.clone(),
            wanted: wanted.clone(),
            room: entry.room.clone(),
        })
    }

    /// A seat in the room for this. The first one opens it, and may listen from now on.
    pub(super) async fn seat(
        &self,
        app: &App,
        caller: &Caller,
        watching: &Watching,
        wanted: &Wanted,
    ) -> Result<(Seat, Option<Pieces>), Reject> {
        if let Some(seat) = self.find(&mut self.lock(), wanted) {
            return Ok((seat, None));
        }
        let watching = Watching {
            from: None,
            ..watching.clone()
        };
        let watcher = Watcher::open(app, caller.clone(), watching).await?;
        let mut rooms = self.lock();
        if let Some(seat) = self.find(&mut rooms, wanted) {
            return Ok((seat, None));
        }
        let room = Room::new();
        let pieces = room.lock().listen();
        let seats = 1;
        let entry = Entry {
            room: room.clone(),
            seats,
        };
        rooms.insert(wanted.clone(), entry);
        drop(rooms);
        readers::spawn(pass_on(room.clone(), watcher, wanted.format));
        let seat = Seat {
            rooms: self.clone(),
            wanted: wanted.clone(),
            room,
        };
        Ok((seat, pieces))
    }
}

impl Seat {
    /// Everything after a revision that was seen, when the room has not gone further, and from which revision on.
    /// Some of it may be known.
    pub fn listen_after(&self, seen: Revision) -> Option<(Revision, Pieces)> {
        let state = self.room.lock();
        let position = state.position.filter(|position| *position <= seen)?;
        Some((position, state.listen()?))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut rooms = self.rooms.lock();
        if let Some(entry) = rooms.get_mut(&self.wanted)
            && Arc::ptr_eq(&entry.room, &self.room)
        {
            entry.seats -= 1;
            if entry.seats == 0 {
                rooms.remove(&self.wanted);
                self.room.left.cancel();
            }
        }
    }
}

impl State {
    /// What comes from now on, unless the watch is over.
    fn listen(&self) -> Option<Pieces> {
        self.pieces.as_ref().map(broadcast::Sender::subscribe)
    }
}

impl Room {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                position: None,
                pieces: Some(broadcast::Sender::new(PIECES)),
            }),
            left: CancellationToken::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a piece on; returns to how many, and how many pieces wait for the slowest of them.
    fn publish(&self, piece: Piece) -> (usize, usize) {
        let mut state = self.lock();
        state.position = piece.position().or(state.position);
        let Some(pieces) = &state.pieces else {
            return (0, 0);
        };
        // An error means that nobody listens yet.
        let listening = pieces.send(Arc::new(piece)).unwrap_or(0);
        (listening, pieces.len())
    }
}

/// Whatever ends the watch ends the room: nobody listens to nothing.
struct Closing(Arc<Room>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.lock().pieces = None;
    }
}

async fn pass_on(room: Arc<Room>, mut watcher: Watcher, format: Format) {
    let _closing = Closing(room.clone());
    let mut pace = Pace::default();
    let mut position = None;
    loop {
        let said = tokio::select! {
            () = room.left.cancelled() => return,
            said = watcher.next() => said,
        };
        let Some(said) = said else { return };
        let mut draft = Draft::after(position);
        draft.add(format, said).await;
        while draft.text.len() < PIECE_BYTES
            && !draft.last
            && let Poll::Ready(Some(said)) = watcher.ready()
        {
            draft.add(format, said).await;
        }
        let (last, full) = (draft.last, draft.text.len() >= PIECE_BYTES);
        position = draft.position;
        let (listening, waiting) = room.publish(draft.finish());
        if last {
            return;
        }
        match pace.after(full, listening, waiting) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => tokio::task::yield_now().await,
        }
    }
}

/// How fast pieces follow each other.
#[derive(Default)]
struct Pace {
    saved_up: Duration,
}

impl Pace {
    /// The pause after a piece that went to so many subscribers, with so many pieces waiting for the slowest. There is
    /// more to send after a full one.
    fn after(&mut self, full: bool, listening: usize, waiting: usize) -> Option<Duration> {
        self.saved_up += FOR_EACH.saturating_mul(u32::try_from(listening).unwrap_or(u32::MAX));
        if full && self.saved_up < SHORTEST && waiting < WAITING {
            return None;
        }
        Some(mem::take(&mut self.saved_up).clamp(SHORTEST, LONGEST))
    }
}

/// A piece that is being written.
#[derive(Default)]
struct Draft {
    text: Vec<u8>,
    marks: Vec<Mark>,
    rewinds: Option<usize>,
    last: bool,
    /// Up to where it goes.
    position: Option<Revision>,
}

impl Draft {
    /// Begins behind this revision.
    fn after(position: Option<Revision>) -> Self {
        Self {
            position,
            ..Self::default()
        }
    }

    async fn add(&mut self, format: Format, said: Said) {
        let frame = said.as_ref().ok();
        let repeats = match frame {
            Some(Frame::Event(event)) => event.kind == EventKind::LeaseRenewed,
            Some(Frame::Snapshot(_)) => true,
            _ => false,
        };
        self.last = matches!(frame, None | Some(Frame::Goodbye | Frame::Failed(_)));
        let revision = frame.and_then(text::revision);
        if matches!(frame, Some(Frame::Snapshot(_))) && revision < self.position {
            self.rewinds = Some(self.text.len());
        }
        self.position = revision.or(self.position);
        let mut written = self.text.len();
        for part in text::write(&mut self.text, format, said) {
            self.text.extend(part);
            // Others are on the same threads.
            if self.text.len() - written > PIECE_BYTES {
                written = self.text.len();
                tokio::task::yield_now().await;
            }
        }
        self.marks.push(Mark {
            revision,
            repeats,
            end: self.text.len(),
        });
    }

    fn finish(self) -> Piece {
        Piece {
            text: self.text.into(),
            marks: self.marks,
            rewinds: self.rewinds,
            last: self.last,
        }
    }
}

impl Piece {
    /// Where a subscriber that has all of it resumes.
    fn position(&self) -> Option<Revision> {
        self.marks.iter().rev().find_map(|mark| mark.revision)
    }

    /// Where a subscriber resumes that had seen everything up to this, and then has all of it.
    pub fn seen(&self, before: Option<Revision>) -> Option<Revision> {
        if self.rewinds.is_some() {
            return self.position();
        }
        before.max(self.position())
    }

    /// What is new for a subscriber that has seen everything up to this.
    pub fn after(&self, seen: Option<Revision>) -> Bytes {
        let known = |mark: &&Mark| match (mark.revision, seen) {
            _ if self.rewinds.is_some_and(|at| mark.end > at) => false,
            (Some(revision), Some(seen)) if mark.repeats => revision < seen,
            (Some(revision), Some(seen)) => revision <= seen,
            _ => false,
        };
        let known = self.marks.iter().take_while(known).last();
        self.text.slice(known.map_or(0, |mark| mark.end)..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(revision: u64, kind: EventKind) -> Frame {
        Frame::Event(Arc::new(lease::Event {
            revision: Revision::new(revision),
            at: lease::UnixMillis::new(1),
            kind,
            key: "job:1".parse().unwrap(),
            lease: None,
            cause: None,
            detail: None,
        }))
    }

    async fn piece(messages: impl IntoIterator<Item = Frame>) -> Piece {
        let mut draft = Draft::default();
        for frame in messages {
            draft.add(Format::Public, Ok(frame)).await;
        }
        draft.finish()
    }

    fn ids(text: &[u8]) -> Vec<u64> {
        let text = std::str::from_utf8(text).unwrap();
        let ids = text.lines().filter_map(|line| line.strip_prefix("id: "));
        ids.map(|id| id.parse().unwrap()).collect()
    }

    #[test]
    fn a_room_pauses_for_many_subscribers_or_for_a_slow_one() {
        let mut pace = Pace::default();
        let pauses = (0..100).filter_map(|_| pace.after(true, 1, 1)).count();
        assert_eq!(pauses, 2, "one subscriber gets a burst almost at once");
        assert_eq!(pace.after(false, 1, 1), Some(SHORTEST), "more may come");
        for _ in 0..2 {
            assert_eq!(pace.after(true, 1, WAITING), Some(SHORTEST), "it is behind");
        }
        assert_eq!(pace.after(true, 1, 1), None);
        assert_eq!(pace.after(true, 99, 1), Some(FOR_EACH * 100));
        assert_eq!(pace.after(true, 1_000_000, 1), Some(LONGEST));
    }

    #[tokio::test]
    async fn who_comes_later_gets_only_what_it_has_not_seen() {
        let piece = piece([
            said(4, EventKind::RecordPut),
            said(5, EventKind::RecordPut),
            said(5, EventKind::LeaseRenewed),
            Frame::Progress(Revision::new(9)),
            said(10, EventKind::RecordPut),
        ])
        .await;
        assert_eq!(piece.position(), Some(Revision::new(10)));
        let after = |seen: Option<u64>| ids(&piece.after(seen.map(Revision::new)));
        assert_eq!(after(None), [4, 5, 5, 9, 10]);
        assert_eq!(after(Some(3)), [4, 5, 5, 9, 10]);
        // A renewal has the revision that it came after, so it may be new.
        assert_eq!(after(Some(5)), [5, 9, 10]);
        assert_eq!(after(Some(9)), [10]);
        assert_eq!(after(Some(10)), [0; 0]);
    }

    #[tokio::test]
    async fn a_room_is_entered_only_by_who_is_not_behind_it() {
        let (rooms, room) = (Rooms::default(), Room::new());
        let wanted = Wanted {
            watching: String::new(),
            format: Format::Public,
            sees_records: false,
            sees_credentials: false,
        };
        let entry = Entry {
            room: room.clone(),
            seats: 0,
        };
        rooms.lock().insert(wanted.clone(), entry);
        let seat = rooms.find(&mut rooms.lock(), &wanted).unwrap();
        let seen = Revision::new;
        assert!(seat.listen_after(seen(9)).is_none(), "nothing is known yet");
        let seven = piece([said(7, EventKind::RecordPut)]).await;
        assert_eq!(room.publish(seven), (0, 0));
        assert!(seat.listen_after(seen(6)).is_none(), "it would miss 7");
        let (_, mut first) = seat.listen_after(seen(7)).unwrap();
        let (from, mut ahead) = seat.listen_after(seen(8)).unwrap();
        assert_eq!(from, seen(7));
        let more = [8, 9].map(|revision| said(revision, EventKind::RecordPut));
        assert_eq!(room.publish(piece(more).await), (2, 1));
        let new = |piece: Arc<Piece>, after| ids(&piece.after(Some(seen(after))));
        assert_eq!(new(first.recv().await.unwrap(), 7), [8, 9]);
        assert_eq!(new(ahead.recv().await.unwrap(), 8), [9]);
        // The end of the watch is the end for everybody, and the next one opens another room.
        drop(Closing(room.clone()));
        assert!(first.recv().await.is_err() && seat.listen_after(seen(9)).is_none());
        assert!(rooms.find(&mut rooms.lock(), &wanted).is_none());
        drop(seat);
        assert!(rooms.lock().is_empty() && room.left.is_cancelled());
    }
}
