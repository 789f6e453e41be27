//! Keeping many leases with one statement (L9). It takes no lock that a decision could wait for: what somebody else has locked, and what is lost, is decided one by one afterwards.

use std::{collections::HashSet, sync::Arc};

use lease::{
    Command, Error, Holder, Lease, Renew, Renewal, Renewals, Renewed, Revision, UnixMillis,
    engine::RenewalEvents,
};
use tokio_postgres::Row;

use super::{
    connect::Database,
    feed::Feed,
    row::{self, LEASE, NOW},
    writer::Writer,
};

/// The way of renewals.
pub(super) struct Renewer {
    pub database: Database,
    pub writer: Writer,
    pub feed: Arc<Feed>,
    pub events: RenewalEvents,
    #[cfg(feature = "conformance")]
    pub flip: Option<crate::conformance::Flip>,
}

/// What every renewal changes. No indexed column is among it, so that the row is replaced in place.
const SET: &str = "ttl_ms = coalesce(m_ttl, ttl_ms), \
    expires_ms = greatest(expires_ms, (SELECT n FROM clock) + coalesce(m_ttl, ttl_ms)), \
    renewed_ms = (SELECT n FROM clock), stats = coalesce(m_stats, stats), \
    handoff = CASE WHEN handoff ->> 'stage' = 'committed' THEN NULL ELSE handoff END";

/// Whether a row of `mine` is still live now that all of them are locked: before that, somebody may have
/// seen it lapse (L7). The status is written in a way that no index has: PostgreSQL would rather look
/// through every live lease when it believes that there are few.
const STILL_LIVE: &str = "lease_id = m_id AND status || '' = 'active' \
    AND expires_ms + withheld_ms > \
        (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint \
         FROM (SELECT count(*) FROM mine) locked)";

impl Renewer {
    pub async fn renew(&self, request: Renew) -> Result<Vec<Renewed>, Error> {
        if self.events == RenewalEvents::Kept {
            return self.one_by_one(request).await;
        }
        match request.leases {
            Renewals::All => self.all(request.holder).await,
            Renewals::These(renewals) if renewals.is_empty() => Ok(Vec::new()),
            Renewals::These(renewals) if has_doubles(&renewals) => {
                self.one_by_one(Renew {
                    holder: request.holder,
                    leases: Renewals::These(renewals),
                })
                .await
            }
            Renewals::These(renewals) => self.these(request.holder, renewals).await,
        }
    }

    /// Each lease is looked up by its key: a join would be planned for a few, and compare each renewal
    /// with each lease when there are many. The names are no way to a lease here: a holder may have
    /// thousands.
    async fn these(&self, holder: Holder, asked: Vec<Renewal>) -> Result<Vec<Renewed>, Error> {
        let sql = format!(
            "WITH clock AS MATERIALIZED (SELECT {NOW} AS n, revision FROM lease_clock), \
             mine AS (SELECT m_id, place AS m_place, a.ttl AS m_ttl, a.stats AS m_stats \
                 FROM unnest($3::text[], $4::bigint[], $5::bigint[], $6::text[]) \
                     WITH ORDINALITY AS a (key, token, ttl, stats, place) \
                 CROSS JOIN LATERAL (SELECT lease_id AS m_id FROM leases l \
                     WHERE l.key = a.key AND l.status = 'active' AND l.token = a.token \
                         AND l.runner_id || '' = $1 AND l.incarnation || '' = $2 \
                         AND expires_ms + withheld_ms > (SELECT n FROM clock) \
                     FOR NO KEY UPDATE SKIP LOCKED) one) \
             UPDATE leases SET {SET} FROM mine WHERE {STILL_LIVE} \
             RETURNING m_place, (SELECT n FROM clock), (SELECT revision FROM clock), {LEASE}"
        );
        #[cfg(feature = "conformance")]
        let sql = match &self.flip {
            Some(flip) => flip.plant(&sql),
            None => sql,
        };
        let keys: Vec<&str> = asked.iter().map(|it| it.key.as_str()).collect();
        let tokens: Vec<i64> = asked.iter().map(|it| number(it.token.get())).collect();
        let ttls: Vec<Option<i64>> = asked
            .iter()
            .map(|it| it.ttl.map(|ttl| number(ttl.millis())))
            .collect();
        let stats: Vec<Option<&str>> = asked.iter().map(|it| it.stats.as_deref()).collect();
        let (name, incarnation) = (holder.name.as_str(), holder.incarnation.as_str());
        let rows = self
            .database
            .change(&sql, &[&name, &incarnation, &keys, &tokens, &ttls, &stats])
            .await?;
        let mut kept: Vec<Option<Lease>> = vec![None; asked.len()];
        for row in &rows {
            let place = usize::try_from(row::count(row, 0)?).map_err(row::damaged)?;
            if let Some(place) = place.checked_sub(1).and_then(|place| kept.get_mut(place)) {
                *place = Some(row::lease(row, 3)?);
            }
        }
        if let Some(row) = rows.first() {
            self.publish_renewals(kept.iter().flatten(), row)?;
        }
        let missing: Vec<Renewal> = asked
            .iter()
            .zip(&kept)
            .filter(|(_, kept)| kept.is_none())
            .map(|(renewal, _)| renewal.clone())
            .collect();
        let mut rest = Vec::new();
        if !missing.is_empty() {
            let leases = Renewals::These(missing);
            rest = self.one_by_one(Renew { holder, leases }).await?;
        }
        let mut rest = rest.into_iter();
        let answers = asked
            .into_iter()
            .zip(kept)
            .map(|(renewal, kept)| match kept {
                Some(lease) => Ok(Renewed {
                    key: renewal.key,
                    token: renewal.token,
                    outcome: Ok(lease),
                }),
                None => rest.next().ok_or_else(|| row::damaged("too few outcomes")),
            });
        answers.collect()
    }

