//! Checking a history against its seals.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::seal::{Digest, Mark, Seal, SealPage};
use crate::{
    Authority, Error, Event, EventQuery, Key, Revision,
    planted::{Bug, planted},
};

/// How many seals and events are read at a time.
const SEALS: usize = 32;
const EVENTS: usize = 1_000;
/// How many breaks are kept; a history that was tampered with needs no longer list.
const MAX_BREAKS: usize = 100;

/// Where a history contradicts its seals.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Break {
    /// The first revision concerned.
    pub revision: Revision,
    /// What is wrong there.
    pub what: What,
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The record is not the one that was sealed.
    Changed,
    /// The record is gone.
    Missing,
    /// A record stands where there was none.
    Inserted,
    /// The seal over this and the following records was changed, or does not continue the chain.
    Seal,
    /// The seal over this and the following records, up to this one, is gone.
    Unsealed(Revision),
    /// The history says that it ends before this revision, although it was sealed.
    CutOff,
    /// The records after this revision cannot be read.
    Unreadable(String),
    /// The head that was asked for is not the one the chain has there.
    OtherHead,
}

impl std::fmt::Display for Break {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let revision = self.revision;
        match &self.what {
            What::Changed => write!(f, "revision {revision} was changed after it was sealed"),
            What::Missing => write!(f, "revision {revision} is missing"),
            What::Inserted => write!(f, "revision {revision} was inserted"),
            What::Seal => write!(f, "the seal that begins at revision {revision} is broken"),
            What::Unsealed(last) => {
                write!(
                    f,
                    "the seals over revisions {revision} to {last} are missing"
                )
            }
            What::CutOff => write!(
                f,
                "revision {revision} was sealed, but the history says that it ends before it"
            ),
            What::Unreadable(why) => {
                write!(f, "what follows revision {revision} cannot be read: {why}")
            }
            What::OtherHead => write!(f, "the chain's head at revision {revision} is another one"),
        }
    }
}

/// Which part of a history to hold against its seals.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scope {
    /// Only the records of this key.
    pub key: Option<Key>,
    /// Only what comes after this revision.
    pub after: Revision,
    /// Stop after about this many revisions.
    pub most: Option<u64>,
    /// A head of the chain that was noted earlier: the chain must still have it.
    pub head: Option<(Revision, Digest)>,
}

/// What came out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Audit {
    /// How many records were read.
    pub events: u64,
    /// How many revisions at the end are not sealed yet: nothing can be said about their past.
    pub unsealed: u64,
    /// The first revision that was looked at. Older ones were forgotten, or not asked for.
    pub from: Revision,
    /// The newest revision when this began.
    pub newest: Revision,
    /// The last seal that was looked at: its last revision and its digest. Note it elsewhere, and no
    /// later rewriting of what came before goes unnoticed.
    pub head: Option<(Revision, Digest)>,
    /// Where to go on, when there is more than was asked for.
    pub next: Option<Revision>,
    /// What is wrong, oldest first.
    pub breaks: Vec<Break>,
}

/// Reads the history once and holds it against its seals. `see` gets each record on the way.
pub async fn audit(
    authority: &dyn Authority,
    scope: &Scope,
    mut see: impl FnMut(&Event),
) -> Result<Audit, Error> {
    let bounds = authority.seals(scope.after, 0).await?;
    let from = bounds.from.max(scope.after.next());
    let mut records = Records::new(authority, scope.key.clone(), from);
    let mut auditor = Auditor::new(scope, from, bounds.newest);
    let mut after = Revision::new(from.get() - 1);
    'chain: loop {
        let page = authority.seals(after, SEALS).await?;
        for seal in &page.seals {
            after = seal.last;
            if seal.first > bounds.newest && page.newest > bounds.newest {
                // Sealed since this began.
                break 'chain;
            }
            if !auditor.seal(seal, &mut records, &mut see).await? {
                break 'chain;
            }
        }
        if !page.more || page.seals.is_empty() {
            break;
        }
    }
    let mut audit = auditor.finish(&mut records, &mut see).await?;
    if !audit.breaks.is_empty() {
        // What retention removed in the meantime is not missing.
        let SealPage { from, .. } = authority.seals(bounds.newest, 0).await?;
        audit.breaks.retain(|it| match it.what {
            What::Missing => it.revision >= from,
            What::Unsealed(last) => last >= from,
            _ => true,
        });
    }
    audit.breaks.sort_by_key(|it| it.revision);
    Ok(audit)
}

