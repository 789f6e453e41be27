//! Looking without touching. Every read is one statement, and so one consistent picture.

use lease::{
    Error, EventPage, EventQuery, Key, Lease, LeaseId, LeaseQuery, Page, Record, RecordQuery,
    Revision, Snapshot, Status, Token, UnixMillis, Verdict,
};
use tokio_postgres::types::ToSql;

use super::{
    connect::Database,
    row::{self, EVENT, LEASE, NOW},
};

/// Answers questions from any connection.
#[derive(Clone)]
pub(super) struct Reader {
    pub database: Database,
}

/// Conditions with their parameters, put together as a query needs them: each shape is prepared once.
struct Conditions {
    sql: Vec<String>,
    parameters: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl Conditions {
    fn new() -> Self {
        Self {
            sql: Vec::new(),
            parameters: Vec::new(),
        }
    }

    /// Adds a condition; `?` in it stands for the parameter.
    fn and(&mut self, condition: &str, parameter: impl ToSql + Sync + Send + 'static) {
        self.parameters.push(Box::new(parameter));
        let place = format!("${}", self.parameters.len());
        self.sql.push(condition.replace('?', &place));
    }

    /// Only keys of a kind: they lie together, since `;` follows `:`.
    fn and_kind(&mut self, kind: &str) {
        self.and("key >= ?", format!("{kind}:"));
        self.and("key < ?", format!("{kind};"));
    }

    fn text(&self) -> String {
        if self.sql.is_empty() {
            return "true".to_owned();
        }
        self.sql.join(" AND ")
    }

    fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.parameters
            .iter()
            .map(|parameter| &**parameter as &(dyn ToSql + Sync))
            .collect()
    }
}

impl Reader {
    pub async fn now(&self) -> Result<UnixMillis, Error> {
        let rows = self.database.read(&format!("SELECT {NOW}"), &[]).await?;
        row::millis(first(&rows)?, 0)
    }

    pub async fn newest(&self) -> Result<Revision, Error> {
        const NEWEST: &str = "SELECT revision FROM lease_clock";
        let rows = self.database.read(NEWEST, &[]).await?;
        row::count(first(&rows)?, 0).map(Revision::new)
    }

    pub async fn lease(&self, key: &Key) -> Result<Option<Lease>, Error> {
        let found = self
            .one("key = $1 AND status = 'active'", &key.as_str())
            .await?;
        Ok(found.filter(|lease| lease.status == Status::Active))
    }

    /// One that lapsed and waits for its expiry is reported as expired: nobody has it any more.
    pub async fn lease_by_id(&self, id: LeaseId) -> Result<Option<Lease>, Error> {
        self.one("lease_id = $1", &id.0).await
    }

    /// One lease, expired if it has lapsed.
    ///
    /// What looks lapsed may have been renewed in time by somebody whose commit is still on its way to
    /// the disk: reported as lost now, it would be live again afterwards (L7). Whoever renews has the row
    /// locked, so asking for the lock waits for that.
    async fn one(
        &self,
        condition: &str,
        parameter: &(dyn ToSql + Sync),
    ) -> Result<Option<Lease>, Error> {
        match self.glance(condition, "", parameter).await? {
            Some((_, true)) => {}
            seen => return Ok(seen.map(|(lease, _)| lease)),
        }
        let settled = self.glance(condition, "FOR SHARE", parameter).await?;
        Ok(settled.map(|(mut lease, lapsed)| {
            if lapsed {
                lease.status = Status::Expired;
            }
            lease
        }))
    }

    /// One lease, and whether it lapsed without having been expired.
    async fn glance(
        &self,
        condition: &str,
        lock: &str,
        parameter: &(dyn ToSql + Sync),
    ) -> Result<Option<(Lease, bool)>, Error> {
        let sql = format!(
            "SELECT {LEASE}, status = 'active' AND expires_ms + withheld_ms <= {NOW} \
             FROM leases WHERE {condition} {lock}"
        );
        let rows = self.database.read(&sql, &[parameter]).await?;
        let found = rows.first();
        found
            .map(|found| Ok((row::lease(found, 0)?, row::get(found, 15)?)))
            .transpose()
    }

    /// In the order of keys. All that stands on one key stays on one page, since the next page starts
    /// after a key.
    pub async fn leases(&self, query: &LeaseQuery) -> Result<Page<Lease>, Error> {
        let mut found = Vec::new();
        if query.status != Some(Status::Pending) {
            found.extend(self.granted(query).await?);
        }
        if query.status.is_none_or(|status| status == Status::Pending) {
            found.extend(self.pending(query).await?);
        }
        found.sort_by(|a, b| (&a.key, a.acquired_at, a.id).cmp(&(&b.key, b.acquired_at, b.id)));
        let mut end = query.limit.min(found.len());
        while end > 0 && end < found.len() && found[end].key == found[end - 1].key {
            end += 1;
        }
        let more = end < found.len();
        found.truncate(end);
        Ok(Page { items: found, more })
    }

