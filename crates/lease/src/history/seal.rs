//! Seals over the history, which make tampering evident.
//!
//! A seal covers a run of consecutive events. It holds a mark of each (a digest of the event, and a
//! short one of its key) and is chained to the seal before it: its own digest is computed from the
//! previous seal's digest and all its marks. Changing, removing, inserting or reordering events
//! contradicts the marks, and changing marks contradicts every later seal.
//!
//! The key's digest shows which key a missing event belongs to, and lets one key be checked without reading the others.
//! When the oldest events are forgotten their seals go too, and the first seal that stays holds the
//! digest of the one before it: the anchor.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{Event, Invalid, Key, Revision};

/// A SHA-256, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// What the first seal of all is chained to.
    pub const ZERO: Self = Self([0; 32]);

    /// From its bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Digest {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        unhex(text)
            .and_then(|bytes| bytes.try_into().ok())
            .map(Self)
            .ok_or_else(|| Invalid::new("digest", "64 hexadecimal digits"))
    }
}

impl TryFrom<String> for Digest {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

/// What a seal remembers of one event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Of which key it was: the first bytes of a digest.
    pub key: [u8; Self::KEY_BYTES],
    /// The digest of the whole event.
    pub event: Digest,
}

impl Mark {
    const KEY_BYTES: usize = 8;
    /// How long one is as bytes.
    pub const BYTES: usize = Self::KEY_BYTES + 32;

    /// The mark of an event.
    pub fn of(event: &Event) -> Self {
        Self::made_in(&mut Vec::with_capacity(Hash::ROOM), event)
    }

    /// The same, with room for the fields that is used again and again.
    fn made_in(room: &mut Vec<u8>, event: &Event) -> Self {
        let key = Self::key_in(room, &event.key);
        let mut hash = Hash::new(room, "leasehold event 1");
        hash.number(event.revision.get())
            .number(event.at.get())
            .text(event.kind.as_str())
            .text(event.key.as_str());
        match &event.lease {
            None => hash.number(0),
            Some(lease) => {
                hash.number(1)
                    .text(
                        (lease.id.0.as_hyphenated()).encode_lower(&mut uuid::Uuid::encode_buffer()),
                    )
                    .text(lease.holder.name.as_str())
                    .text(lease.holder.incarnation.as_str())
                    .number(lease.token.get())
                    .number(lease.expires_at.get())
                    .number(lease.labels.iter().count() as u64);
                for (name, value) in lease.labels.iter() {
                    hash.text(name).text(value);
                }
                &mut hash
            }
        };
        match event.detail.as_deref() {
            None => hash.number(0),
            Some(detail) => hash.number(1).text(detail),
        };
        if let Some(cause) = &event.cause {
            hash.text(cause.as_str());
            if let Some(holder) = cause.holder() {
                hash.text(holder.name.as_str())
                    .text(holder.incarnation.as_str());
            }
            if let Some(state) = cause.session() {
                hash.text(state.as_str());
            }
        }
        Self {
            key,
            event: hash.done(),
        }
    }

    /// The short digest of a key.
    pub fn key(key: &Key) -> [u8; Self::KEY_BYTES] {
        Self::key_in(&mut Vec::with_capacity(Hash::ROOM), key)
    }

    fn key_in(room: &mut Vec<u8>, key: &Key) -> [u8; Self::KEY_BYTES] {
        let mut hash = Hash::new(room, "leasehold key 1");
        hash.text(key.as_str());
        let Digest(bytes) = hash.done();
        let mut short = [0; Self::KEY_BYTES];
        short.copy_from_slice(&bytes[..Self::KEY_BYTES]);
        short
    }
}

/// The marks of a run of events, one after the other as bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Marks(Vec<u8>);

impl Marks {
    /// From stored bytes. `None` when they cannot be marks.
    pub fn from_bytes(bytes: Vec<u8>) -> Option<Self> {
        bytes
            .len()
            .is_multiple_of(Mark::BYTES)
            .then_some(Self(bytes))
    }

    /// As bytes, to be stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn len(&self) -> usize {
        self.0.len() / Mark::BYTES
    }

    fn get(&self, place: usize) -> Option<Mark> {
        let from = place.checked_mul(Mark::BYTES)?;
        let bytes = self.0.get(from..from.checked_add(Mark::BYTES)?)?;
        let (key, event) = bytes.split_at(Mark::KEY_BYTES);
        Some(Mark {
            key: key.try_into().ok()?,
            event: Digest(event.try_into().ok()?),
        })
    }
}

