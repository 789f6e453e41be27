//! Sealing the history, so that tampering shows, and reading the seals.

use lease::{
    Error, Revision,
    history::{Digest, Marks, Seal, SealPage},
};
use tokio_postgres::Row;

use super::{read::Reader, row};

/// How many events one round seals: few, since expiries wait meanwhile.
const ROUND: usize = Seal::MAX_EVENTS;

/// Continues the chain. One per replica; only the leader works.
pub(super) struct Sealer {
    reader: Reader,
    /// The end of the chain as this replica last saw it. When the database has less than that, somebody
    /// removed seals: the chain goes on from here, and the hole shows.
    head: (Revision, Digest),
}

impl Sealer {
    pub fn new(reader: Reader) -> Self {
        Self {
            reader,
            head: (Revision::ZERO, Digest::ZERO),
        }
    }

    /// Seals what is not sealed yet, a round of it. `true` when there is more.
    pub async fn round(&mut self) -> Result<bool, Error> {
        const HEAD: &str = "SELECT clock.revision, clock.oldest, seal.last, seal.digest \
             FROM lease_clock clock LEFT JOIN LATERAL \
             (SELECT last, digest FROM lease_seals ORDER BY last DESC LIMIT 1) seal ON true";
        let rows = self.reader.database.read(HEAD, &[]).await?;
        let found = rows.first().ok_or_else(|| row::damaged("no clock"))?;
        let (newest, oldest) = (row::count(found, 0)?, row::count(found, 1)?);
        if row::get::<Option<i64>>(found, 2)?.is_some() {
            let last = Revision::new(row::count(found, 2)?);
            if last > self.head.0 {
                self.head = (last, digest(found, 3)?);
            } else if last < self.head.0 {
                tracing::error!(%last, sealed = %self.head.0, "seals of the history were removed");
            }
        }
        let (last, previous) = self.head;
        if newest <= last.get() {
            return Ok(false);
        }
        let after = last.max(Revision::new(oldest.saturating_sub(1)));
        let events = self.reader.page(after, ROUND).await?;
        for seal in Seal::chain(previous, &events.events) {
            if !self.append(&seal).await? {
                // Another replica was faster: its seal is found the next time.
                return Ok(true);
            }
            self.head = (seal.last, seal.digest);
        }
        if !events.more {
            self.forget(oldest).await?;
        }
        Ok(events.more)
    }

    async fn append(&self, seal: &Seal) -> Result<bool, Error> {
        const APPEND: &str = "INSERT INTO lease_seals (last, first, previous, digest, marks) \
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING RETURNING last";
        let number = |revision: Revision| i64::try_from(revision.get()).unwrap_or(i64::MAX);
        let rows = self
            .reader
            .database
            .change(
                APPEND,
                &[
                    &number(seal.last),
                    &number(seal.first),
                    &seal.previous.as_bytes().as_slice(),
                    &seal.digest.as_bytes().as_slice(),
                    &seal.marks.as_bytes(),
                ],
            )
            .await?;
        Ok(!rows.is_empty())
    }

    /// Forgets the seals of forgotten events. The newest stays, for the chain to go on from.
    async fn forget(&self, oldest: u64) -> Result<(), Error> {
        const FORGET: &str = "DELETE FROM lease_seals WHERE last < $1 \
             AND last < (SELECT max(last) FROM lease_seals)";
        let oldest = i64::try_from(oldest).unwrap_or(i64::MAX);
        self.reader.database.change(FORGET, &[&oldest]).await?;
        Ok(())
    }
}

impl Reader {
    /// A part of the chain.
    pub async fn seals(&self, after: Revision, limit: usize) -> Result<SealPage, Error> {
        const PAGE: &str = "SELECT clock.oldest, clock.revision, seal.* FROM lease_clock clock \
             LEFT JOIN LATERAL (SELECT first, last, previous, digest, marks FROM lease_seals \
             WHERE last > $1 ORDER BY last LIMIT $2) seal ON true ORDER BY seal.last";
        let after = i64::try_from(after.get()).unwrap_or(i64::MAX);
        let most = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
        let rows = self.database.read(PAGE, &[&after, &most]).await?;
        let clock = rows.first().ok_or_else(|| row::damaged("no clock"))?;
        let (from, newest) = (row::count(clock, 0)?, row::count(clock, 1)?);
        let mut seals = Vec::with_capacity(rows.len());
        for found in &rows {
            if row::get::<Option<i64>>(found, 2)?.is_some() {
                seals.push(Seal {
                    first: Revision::new(row::count(found, 2)?),
                    last: Revision::new(row::count(found, 3)?),
                    previous: digest(found, 4)?,
                    digest: digest(found, 5)?,
                    marks: Marks::from_bytes(row::get(found, 6)?).unwrap_or_default(),
                });
            }
        }
        let more = seals.len() > limit;
        seals.truncate(limit);
        Ok(SealPage {
            seals,
            more,
            from: Revision::new(from),
            newest: Revision::new(newest),
        })
    }
}

/// Bytes that are no digest were put there by somebody else; the check of the chain reports it.
fn digest(row: &Row, column: usize) -> Result<Digest, Error> {
    let bytes = row::get::<&[u8]>(row, column)?;
    Ok(bytes.try_into().map_or(Digest::ZERO, Digest::new))
}