    async fn granted(&self, query: &LeaseQuery) -> Result<Vec<Lease>, Error> {
        let mut conditions = keys_of(query);
        match query.status {
            None | Some(Status::Active | Status::Pending) => conditions.sql.push(format!(
                "status = 'active' AND loss IS NULL AND expires_ms + withheld_ms > {NOW}"
            )),
            Some(status) => conditions.and("status <> 'active' AND status = ?", status.as_str()),
        }
        if let Some(tenant) = &query.tenant {
            conditions.and("tenant_id = ?", tenant.clone());
        }
        let sql = format!(
            "SELECT {LEASE} FROM leases WHERE {} ORDER BY key FETCH FIRST {} ROWS WITH TIES",
            conditions.text(),
            one_more(query.limit)
        );
        let rows = self.database.read(&sql, &conditions.parameters()).await?;
        rows.iter().map(|row| row::lease(row, 0)).collect()
    }

    async fn pending(&self, query: &LeaseQuery) -> Result<Vec<Lease>, Error> {
        let mut conditions = keys_of(query);
        if let Some(tenant) = &query.tenant {
            conditions.and("request -> 'labels' ->> 'tenant' = ?", tenant.clone());
        }
        let sql = format!(
            "SELECT ticket, key, request::text, since_ms, deadline_ms \
             FROM lease_waiters JOIN lease_waiter_keys USING (ticket) \
             WHERE answer IS NULL AND deadline_ms > {NOW} AND {} \
             ORDER BY key FETCH FIRST {} ROWS WITH TIES",
            conditions.text(),
            one_more(query.limit)
        );
        let rows = self.database.read(&sql, &conditions.parameters()).await?;
        rows.iter().map(row::pending).collect()
    }

    pub async fn check(&self, tokens: &[(Key, Token)]) -> Result<Vec<Verdict>, Error> {
        let keys: Vec<&str> = tokens.iter().map(|(key, _)| key.as_str()).collect();
        let sql = format!(
            "SELECT lease.token, lease.expires_ms + lease.withheld_ms > {NOW}, fence.token \
             FROM unnest($1::text[]) WITH ORDINALITY AS asked (key, place) \
             LEFT JOIN leases lease ON lease.key = asked.key AND lease.status = 'active' \
             LEFT JOIN lease_fences fence ON fence.key = asked.key ORDER BY place"
        );
        let rows = self.database.read(&sql, &[&keys]).await?;
        let mut verdicts = Vec::with_capacity(rows.len());
        for (row, (_, token)) in rows.iter().zip(tokens) {
            let live: Option<i64> = row::get(row, 0)?;
            let latest: Option<i64> = live.or(row::get(row, 2)?);
            let Some(latest) = latest else {
                verdicts.push(Verdict::Unknown);
                continue;
            };
            let latest = u64::try_from(latest).map_err(row::damaged)?;
            let latest = Token::new(latest).map_err(row::damaged)?;
            verdicts.push(match token.cmp(&latest) {
                std::cmp::Ordering::Less => Verdict::Stale { latest },
                std::cmp::Ordering::Greater => Verdict::Unknown,
                std::cmp::Ordering::Equal if row::get::<Option<bool>>(row, 1)? == Some(true) => {
                    Verdict::Current
                }
                std::cmp::Ordering::Equal => Verdict::Ended,
            });
        }
        Ok(verdicts)
    }

    pub async fn record(&self, key: &Key) -> Result<Option<Record>, Error> {
        const RECORD: &str = "SELECT key, value, revision FROM records WHERE key = $1";
        let rows = self.database.read(RECORD, &[&key.as_str()]).await?;
        rows.first().map(row::record).transpose()
    }

    pub async fn records(&self, query: &RecordQuery) -> Result<Page<Record>, Error> {
        let mut conditions = Conditions::new();
        conditions.and_kind(&query.kind);
        if !query.prefix.is_empty() {
            let prefix = format!("{}:{}", query.kind, query.prefix);
            conditions.and("key >= ?", prefix.clone());
            conditions.and("starts_with(key, ?)", prefix);
        }
        if let Some(after) = &query.after {
            conditions.and("key > ?", format!("{}:{after}", query.kind));
        }
        let sql = format!(
            "SELECT key, value, revision FROM records WHERE {} ORDER BY key LIMIT {}",
            conditions.text(),
            one_more(query.limit)
        );
        let rows = self.database.read(&sql, &conditions.parameters()).await?;
        let mut items = rows
            .iter()
            .map(row::record)
            .collect::<Result<Vec<_>, _>>()?;
        let more = items.len() > query.limit;
        items.truncate(query.limit);
        Ok(Page { items, more })
    }

