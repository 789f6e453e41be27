//! Records: small JSON documents that live beside the leases and change in the same atomic steps.
//! Sessions, runners, cameras and zones are records.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    Acquire, EventCause, Invalid, Key, Lease, LeaseRef, Refusal, Revision, session::State,
};

/// A stored document.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Its name.
    pub key: Key,
    /// A JSON text.
    pub value: Arc<str>,
    /// The revision of its last change: what a writer that read it expects to find.
    pub revision: Revision,
}

/// What a record must look like for a transaction to go through.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Expect {
    /// Which record.
    pub key: Key,
    /// Its revision, or `None` when it must not exist.
    pub revision: Option<Revision>,
}

/// A change to one record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Write {
    /// Which record.
    pub key: Key,
    /// The new JSON text, or `None` to remove the record.
    pub value: Option<Arc<str>>,
    /// What its event says about the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Note>,
}

/// What a change of a record says about itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// The record is a session in this state: becomes the event's cause, in this form.
    Session(State),
    /// Words for people: become the event's detail.
    Words(Arc<str>),
}

impl Note {
    /// The cause and the words of the event.
    pub fn parts(self) -> (Option<EventCause>, Option<Arc<str>>) {
        match self {
            Self::Session(state) => (Some(EventCause::Session(state)), None),
            Self::Words(words) => (None, Some(words)),
        }
    }
}

impl<T: Into<Arc<str>>> From<T> for Note {
    fn from(words: T) -> Self {
        Self::Words(words.into())
    }
}

/// Several changes that happen together or not at all.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Transaction {
    /// What must hold before.
    pub expect: Vec<Expect>,
    /// What is written. One record is written at most once.
    pub writes: Vec<Write>,
    /// A grant that must succeed too. It never waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acquire: Option<Acquire>,
    /// Leases that end in the same step. A lease that is gone already is no conflict (L16).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub release: Vec<LeaseRef>,
}

impl Transaction {
    /// How many expectations, writes and releases one transaction may hold, each.
    pub const MAX_ITEMS: usize = 256;
    /// The longest record value, in bytes.
    pub const MAX_VALUE_BYTES: usize = 256 * 1024;

    /// Checks sizes and that no record is written twice.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.expect.len() > Self::MAX_ITEMS
            || self.writes.len() > Self::MAX_ITEMS
            || self.release.len() > Self::MAX_ITEMS
        {
            return Err(Invalid::new(
                "transaction",
                "at most 256 items of each sort",
            ));
        }
        for (index, write) in self.writes.iter().enumerate() {
            if write
                .value
                .as_ref()
                .is_some_and(|value| value.len() > Self::MAX_VALUE_BYTES)
            {
                return Err(Invalid::new("value", "at most 256 KiB of JSON"));
            }
            if self.writes[..index]
                .iter()
                .any(|other| other.key == write.key)
            {
                return Err(Invalid::new("writes", "each record at most once"));
            }
        }
        if let Some(acquire) = &self.acquire {
            acquire.validate()?;
            if acquire.wait_ms != 0 {
                return Err(Invalid::new(
                    "acquire.wait",
                    "no waiting inside a transaction",
                ));
            }
        }
        Ok(())
    }

    /// How many revisions it makes after that of its write at `index`, once it is committed: so the record's
    /// own revision is known without another look. `None` when it also removes or releases: what was gone
    /// already changes nothing.
    pub fn revisions_after(&self, index: usize) -> Option<u64> {
        let only_puts = self.release.is_empty() && self.writes.iter().all(|it| it.value.is_some());
        let later = self.writes.len().checked_sub(index + 1)?;
        only_puts.then_some(u64::try_from(later).ok()?)
    }
}

/// How a transaction went.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Committed {
    /// Everything happened.
    Done {
        /// The revision after it.
        revision: Revision,
        /// What the grant inside it gave.
        leases: Vec<Lease>,
    },
    /// Nothing happened: a record was not as expected.
    Conflict {
        /// The record.
        key: Key,
        /// The revision it has, or `None` when it does not exist.
        actual: Option<Revision>,
    },
    /// Nothing happened: the grant inside was refused.
    Refused(Refusal),
}