struct Auditor<'a> {
    scope: &'a Scope,
    key: Option<[u8; 8]>,
    audit: Audit,
    previous: Option<(Revision, Digest)>,
    /// The first revision that no seal covered so far.
    expected: Revision,
    head_seen: bool,
    stopped: bool,
}

impl<'a> Auditor<'a> {
    fn new(scope: &'a Scope, from: Revision, newest: Revision) -> Self {
        Self {
            scope,
            key: scope.key.as_ref().map(Mark::key),
            audit: Audit {
                events: 0,
                unsealed: 0,
                from,
                newest,
                head: None,
                next: None,
                breaks: Vec::new(),
            },
            previous: None,
            expected: from,
            head_seen: false,
            stopped: false,
        }
    }

    fn broken(&mut self, revision: Revision, what: What) {
        if self.audit.breaks.len() < MAX_BREAKS {
            self.audit.breaks.push(Break { revision, what });
        }
    }

    /// Looks at the next seal and the records under it. `false` when enough was seen.
    async fn seal(
        &mut self,
        seal: &Seal,
        records: &mut Records<'_>,
        see: &mut impl FnMut(&Event),
    ) -> Result<bool, Error> {
        let hole = self.link(seal);
        while let Some(event) = records.before(seal.first).await? {
            // What stands under a seal that is gone is not for that inserted.
            if hole.is_none_or(|hole| event.revision < hole) {
                self.broken(event.revision, What::Inserted);
            } else {
                self.audit.events += 1;
                see(&event);
            }
        }
        if seal.last > self.audit.newest {
            self.broken(
                Revision::new(seal.first.get().max(self.audit.newest.get() + 1)),
                What::CutOff,
            );
        }
        // A seal that claims more than it has marks for is broken, and is not followed there.
        let last = seal.last.min(seal.end()).min(self.audit.newest).get();
        for revision in seal.first.max(self.expected).get()..=last {
            let revision = Revision::new(revision);
            let mark = seal.mark(revision);
            while let Some(event) = records.before(revision).await? {
                self.broken(event.revision, What::Inserted);
            }
            match records.at(revision).await? {
                Some(event) => {
                    self.audit.events += 1;
                    if mark != Some(Mark::of(&event)) && !planted(Bug::SealsUnread) {
                        self.broken(revision, What::Changed);
                    }
                    see(&event);
                }
                None if records.failed.is_some() => {
                    self.stopped = true;
                    return Ok(false);
                }
                None => {
                    let concerned = match (self.key, mark) {
                        (Some(key), Some(mark)) => mark.key == key,
                        (Some(_), None) => false,
                        (None, _) => true,
                    };
                    if concerned {
                        self.broken(revision, What::Missing);
                    }
                }
            }
        }
        self.expected = self.expected.max(seal.last.next());
        self.previous = Some((seal.last, seal.digest));
        self.audit.head = self.previous;
        let seen = self.expected.get() - self.audit.from.get();
        if self.scope.most.is_some_and(|most| seen >= most) {
            // The next part begins with this seal's last record, so that the link is checked too.
            self.audit.next = Some(Revision::new(seal.last.get() - 1));
            self.stopped = true;
        }
        Ok(!self.stopped)
    }

