//! The session records.

use std::sync::Arc;

use lease::{
    Authority, Clock, Error, Key, RecordQuery, UnixMillis,
    session::{self, Change, Loaded, Session},
};
use leasehold_client::{
    pages::Pages,
    sessions::{self, Changed},
};

/// Access to the session records.
#[derive(Clone)]
pub(super) struct Records {
    pub authority: Arc<dyn Authority>,
    pub clock: Arc<dyn Clock>,
}

impl Records {
    pub async fn read(&self, key: &Key) -> Result<Option<Session>, Error> {
        let record = self.authority.record(key.clone()).await?;
        let session = record.map(|record| Session::from_record(&record));
        Ok(session.transpose()?)
    }

    /// As [`sessions::change`], again and again while the authority is out of reach.
    pub async fn insist<D>(
        &self,
        key: &Key,
        mut decide: impl FnMut(&Loaded, UnixMillis) -> Result<Change, D>,
    ) -> Result<Changed<D>, Error> {
        let mut backoff = super::retries();
        loop {
            match sessions::change(&*self.authority, key, &mut decide).await {
                Err(error) if error.is_retryable() => {
                    tracing::info!(%key, %error, "cannot update a session; retrying");
                    backoff.pause(&*self.clock).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Every session there is, a page at a time.
    pub fn pages(&self) -> Pages<'_, RecordQuery> {
        Pages::records(&*self.authority, session::KIND, "")
    }
}