    async fn all(&self, holder: Holder) -> Result<Vec<Renewed>, Error> {
        const OWN: &str = "loss IS NULL AND runner_id = $1 AND incarnation = $2";
        let sql = format!(
            "WITH clock AS MATERIALIZED (SELECT {NOW} AS n, revision FROM lease_clock), \
             mine AS (SELECT lease_id AS m_id, NULL::bigint AS m_ttl, NULL::text AS m_stats \
                 FROM leases WHERE {OWN} AND expires_ms + withheld_ms > (SELECT n FROM clock) \
                 FOR NO KEY UPDATE SKIP LOCKED), \
             kept AS (UPDATE leases SET {SET} FROM mine WHERE {STILL_LIVE} \
                 RETURNING (SELECT n FROM clock), (SELECT revision FROM clock), {LEASE}) \
             SELECT (SELECT count(*) FROM leases WHERE {OWN}), kept.* \
             FROM (SELECT) one LEFT JOIN kept ON true ORDER BY kept.key"
        );
        let (name, incarnation) = (holder.name.as_str(), holder.incarnation.as_str());
        let rows = self.database.change(&sql, &[&name, &incarnation]).await?;
        let mut leases = Vec::with_capacity(rows.len());
        for row in &rows {
            if row::get::<Option<uuid::Uuid>>(row, 3)?.is_some() {
                leases.push(row::lease(row, 3)?);
            }
        }
        let owned = rows.first().map_or(Ok(0), |row| row::count(row, 0))?;
        if owned != leases.len() as u64 {
            // Some lapsed, or somebody decides about them just now.
            let leases = Renewals::All;
            return self.one_by_one(Renew { holder, leases }).await;
        }
        if let Some(row) = rows.first().filter(|_| !leases.is_empty()) {
            self.publish_renewals(&leases, row)?;
        }
        let answer = |lease: Lease| Renewed {
            key: lease.key.clone(),
            token: lease.token,
            outcome: Ok(lease),
        };
        Ok(leases.into_iter().map(answer).collect())
    }

    /// As the kernel does it: each renewal after the other, losses with their reasons.
    async fn one_by_one(&self, request: Renew) -> Result<Vec<Renewed>, Error> {
        let decided = self.writer.decide(Command::Renew(request)).await?;
        let renewed: Vec<Renewed> = decided.outcome()?;
        if self.events == RenewalEvents::Live {
            let kept = renewed.iter().filter_map(|it| it.outcome.as_ref().ok());
            self.feed.renewed(kept, decided.at, decided.revision);
        }
        Ok(renewed)
    }

    /// Notifies watchers here of renewals, which came after the revision in `row`.
    fn publish_renewals<'a>(
        &self,
        kept: impl IntoIterator<Item = &'a Lease>,
        row: &Row,
    ) -> Result<(), Error> {
        if self.events == RenewalEvents::Live {
            let (at, revision) = (row::count(row, 1)?, row::count(row, 2)?);
            self.feed
                .renewed(kept, UnixMillis::new(at), Revision::new(revision));
        }
        Ok(())
    }
}

fn has_doubles(renewals: &[Renewal]) -> bool {
    let mut seen = HashSet::with_capacity(renewals.len());
    !renewals.iter().all(|renewal| seen.insert(&renewal.key))
}

/// A number below 2^53, as the database wants it.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
