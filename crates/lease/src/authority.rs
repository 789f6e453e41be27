//! The one interface that routes and agents see, and its verbs. What decides behind it (memory, PostgreSQL,
//! Redis, or a server over HTTP) makes no difference to them.
//!
//! Each verb is written once here: its request, its answer, its name on the wire and its typed
//! method. Code that forwards verbs (a server, a client, a wrapper) forwards these values and lists none.
//!
//! Every implementation follows rules L1–L21, which one conformance suite verifies.

use std::{any::Any, marker::PhantomData};

use serde::{
    Deserialize as _, Deserializer, Serialize,
    de::{DeserializeSeed, Error as _},
};

use crate::{
    Acquire, Acquired, Answer, Capabilities, Committed, Decided, Departure, EventPage, EventQuery,
    HandoffState, HandoffStep, Holder, Invalid, Kept, Key, Lease, LeaseId, LeaseQuery, LeaseRef,
    Page, Record, RecordQuery, Renew, Renewed, Revision, Revoke, Seen, Token, Transaction, Typed,
    UnixMillis, Verdict, Watch, Watching, history::SealPage,
};

/// The name of a verb, which says how the value that comes with it is read: as what is asked, or as the
/// answer to it.
#[derive(Debug)]
pub struct Named<'a, T> {
    name: &'a str,
    value: PhantomData<fn() -> T>,
}

impl<'a, T> Named<'a, T> {
    /// The verb of this name. Reading fails when there is none.
    pub const fn new(name: &'a str) -> Self {
        Self {
            name,
            value: PhantomData,
        }
    }
}

impl<T> Clone for Named<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Named<'_, T> {}

