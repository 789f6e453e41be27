//! Changes of sessions: load, let the kernel decide, commit; and again if somebody else was faster.

use lease::{
    Authority, Error, Key, Record, UnixMillis,
    session::{self, Change, Loaded, Session, State},
};

use crate::documents::{self, Attempts, Contended};

/// What became of a change, or why the kernel declined it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Changed<D> {
    /// It was made.
    Done {
        /// The state before.
        previous: State,
        /// The session afterwards.
        session: Session,
    },
    /// It does not apply to the session, which is as shown.
    Declined(D, Session),
    /// There is no such session.
    Missing,
}

/// The session in a record that was read, with its lease.
pub async fn load(authority: &dyn Authority, record: &Record) -> Result<Loaded, Error> {
    let lease = authority.lease(record.key.clone()).await?;
    Ok(Loaded::new(record, lease)?)
}

/// Lets the kernel decide what becomes of a session, and commits it if the session is still what was loaded;
/// otherwise again.
pub async fn change<D>(
    authority: &dyn Authority,
    key: &Key,
    decide: impl FnMut(&Loaded, UnixMillis) -> Result<Change, D>,
) -> Result<Changed<D>, Error> {
    match authority.record(key.clone()).await? {
        Some(record) => change_loaded(authority, load(authority, &record).await?, decide).await,
        None => Ok(Changed::Missing),
    }
}

/// As [`change`], for a session that was loaded already.
pub async fn change_loaded<D, E: From<Error> + From<Contended>>(
    authority: &dyn Authority,
    mut loaded: Loaded,
    mut decide: impl FnMut(&Loaded, UnixMillis) -> Result<Change, D>,
) -> Result<Changed<D>, E> {
    let key = session::key(loaded.session.session_id);
    let mut attempts = Attempts::default();
    attempts.next().await?;
    loop {
        let now = authority.now().await?;
        let change = match decide(&loaded, now) {
            Ok(change) => change,
            Err(why) => return Ok(Changed::Declined(why, loaded.session)),
        };
        if documents::committed(authority, change.transaction).await? {
            return Ok(Changed::Done {
                previous: change.previous,
                session: change.session,
            });
        }
        attempts.next().await?;
        let Some(record) = authority.record(key.clone()).await? else {
            return Ok(Changed::Missing);
        };
        loaded = load(authority, &record).await?;
    }
}
