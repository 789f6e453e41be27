//! The one interface that doors and agents see. Who decides behind it (memory, PostgreSQL, Redis,
//! or a server over HTTP) makes no difference to them.
//!
//! Every implementation keeps rules L1–L21 and is held to them by one conformance suite.

use std::{any::Any, future::Future, pin::Pin};

use futures_core::Stream;
use serde::{Deserialize, Serialize};

use crate::{
    Acquire, Acquired, Committed, Departure, Error, EventPage, EventQuery, HandoffState,
    HandoffStep, Key, Lease, LeaseId, LeaseQuery, LeaseRef, Notice, Page, Record, RecordQuery,
    Renew, Renewed, Revision, Revoke, Token, Transaction, UnixMillis, Verdict, Watching,
    history::SealPage,
};

/// The future of an answer. Dropping it cancels a wait; a request that was already decided stays
/// decided.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// A stream of changes (L20). Ends only with an error or with the authority.
pub type Watch = Pin<Box<dyn Stream<Item = Result<Notice, Error>> + Send>>;

/// What a store can promise. Checked at start-up, shown by `doctor`, and never silently different.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Capabilities {
    /// A short name: `embedded`, `memory`, `postgres`, `redis`, `remote`.
    pub store: String,
    /// Whether an acknowledged grant survives a crash of the store's machine.
    pub durable: bool,
    /// Whether leases stop ageing while the authority is down (L14). PostgreSQL and Redis go by
    /// clocks that run on.
    pub time_stops: bool,
    /// Whether several servers may share it.
    pub shared: bool,
    /// Whether renewals appear on the live stream of every replica, not only the one that made them.
    pub renewals_streamed: bool,
    /// What a user should know: one sentence each.
    pub caveats: Vec<String>,
    /// Whether it takes no changes at the moment, although it answers: a full disk, for example.
    #[serde(default)]
    pub degraded: bool,
}

/// Decides who owns what. As [`Any`] it can be recognised by those who know one of them better.
pub trait Authority: Any + Send + Sync {
    /// What this store can promise.
    fn capabilities(&self) -> Capabilities;

    /// The time on the authority's clock; also the cheapest proof that it answers.
    fn now(&self) -> Answer<'_, UnixMillis>;

    /// Asks for keys: one, all of several, or one of a pool; at once or after a wait (L1–L6).
    ///
    /// Dropping the future ends a wait, and a waiter that went away never receives a grant.
    fn acquire(&self, request: Acquire) -> Answer<'_, Acquired>;

    /// Keeps leases, with an answer per lease, in one round trip (L7–L9). Answers come in the order
    /// of the request; with [`crate::Renewals::All`] in the order of the keys.
    fn renew(&self, request: Renew) -> Answer<'_, Vec<Renewed>>;

    /// Gives a lease back. `true` when it ended now; by anyone but its owner, or a second time, it
    /// changes nothing and is no error (L16).
    fn release(&self, lease: LeaseRef) -> Answer<'_, bool>;

    /// Takes a lease away (L17). `None` when no such live lease exists.
    fn revoke(&self, request: Revoke) -> Answer<'_, Option<Lease>>;

    /// A holder's end is known: releases what it had (L15). Returns what was released, by key.
    fn depart(&self, departure: Departure) -> Answer<'_, Vec<Lease>>;

    /// One step of a handoff (L18).
    fn handoff(&self, step: HandoffStep) -> Answer<'_, HandoffState>;

    /// Changes records, and optionally a lease with them, in one atomic step.
    fn commit(&self, transaction: Transaction) -> Answer<'_, Committed>;

    /// The live lease of a key.
    fn lease(&self, key: Key) -> Answer<'_, Option<Lease>>;

    /// A lease by its id, also when it has ended, as long as the history remembers it.
    fn lease_by_id(&self, id: LeaseId) -> Answer<'_, Option<Lease>>;

    /// Live (or otherwise matching) leases in the order of their keys.
    fn leases(&self, query: LeaseQuery) -> Answer<'_, Page<Lease>>;

    /// Whether these tokens still count, in the order of the request.
    fn check(&self, tokens: Vec<(Key, Token)>) -> Answer<'_, Vec<Verdict>>;

    /// One record.
    fn record(&self, key: Key) -> Answer<'_, Option<Record>>;

    /// Records of one kind in the order of their ids.
    fn records(&self, query: RecordQuery) -> Answer<'_, Page<Record>>;

    /// A page of the history, oldest first (L19, L21).
    fn events(&self, query: EventQuery) -> Answer<'_, EventPage>;

    /// The seals over the history that end after `after`, oldest first, at most `limit` of them. Every
    /// event is sealed soon after it happened (see [`crate::history`]).
    fn seals(&self, after: Revision, limit: usize) -> Answer<'_, SealPage>;

    /// Changes as they happen: those that are wanted, after [`Watching::from`] or from now on. What is
    /// not wanted is left out where events are made. When the history no longer has what comes after
    /// that revision, the first notice is a snapshot of what is wanted (L20).
    fn watch(&self, watching: Watching) -> Answer<'_, Watch>;
}
