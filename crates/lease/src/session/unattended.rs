//! Sessions that nobody works on: which they are, and when they are forgotten.

use super::Session;
use crate::{Expect, Holder, Record, Transaction, UnixMillis, Write};

/// Why nobody works on a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unattended<'a> {
    /// No worker claimed it yet.
    Unclaimed,
    /// Its worker is gone.
    Left(&'a Holder),
}

/// Why nobody works on a session; `None` while its worker does, and when it is over. `present` says whether a
/// worker is there.
pub fn unattended(
    session: &Session,
    present: impl FnOnce(&Holder) -> bool,
) -> Option<Unattended<'_>> {
    match &session.worker {
        _ if session.state.is_terminal() => None,
        None => Some(Unattended::Unclaimed),
        Some(worker) => (!present(worker)).then_some(Unattended::Left(worker)),
    }
}

impl Session {
    /// Whether an earlier incarnation of `worker` had it.
    pub fn is_of_predecessor(&self, worker: &Holder) -> bool {
        let has = self.worker.as_ref();
        has.is_some_and(|it| it.name == worker.name && it != worker)
    }
}

/// Whether a session is over for so long that it need not be remembered.
pub fn is_forgettable(session: &Session, now: UnixMillis, remember_ms: u64) -> bool {
    session.state.is_terminal() && now.since(session.updated_at) >= remember_ms
}

/// Forgets sessions that are over, as they were read.
pub fn forget(old: &[Record]) -> Transaction {
    let expect = old.iter().map(|record| Expect {
        key: record.key.clone(),
        revision: Some(record.revision),
    });
    let writes = old.iter().map(|record| Write {
        key: record.key.clone(),
        value: None,
        note: Some("forgotten".into()),
    });
    Transaction {
        expect: expect.collect(),
        writes: writes.collect(),
        ..Transaction::default()
    }
}