/// Makes the enum of what is asked and the enum of what is answered from one list. On the wire a verb
/// is its name and its value apart, so that a name can be judged before a value is read.
macro_rules! verbs {
    (
        $(#[$asks:meta])* $Ask:ident
        $(#[$answers:meta])* $Answer:ident
        { $( $(#[$doc:meta])* $name:literal $Verb:ident($Value:ty) -> $Came:ident($Result:ty), )+ }
    ) => {
        $(#[$asks])*
        #[derive(Clone, PartialEq, Eq, Debug, Serialize)]
        #[serde(untagged)]
        pub enum $Ask { $( $(#[$doc])* $Verb($Value), )+ }

        impl $Ask {
            /// The names of all of them.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// Its name.
            pub const fn name(&self) -> &'static str {
                match self { $( Self::$Verb(_) => $name, )+ }
            }
        }

        impl<'de> DeserializeSeed<'de> for Named<'_, $Ask> {
            type Value = $Ask;

            fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<$Ask, D::Error> {
                match self.name {
                    $( $name => <$Value>::deserialize(value).map($Ask::$Verb), )+
                    _ => Err(D::Error::unknown_variant(self.name, $Ask::NAMES)),
                }
            }
        }

        $(#[$answers])*
        #[derive(Clone, PartialEq, Eq, Debug, Serialize)]
        #[serde(untagged)]
        pub enum $Answer { $( #[doc = concat!("Of `", $name, "`.")] $Came($Result), )+ }

        impl<'de> DeserializeSeed<'de> for Named<'_, $Answer> {
            type Value = $Answer;

            fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<$Answer, D::Error> {
                match self.name {
                    $( $name => <$Result>::deserialize(value).map($Answer::$Came), )+
                    _ => Err(D::Error::unknown_variant(self.name, $Ask::NAMES)),
                }
            }
        }
    };
}

verbs! {
    /// Something to decide: it may change who owns what.
    Command
    /// What was decided.
    Outcome {
        /// Ask for keys.
        "acquire" Acquire(Acquire) -> Acquired(Acquired),
        /// Keep leases.
        "renew" Renew(Renew) -> Renewed(Vec<Renewed>),
        /// Keep everything that a holder has, with one answer for all of it.
        "keep" Keep(Holder) -> Kept(Kept),
        /// Give a lease back.
        "release" Release(LeaseRef) -> Released(bool),
        /// Take a lease away.
        "revoke" Revoke(Revoke) -> Revoked(Option<Lease>),
        /// A holder's end is known.
        "depart" Depart(Departure) -> Departed(Vec<Lease>),
        /// One step of a handoff.
        "handoff" Handoff(HandoffStep) -> Handoff(HandoffState),
        /// Change records, and perhaps leases with them.
        "commit" Commit(Transaction) -> Committed(Committed),
    }
}

verbs! {
    /// Something to look at: it changes nothing.
    Query
    /// What was seen.
    View {
        /// The time on the authority's clock.
        "now" Now(()) -> Now(UnixMillis),
        /// The live lease of a key.
        "lease" Lease(Key) -> Lease(Option<Lease>),
        /// A lease by its id.
        "lease_by_id" LeaseById(LeaseId) -> LeaseById(Option<Lease>),
        /// Leases in the order of their keys.
        "leases" Leases(LeaseQuery) -> Leases(Page<Lease>),
        /// Whether tokens still count.
        "check" Check(Vec<(Key, Token)>) -> Checked(Vec<Verdict>),
        /// One record.
        "record" Record(Key) -> Record(Option<Record>),
        /// Records of one kind.
        "records" Records(RecordQuery) -> Records(Page<Record>),
        /// A page of the history.
        "events" Events(EventQuery) -> Events(EventPage),
        /// Seals over the history that end after a revision, at most so many.
        "seals" Seals((Revision, usize)) -> Seals(SealPage),
    }
}

impl Command {
    /// Checks what the types alone cannot. Every authority does so before it decides.
    pub fn validate(&self) -> Result<(), Invalid> {
        match self {
            Self::Acquire(request) => request.validate(),
            Self::Renew(request) => request.validate(),
            Self::Revoke(request) => request.validate(),
            Self::Handoff(step) => step.validate(),
            Self::Commit(transaction) => transaction.validate(),
            Self::Keep(_) | Self::Release(_) | Self::Depart(_) => Ok(()),
        }
    }
}

/// Reads one variant out of an answer.
macro_rules! typed {
    ($answer:expr => $Answer:ident::$Came:ident) => {
        Typed {
            answer: $answer,
            read: |answer| match answer {
                $Answer::$Came(value) => Some(value),
                _ => None,
            },
        }
    };
}

/// Decides who owns what. As [`Any`] it can be recognised by those who know one of them better.
///
/// An implementation writes the first four methods; the others are the same verbs with their types, and
/// nobody writes them a second time.
pub trait Authority: Any + Send + Sync {
    /// What this store can promise.
    fn capabilities(&self) -> Capabilities;

    /// Decides one command, in one atomic step.
    fn decide(&self, command: Command) -> Answer<'_, Outcome>;

    /// Answers a question without changing anything.
    fn look(&self, query: Query) -> Answer<'_, View>;

    /// Changes as they happen: those that are wanted, after [`Watching::from`] or from now on. What is
    /// not wanted is left out where events are made. When the history no longer has what comes after
    /// that revision, the first notice is a snapshot of what is wanted (L20).
    fn watch(&self, watching: Watching) -> Answer<'_, Watch>;

    /// Asks for keys: one, all of several, or one of a pool; immediately or after a wait (L1–L6).
    ///
    /// Dropping the future ends a wait, and a waiter that went away never receives a grant.
    fn acquire(&self, request: Acquire) -> Decided<'_, Acquired> {
        typed!(self.decide(Command::Acquire(request)) => Outcome::Acquired)
    }

    /// Keeps leases, with an answer per lease, in one round trip (L7–L9). Answers come in the order
    /// of the request; with [`crate::Renewals::All`] in the order of the keys.
    fn renew(&self, request: Renew) -> Decided<'_, Vec<Renewed>> {
        typed!(self.decide(Command::Renew(request)) => Outcome::Renewed)
    }

    /// Keeps whatever this holder and incarnation has, in one step and with one answer, however many these
    /// are (L7–L9). A holder that had more leases than were kept asks for an answer per lease to learn which.
    fn keep(&self, holder: Holder) -> Decided<'_, Kept> {
        typed!(self.decide(Command::Keep(holder)) => Outcome::Kept)
    }

    /// Gives a lease back. `true` when it ended now; by anyone but its owner, or a second time, it
    /// changes nothing and is no error (L16).
    fn release(&self, lease: LeaseRef) -> Decided<'_, bool> {
        typed!(self.decide(Command::Release(lease)) => Outcome::Released)
    }

    /// Takes a lease away (L17). `None` when no such live lease exists.
    fn revoke(&self, request: Revoke) -> Decided<'_, Option<Lease>> {
        typed!(self.decide(Command::Revoke(request)) => Outcome::Revoked)
    }

    /// A holder's end is known: releases what it had (L15). Returns what was released, by key.
    fn depart(&self, departure: Departure) -> Decided<'_, Vec<Lease>> {
        typed!(self.decide(Command::Depart(departure)) => Outcome::Departed)
    }

    /// One step of a handoff (L18).
    fn handoff(&self, step: HandoffStep) -> Decided<'_, HandoffState> {
        typed!(self.decide(Command::Handoff(step)) => Outcome::Handoff)
    }

    /// Changes records, and optionally a lease with them, in one atomic step.
    fn commit(&self, transaction: Transaction) -> Decided<'_, Committed> {
        typed!(self.decide(Command::Commit(transaction)) => Outcome::Committed)
    }

    /// The time on the authority's clock; also the cheapest proof that it answers.
    fn now(&self) -> Seen<'_, UnixMillis> {
        typed!(self.look(Query::Now(())) => View::Now)
    }

    /// The live lease of a key.
    fn lease(&self, key: Key) -> Seen<'_, Option<Lease>> {
        typed!(self.look(Query::Lease(key)) => View::Lease)
    }

    /// A lease by its id, also when it has ended, as long as the history remembers it.
    fn lease_by_id(&self, id: LeaseId) -> Seen<'_, Option<Lease>> {
        typed!(self.look(Query::LeaseById(id)) => View::LeaseById)
    }

    /// Live (or otherwise matching) leases in the order of their keys.
    fn leases(&self, query: LeaseQuery) -> Seen<'_, Page<Lease>> {
        typed!(self.look(Query::Leases(query)) => View::Leases)
    }

    /// Whether these tokens still count, in the order of the request.
    fn check(&self, tokens: Vec<(Key, Token)>) -> Seen<'_, Vec<Verdict>> {
        typed!(self.look(Query::Check(tokens)) => View::Checked)
    }

    /// One record.
    fn record(&self, key: Key) -> Seen<'_, Option<Record>> {
        typed!(self.look(Query::Record(key)) => View::Record)
    }

    /// Records of one kind in the order of their ids.
    fn records(&self, query: RecordQuery) -> Seen<'_, Page<Record>> {
        typed!(self.look(Query::Records(query)) => View::Records)
    }

    /// A page of the history, oldest first (L19, L21).
    fn events(&self, query: EventQuery) -> Seen<'_, EventPage> {
        typed!(self.look(Query::Events(query)) => View::Events)
    }

    /// The seals over the history that end after `after`, oldest first, at most `limit` of them. Every
    /// event is sealed soon after it happened (see [`crate::history`]).
    fn seals(&self, after: Revision, limit: usize) -> Seen<'_, SealPage> {
        typed!(self.look(Query::Seals((after, limit))) => View::Seals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_survives_the_wire_as_its_name_and_its_value() {
        let query = Query::Seals((Revision::new(7), 3));
        let text = serde_json::to_string(&query).unwrap();
        assert_eq!(text, "[7,3]");
        let read = |name| {
            let reader = &mut serde_json::Deserializer::from_str(&text);
            Named::<Query>::new(name).deserialize(reader)
        };
        assert_eq!(read(query.name()).unwrap(), query);
        assert!(read("lease").is_err(), "another verb's value");
        assert!(read("acquire").is_err(), "no query");
        let view = View::Now(UnixMillis::new(5));
        let text = serde_json::to_string(&view).unwrap();
        let reader = &mut serde_json::Deserializer::from_str(&text);
        let back = Named::<View>::new("now").deserialize(reader);
        assert_eq!(back.unwrap(), view);
    }

    #[test]
    fn every_verb_has_a_name_of_its_own() {
        let names: Vec<_> = Command::NAMES.iter().chain(Query::NAMES).collect();
        for (place, name) in names.iter().enumerate() {
            assert!(!names[..place].contains(name), "{name} stands twice");
        }
    }
}
