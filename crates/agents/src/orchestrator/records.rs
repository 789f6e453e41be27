//! Session records, changed only as the state machine allows and only where nobody else changed them
//! meanwhile.

use std::sync::Arc;

use lease::{
    Authority, Clock, Error, Key, LeaseRef, Record,
    session::{self, Session},
};
use leasehold_client::documents::{self, Attempts, Pages};

/// Access to the session records.
#[derive(Clone)]
pub(super) struct Records {
    pub authority: Arc<dyn Authority>,
    pub clock: Arc<dyn Clock>,
}

/// What became of a change.
pub(super) enum Changed {
    /// It was made.
    Done(Session),
    /// The session is as shown, and the change does not apply to it.
    Declined(Session),
    /// There is no such session.
    Missing,
}

impl Records {
    pub async fn read(&self, key: &Key) -> Result<Option<(Session, Record)>, Error> {
        let Some(record) = self.authority.record(key.clone()).await? else {
            return Ok(None);
        };
        Ok(Some((Session::from_record(&record)?, record)))
    }

    /// Reads, lets `edit` change what it read, and writes if nobody else did in between; otherwise
    /// again. `release` ends leases in the same atomic step, so that no moment shows one without the
    /// other. A session that ends takes its own lease with it: whoever is over is not kept alive by a
    /// heartbeat.
    pub async fn change(
        &self,
        key: &Key,
        release: &[LeaseRef],
        mut edit: impl FnMut(&mut Session, lease::UnixMillis) -> bool,
    ) -> Result<Changed, Error> {
        let mut attempts = Attempts::default();
        loop {
            attempts.next().await?;
            let Some((before, record)) = self.read(key).await? else {
                return Ok(Changed::Missing);
            };
            let now = self.authority.now().await?;
            let mut session = before.clone();
            if !edit(&mut session, now) {
                return Ok(Changed::Declined(before));
            }
            let mut transaction = session.update(&record);
            transaction.release = release.to_vec();
            if session.state.is_terminal() {
                // Granted once in a session's life: what is read here cannot change until the commit.
                let own = self.authority.lease(key.clone()).await?;
                transaction.release.extend(own.as_ref().map(LeaseRef::from));
            }
            if documents::committed(&*self.authority, transaction).await? {
                return Ok(Changed::Done(session));
            }
        }
    }

    /// As [`Records::change`], again and again while the authority is out of reach.
    pub async fn insist(
        &self,
        key: &Key,
        release: &[LeaseRef],
        mut edit: impl FnMut(&mut Session, lease::UnixMillis) -> bool,
    ) -> Result<Changed, Error> {
        let mut backoff = super::retries();
        loop {
            match self.change(key, release, &mut edit).await {
                Err(error) if error.is_retryable() => {
                    tracing::info!(%key, %error, "cannot update a session; retrying");
                    backoff.pause(&*self.clock).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Every session there is, a page at a time.
    pub fn pages(&self) -> Pages<'_> {
        Pages::new(&*self.authority, session::KIND, "")
    }
}