impl TryFrom<String> for Marks {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Invalid> {
        unhex(&text)
            .and_then(Self::from_bytes)
            .ok_or_else(|| Invalid::new("marks", "80 hexadecimal digits per event"))
    }
}

impl From<Marks> for String {
    fn from(marks: Marks) -> Self {
        hex(&marks.0)
    }
}

/// A seal over the events `first..=last`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seal {
    /// The revision of its first event.
    pub first: Revision,
    /// The revision of its last event.
    pub last: Revision,
    /// The digest of the seal before it.
    pub previous: Digest,
    /// Its own digest.
    pub digest: Digest,
    /// The mark of each event, in order.
    pub marks: Marks,
}

impl Seal {
    /// How many events one seal covers at most: some ten kilobytes.
    pub const MAX_EVENTS: usize = 512;

    /// Seals events, in their order, as a continuation of the chain. A seal covers events that follow
    /// each other without a gap.
    pub fn chain<'a>(previous: Digest, events: impl IntoIterator<Item = &'a Event>) -> Vec<Self> {
        let mut seals: Vec<Self> = Vec::new();
        let mut room = Vec::with_capacity(Hash::ROOM);
        let mut open: Option<(Revision, Marks)> = None;
        let mut head = previous;
        let mut close = |(first, marks): (Revision, Marks)| {
            let last = Revision::new(first.get() + marks.len() as u64 - 1);
            let digest = chain(head, first, last, &marks);
            seals.push(Self {
                first,
                last,
                previous: std::mem::replace(&mut head, digest),
                digest,
                marks,
            });
        };
        for event in events {
            let continues = open.as_ref().is_some_and(|(first, marks)| {
                marks.len() < Self::MAX_EVENTS
                    && event.revision.get() == first.get() + marks.len() as u64
            });
            if !continues && let Some(full) = open.take() {
                close(full);
            }
            let (_, marks) = open.get_or_insert_with(|| (event.revision, Marks::default()));
            let mark = Mark::made_in(&mut room, event);
            marks.0.extend_from_slice(&mark.key);
            marks.0.extend_from_slice(&mark.event.0);
        }
        if let Some(rest) = open {
            close(rest);
        }
        seals
    }

    /// Whether its digest is the one that its contents have.
    pub fn is_whole(&self) -> bool {
        let count = self.last.get().checked_sub(self.first.get());
        count == (self.marks.len() as u64).checked_sub(1)
            && self.digest == chain(self.previous, self.first, self.last, &self.marks)
    }

    /// The last revision that it has a mark for.
    pub(super) fn end(&self) -> Revision {
        Revision::new((self.first.get() + self.marks.len() as u64).saturating_sub(1))
    }

    /// The mark of one of its events.
    pub fn mark(&self, revision: Revision) -> Option<Mark> {
        let place = revision.get().checked_sub(self.first.get())?;
        self.marks.get(usize::try_from(place).ok()?)
    }
}

/// A part of the chain, with the bounds of the history at the same moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SealPage {
    /// In their order.
    pub seals: Vec<Seal>,
    /// Whether there are more.
    pub more: bool,
    /// The first revision that the history must still have; older ones were removed by retention.
    pub from: Revision,
    /// The newest revision.
    pub newest: Revision,
}

fn chain(previous: Digest, first: Revision, last: Revision, marks: &Marks) -> Digest {
    let mut room = Vec::with_capacity(Hash::ROOM + marks.0.len());
    let mut hash = Hash::new(&mut room, "leasehold seal 1");
    hash.0.extend_from_slice(&previous.0);
    hash.number(first.get()).number(last.get());
    hash.0.extend_from_slice(&marks.0);
    hash.done()
}

/// A digest over fields, each with its length, so that no two lists of fields read the same. They are collected
/// first: many small pieces cost more to hand over than to digest.
struct Hash<'a>(&'a mut Vec<u8>);

impl<'a> Hash<'a> {
    /// What the fields of an ordinary event need, and more.
    const ROOM: usize = 512;

    /// `purpose` keeps digests of different things apart, and names the version of their form.
    fn new(room: &'a mut Vec<u8>, purpose: &str) -> Self {
        room.clear();
        let mut hash = Self(room);
        hash.text(purpose);
        hash
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    fn done(self) -> Digest {
        Digest(Sha256::digest(self.0).into())
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes()
        .chunks_exact(2)
        .map(|pair| {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()
        })
        .collect()
}