    /// Checks that a seal is whole and continues the chain. Returns where the hole before it begins, if
    /// there is one.
    fn link(&mut self, seal: &Seal) -> Option<Revision> {
        let mut hole = None;
        if let Some((revision, digest)) = self.scope.head
            && seal.last == revision
            && seal.digest == digest
        {
            self.head_seen = true;
        }
        if seal.first > self.expected {
            let last = Revision::new(seal.first.get() - 1);
            self.broken(self.expected, What::Unsealed(last));
            hole = Some(self.expected);
            self.expected = seal.first;
        } else if let Some((last, digest)) = self.previous
            && (seal.first != last.next() || seal.previous != digest)
        {
            self.broken(seal.first, What::Seal);
        }
        if !seal.is_whole() {
            self.broken(seal.first, What::Seal);
        }
        hole
    }

    /// A head that was noted must be one of the chain's, unless it is forgotten.
    fn look_for_head(&mut self) {
        if let Some((revision, _)) = self.scope.head
            && revision >= self.audit.from
            && !self.head_seen
        {
            self.broken(revision, What::OtherHead);
        }
    }

    /// Looks at what is not sealed yet.
    async fn finish(
        mut self,
        records: &mut Records<'_>,
        see: &mut impl FnMut(&Event),
    ) -> Result<Audit, Error> {
        if !self.stopped {
            self.audit.unsealed = (self.audit.newest.get() + 1).saturating_sub(self.expected.get());
            self.look_for_head();
            for revision in self.expected.get()..=self.audit.newest.get() {
                let revision = Revision::new(revision);
                if let Some(event) = records.at(revision).await? {
                    self.audit.events += 1;
                    see(&event);
                } else if self.key.is_none() && records.failed.is_none() {
                    self.broken(revision, What::Missing);
                }
                if records.is_done() {
                    if self.key.is_none()
                        && records.failed.is_none()
                        && revision < self.audit.newest
                    {
                        self.broken(revision.next(), What::Missing);
                    }
                    break;
                }
            }
        }
        for revision in std::mem::take(&mut records.beyond) {
            self.broken(revision, What::Inserted);
        }
        if let Some((revision, why)) = records.failed.take() {
            self.broken(revision, What::Unreadable(why));
        }
        Ok(self.audit)
    }
}

/// The records in order, read in pages.
struct Records<'a> {
    authority: &'a dyn Authority,
    query: EventQuery,
    read: VecDeque<Event>,
    more: bool,
    /// Records behind the end that the history itself names.
    beyond: Vec<Revision>,
    /// After which revision reading failed, and why.
    failed: Option<(Revision, String)>,
}

impl<'a> Records<'a> {
    fn new(authority: &'a dyn Authority, key: Option<Key>, from: Revision) -> Self {
        Self {
            authority,
            query: EventQuery {
                after: Revision::new(from.get() - 1),
                key,
                limit: EVENTS,
                ..EventQuery::default()
            },
            read: VecDeque::new(),
            more: true,
            beyond: Vec::new(),
            failed: None,
        }
    }

    /// The next record, if it is this one.
    async fn at(&mut self, revision: Revision) -> Result<Option<Event>, Error> {
        self.fill().await?;
        Ok(self.read.pop_front_if(|event| event.revision == revision))
    }

    /// The next record, if it comes before this one.
    async fn before(&mut self, revision: Revision) -> Result<Option<Event>, Error> {
        self.fill().await?;
        Ok(self.read.pop_front_if(|event| event.revision < revision))
    }

    /// Whether nothing is left to read.
    fn is_done(&self) -> bool {
        self.failed.is_some() || (self.read.is_empty() && !self.more)
    }

    async fn fill(&mut self) -> Result<(), Error> {
        if !self.read.is_empty() || !self.more || self.failed.is_some() {
            return Ok(());
        }
        let page = match self.authority.events(self.query.clone()).await {
            Ok(page) => page,
            // Something that this program did not write.
            Err(Error::Broken(why)) => {
                self.failed = Some((self.query.after, why));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.more = page.more;
        for event in page.events {
            self.query.after = event.revision;
            if event.revision > page.newest {
                self.beyond.push(event.revision);
            } else {
                self.read.push_back(event);
            }
        }
        Ok(())
    }
}