    /// A page of everything, for watchers.
    pub async fn page(&self, after: Revision, limit: usize) -> Result<EventPage, Error> {
        self.events(&EventQuery {
            after,
            limit,
            ..EventQuery::default()
        })
        .await
    }

    pub async fn events(&self, query: &EventQuery) -> Result<EventPage, Error> {
        let after = i64::try_from(query.after.get()).unwrap_or(i64::MAX);
        let mut conditions = Conditions::new();
        conditions.and("revision > ?", after);
        if let Some(key) = &query.key {
            conditions.and("key = ?", key.as_str().to_owned());
        }
        if let Some(kind) = &query.kind {
            conditions.and_kind(kind);
        }
        if let Some(event) = query.event {
            conditions.and("event_type = ?", event.as_str());
        }
        if let Some(tenant) = &query.tenant {
            conditions.and("labels ->> 'tenant' = ?", tenant.clone());
        }
        // The clock's row and the events in one picture: no revision between them can be missed.
        let sql = format!(
            "SELECT clock.oldest, clock.revision, event.* FROM lease_clock clock LEFT JOIN LATERAL \
             (SELECT {EVENT} FROM lease_events WHERE {} ORDER BY revision LIMIT {}) event ON true \
             ORDER BY event.revision",
            conditions.text(),
            one_more(query.limit)
        );
        let rows = self.database.read(&sql, &conditions.parameters()).await?;
        let clock = first(&rows)?;
        let (oldest, newest) = (row::count(clock, 0)?, row::count(clock, 1)?);
        let mut events = Vec::with_capacity(rows.len());
        for row in &rows {
            if row::get::<Option<i64>>(row, 2)?.is_some() {
                events.push(row::event(row, 2)?);
            }
        }
        let more = events.len() > query.limit;
        events.truncate(query.limit);
        Ok(EventPage {
            events,
            more,
            oldest: Revision::new(oldest),
            newest: Revision::new(newest),
        })
    }

    /// Everything live, in one picture.
    pub async fn snapshot(&self) -> Result<Snapshot, Error> {
        let sql = format!(
            "WITH clock AS MATERIALIZED (SELECT revision AS newest, {NOW} AS n FROM lease_clock) \
             SELECT newest, n, NULL::text, NULL::text, NULL::bigint, live.* FROM clock LEFT JOIN \
             LATERAL (SELECT {LEASE} FROM leases WHERE status = 'active' \
             AND expires_ms + withheld_ms > n) live ON true \
             UNION ALL SELECT newest, n, records.key, value, records.revision, blank.* \
             FROM clock CROSS JOIN records \
             LEFT JOIN LATERAL (SELECT {LEASE} FROM leases WHERE false) blank ON true"
        );
        let rows = self.database.read(&sql, &[]).await?;
        let clock = first(&rows)?;
        let mut snapshot = Snapshot {
            revision: Revision::new(row::count(clock, 0)?),
            at: row::millis(clock, 1)?,
            ..Snapshot::default()
        };
        for row in &rows {
            if row::get::<Option<&str>>(row, 2)?.is_some() {
                snapshot.records.push(Record {
                    key: row::key(row, 2)?,
                    value: row::get::<&str>(row, 3)?.into(),
                    revision: Revision::new(row::count(row, 4)?),
                });
            } else if row::get::<Option<uuid::Uuid>>(row, 5)?.is_some() {
                snapshot.leases.push(row::lease(row, 5)?);
            }
        }
        snapshot.leases.sort_by(|a, b| a.key.cmp(&b.key));
        snapshot.records.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(snapshot)
    }
}

/// The conditions that granted and pending leases share.
fn keys_of(query: &LeaseQuery) -> Conditions {
    let mut conditions = Conditions::new();
    match (&query.kind, &query.id) {
        (Some(kind), Some(id)) => conditions.and("key = ?", format!("{kind}:{id}")),
        (Some(kind), None) => conditions.and_kind(kind),
        (None, Some(id)) => conditions.and("substr(key, strpos(key, ':') + 1) = ?", id.clone()),
        (None, None) => {}
    }
    if let Some(name) = &query.holder {
        conditions.and("runner_id = ?", name.as_str().to_owned());
    }
    if let Some(after) = &query.after {
        conditions.and("key > ?", after.as_str().to_owned());
    }
    conditions
}

/// One more than asked for, to know whether there is more.
fn one_more(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)
}

fn first(rows: &[tokio_postgres::Row]) -> Result<&tokio_postgres::Row, Error> {
    rows.first().ok_or_else(|| row::damaged("no clock"))
}
