//! Documents: records that several programs read and change. They are changed only if nobody else changed them
//! meanwhile, with one bound and one back-off for whoever was not first.

use std::sync::Arc;

use lease::{Authority, Committed, Error, Expect, Key, Note, Record, Transaction, Write};
use leasehold_clock::{Backoff, System};

/// How often a change is tried while others change the same document: enough for a hundred of them.
const ATTEMPTS: u32 = 32;
/// The shortest and the longest pause between two attempts, in ms.
const PAUSE_MS: (u64, u64) = (1, 100);

/// Others changed the same document so often that the change was given up. Nothing happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("too many change this simultaneously; nothing happened")]
pub struct Contended;

impl From<Contended> for Error {
    fn from(contended: Contended) -> Self {
        Self::Unavailable(contended.to_string())
    }
}

/// The attempts at one change that must not overwrite another one (compare-and-set). For a change of one
/// document there is [`change`].
#[derive(Debug)]
pub struct Attempts {
    left: u32,
    backoff: Backoff,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            left: ATTEMPTS,
            backoff: Backoff::new(PAUSE_MS.0, PAUSE_MS.1),
        }
    }
}

impl Attempts {
    /// Begins an attempt: the first one immediately, each further one after a pause that grows. The pauses are
    /// real time, whatever clock the caller goes by: what is waited for are other programs.
    pub async fn next(&mut self) -> Result<(), Contended> {
        if self.left < ATTEMPTS {
            self.backoff.pause(&System).await;
        }
        self.left = self.left.checked_sub(1).ok_or(Contended)?;
        Ok(())
    }
}

/// What becomes of a document that was read, and the answer to whoever asked for the change.
#[derive(Debug)]
pub enum Edit<T> {
    /// It is as it should be.
    Keep(T),
    /// It is written.
    Put(Arc<str>, Note, T),
    /// It is removed.
    Remove(Note, T),
}

/// Changes one document: reads it, lets `edit` decide, and writes if it is still what was read; otherwise
/// again.
pub async fn change<T, E: From<Error> + From<Contended>>(
    authority: &dyn Authority,
    key: &Key,
    mut edit: impl FnMut(Option<Record>) -> Result<Edit<T>, E>,
) -> Result<T, E> {
    let mut attempts = Attempts::default();
    loop {
        attempts.next().await?;
        let found = authority.record(key.clone()).await?;
        let revision = found.as_ref().map(|record| record.revision);
        let (value, note, answer) = match edit(found)? {
            Edit::Keep(answer) => return Ok(answer),
            Edit::Put(value, note, answer) => (Some(value), note, answer),
            Edit::Remove(note, answer) => (None, note, answer),
        };
        let transaction = Transaction {
            expect: vec![Expect {
                key: key.clone(),
                revision,
            }],
            writes: vec![Write {
                key: key.clone(),
                value,
                note: Some(note),
            }],
            ..Transaction::default()
        };
        if committed(authority, transaction).await? {
            return Ok(answer);
        }
    }
}

/// Commits changes that grant nothing. Whether everything was still as expected.
pub async fn committed(authority: &dyn Authority, transaction: Transaction) -> Result<bool, Error> {
    match authority.commit(transaction).await? {
        Committed::Done { .. } => Ok(true),
        Committed::Conflict { .. } => Ok(false),
        Committed::Refused(_) => Err(Error::Broken(
            "a change that grants nothing was refused".into(),
        )),
    }
}
