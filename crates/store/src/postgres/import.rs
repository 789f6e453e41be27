//! What a move writes into a schema.

use std::collections::BTreeMap;

use lease::{Answer, Error, Event, EventCause, Key, Record, Token, engine::StoredSlot};
use serde::Serialize;
use tokio_postgres::{Transaction, types::ToSql};

use super::{
    error,
    export::Endpoint,
    row::{NOW, damaged},
};
use crate::migrate::{Arrival, Export as _, Import, Maintenance, forgotten};

/// The tables that a closed backend does not let anyone change, in the order in which a server's
/// statements take them: the same order cannot deadlock.
const CLOSED: [&str; 12] = [
    "lease_clock",
    "lease_replicas",
    "leases",
    "lease_fences",
    "lease_events",
    "lease_waiters",
    "records",
    "runners",
    "cameras",
    "zones",
    "outbox",
    "lease_seals",
];

/// What a server that is cut off gets. The code is one that passes: nothing happened.
const REFUSE: &str = "
CREATE TABLE IF NOT EXISTS leasehold_maintenance (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    maintenance text NOT NULL
);
CREATE OR REPLACE FUNCTION lh_maintenance() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('leasehold.moving', true) = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'this store is closed: it is being moved, or was' USING ERRCODE = '55P03';
END $$;
";

/// Ended leases that the events speak of, so that they are found by their ids. What events do not
/// carry has its default.
const ENDED: &str = "
INSERT INTO leases (lease_id, key, runner_id, incarnation, token, ttl_ms, on_outage, withheld_ms,
    release_on_death, acquired_ms, expires_ms, status, labels, timer_ms, ended_ms, loss, why)
SELECT e.lease_id, e.key, e.runner_id, e.incarnation, e.token,
    greatest(1, least(86400000, coalesce(g.expires_ms - g.at_ms, 1))), '{\"policy\":\"fail_closed\"}', 0,
    false, coalesce(g.at_ms, e.at_ms), e.expires_ms,
    CASE e.event_type WHEN 'lease_revoked' THEN 'revoked' WHEN 'lease_released' THEN 'released'
        ELSE 'expired' END,
    coalesce(e.labels, '{}'), e.expires_ms, e.at_ms, substr(e.event_type, 7),
    CASE WHEN e.event_type = 'lease_revoked' THEN e.details ->> 'detail' END
FROM lease_events e
LEFT JOIN lease_events g ON g.lease_id = e.lease_id AND g.event_type = 'lease_acquired'
WHERE e.revision = ANY ($1)
    AND e.event_type IN ('lease_expired', 'lease_revoked', 'lease_released', 'lease_stolen')
ON CONFLICT (lease_id) DO NOTHING";

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` hands it over")]
fn failed(error: tokio_postgres::Error) -> Error {
    error::changing(&error)
}

fn number(value: u64) -> Result<i64, Error> {
    i64::try_from(value).map_err(damaged)
}

fn json(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(damaged)
}

/// The column of that name, as the functions write it.
#[derive(Serialize)]
struct Details<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'a EventCause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// PostgreSQL cannot hold the character NUL; a report or a reason loses nothing with it.
fn text(text: Option<&str>) -> Option<String> {
    text.map(|text| text.replace('\0', ""))
}

async fn close(transaction: &Transaction<'_>, maintenance: &Maintenance) -> Result<(), Error> {
    transaction.batch_execute(REFUSE).await.map_err(failed)?;
    for table in CLOSED {
        let sql = format!(
            "DROP TRIGGER IF EXISTS leasehold_maintenance ON {table}; \
             CREATE TRIGGER leasehold_maintenance BEFORE INSERT OR UPDATE OR DELETE ON {table} \
             FOR EACH STATEMENT EXECUTE FUNCTION lh_maintenance()"
        );
        transaction.batch_execute(&sql).await.map_err(failed)?;
    }
    transaction
        .execute(
            "INSERT INTO leasehold_maintenance (maintenance) VALUES ($1) \
             ON CONFLICT (one) DO UPDATE SET maintenance = excluded.maintenance",
            &[&json(maintenance)?],
        )
        .await
        .map_err(failed)?;
    Ok(())
}

async fn open(transaction: &Transaction<'_>) -> Result<(), Error> {
    let mut sql = String::new();
    for table in CLOSED {
        sql.push_str("DROP TRIGGER IF EXISTS leasehold_maintenance ON ");
        sql.push_str(table);
        sql.push(';');
    }
    sql.push_str(
        "DROP TABLE IF EXISTS leasehold_maintenance; DROP FUNCTION IF EXISTS lh_maintenance()",
    );
    transaction.batch_execute(&sql).await.map_err(failed)
}

/// The table of a record.
fn table(key: &Key) -> &'static str {
    match key.kind() {
        "runner" => "runners",
        "camera" => "cameras",
        "zone" => "zones",
        "outbox" => "outbox",
        _ => "records",
    }
}

async fn put_leases(transaction: &Transaction<'_>, slots: &[StoredSlot]) -> Result<(), Error> {
    let leases: Vec<_> = slots
        .iter()
        .filter_map(|slot| slot.lease.as_ref())
        .collect();
    macro_rules! column {
        (|$lease:ident| $value:expr) => {
            leases
                .iter()
                .map(|$lease| $value)
                .collect::<Result<Vec<_>, Error>>()?
        };
    }
    let ids = column!(|lease| Ok(lease.id.0));
    let keys = column!(|lease| Ok(lease.key.as_str()));
    let names = column!(|lease| Ok(lease.holder.name.as_str()));
    let incarnations = column!(|lease| Ok(lease.holder.incarnation.as_str()));
    let tokens = column!(|lease| number(lease.token.get()));
    let ttls = column!(|lease| number(lease.ttl.millis()));
    let policies = column!(|lease| json(&lease.on_outage));
    let withheld = column!(|lease| number(lease.on_outage.withheld_millis()));
    let deaths = column!(|lease| Ok(lease.release_on_death));
    let acquired = column!(|lease| number(lease.acquired_at.get()));
    let expires = column!(|lease| number(lease.expires_at.get()));
    let renewed = column!(|lease| lease.renewed_at.map(|at| number(at.get())).transpose());
    let stats = column!(|lease| Ok(text(lease.stats.as_deref())));
    let labels = column!(|lease| json(&lease.labels));
    let handoffs = column!(|lease| lease.handoff.as_deref().map(json).transpose());
    let columns: [&(dyn ToSql + Sync); 15] = [
        &ids,
        &keys,
        &names,
        &incarnations,
        &tokens,
        &ttls,
        &policies,
        &withheld,
        &deaths,
        &acquired,
        &expires,
        &renewed,
        &stats,
        &labels,
        &handoffs,
    ];
    let sql = "INSERT INTO leases (lease_id, key, runner_id, incarnation, token, ttl_ms, on_outage, \
            withheld_ms, release_on_death, acquired_ms, expires_ms, renewed_ms, status, stats, labels, \
            handoff, timer_ms) \
        SELECT id, key, name, incarnation, token, ttl, policy::jsonb, withheld, death, acquired, \
            expires, renewed, 'active', stats, labels::jsonb, handoff::jsonb, expires + withheld \
        FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], \
            $7::text[], $8::bigint[], $9::boolean[], $10::bigint[], $11::bigint[], $12::bigint[], \
            $13::text[], $14::text[], $15::text[]) AS given (id, key, name, incarnation, token, ttl, \
            policy, withheld, death, acquired, expires, renewed, stats, labels, handoff) \
        ON CONFLICT (lease_id) DO NOTHING";
    transaction.execute(sql, &columns).await.map_err(failed)?;
    Ok(())
}

async fn put_fences(
    transaction: &Transaction<'_>,
    slots: Vec<StoredSlot>,
    now: lease::UnixMillis,
) -> Result<(), Error> {
    let (mut keys, mut tokens, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    let (mut losses, mut whys, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for slot in slots.into_iter().filter(|slot| slot.lease.is_none()) {
        let ended = slot.ended.unwrap_or_else(|| forgotten(now));
        keys.push(slot.key.to_string());
        tokens.push(number(slot.token.get())?);
        ids.push(ended.id.0);
        losses.push(ended.loss.as_str());
        whys.push(text(ended.loss.why().map(AsRef::as_ref)));
        ends.push(number(ended.at.get())?);
    }
    let sql = "INSERT INTO lease_fences (key, token, lease_id, loss, why, ended_ms) \
        SELECT * FROM unnest($1::text[], $2::bigint[], $3::uuid[], $4::text[], $5::text[], $6::bigint[]) \
        ON CONFLICT (key) DO UPDATE SET token = excluded.token, lease_id = excluded.lease_id, \
            loss = excluded.loss, why = excluded.why, ended_ms = excluded.ended_ms";
    let columns: [&(dyn ToSql + Sync); 6] = [&keys, &tokens, &ids, &losses, &whys, &ends];
    transaction.execute(sql, &columns).await.map_err(failed)?;
    Ok(())
}

async fn put_events(transaction: &Transaction<'_>, events: &[Event]) -> Result<(), Error> {
    macro_rules! column {
        (|$event:ident| $value:expr) => {
            events
                .iter()
                .map(|$event| $value)
                .collect::<Result<Vec<_>, Error>>()?
        };
    }
    let revisions = column!(|event| number(event.revision.get()));
    let times = column!(|event| number(event.at.get()));
    let kinds = column!(|event| Ok(event.kind.as_str()));
    let keys = column!(|event| Ok(event.key.as_str()));
    let ids = column!(|event| Ok(event.lease.as_ref().map(|it| it.id.0)));
    let names = column!(|event| Ok(event.lease.as_ref().map(|it| it.holder.name.as_str())));
    let incarnations = column!(|event| Ok(event
        .lease
        .as_ref()
        .map(|it| it.holder.incarnation.as_str())));
    let tokens = column!(|event| {
        let token = event.lease.as_ref().map(|it| number(it.token.get()));
        token.transpose()
    });
    let expires = column!(|event| {
        let expires = event.lease.as_ref().map(|it| number(it.expires_at.get()));
        expires.transpose()
    });
    let labels = column!(|event| event.lease.as_ref().map(|it| json(&it.labels)).transpose());
    let details = column!(|event| json(&Details {
        cause: event.cause.as_ref(),
        detail: text(event.detail.as_deref()),
    }));
    let columns: [&(dyn ToSql + Sync); 11] = [
        &revisions,
        &times,
        &kinds,
        &keys,
        &ids,
        &names,
        &incarnations,
        &tokens,
        &expires,
        &labels,
        &details,
    ];
    let sql = "INSERT INTO lease_events (revision, at_ms, event_type, key, lease_id, runner_id, \
            incarnation, token, expires_ms, labels, details) \
        SELECT revision, at, kind, key, id, name, incarnation, token, expires, labels::jsonb, \
            details::jsonb \
        FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::uuid[], $6::text[], \
            $7::text[], $8::bigint[], $9::bigint[], $10::text[], $11::text[]) AS given (revision, at, \
            kind, key, id, name, incarnation, token, expires, labels, details) \
        ON CONFLICT (revision) DO NOTHING";
    transaction.execute(sql, &columns).await.map_err(failed)?;
    let ended = transaction.execute(ENDED, &[&revisions]).await;
    ended.map_err(failed)?;
    Ok(())
}

impl Import for Endpoint {
    fn set_maintenance(&self, maintenance: Option<Maintenance>) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut client = self.client.lock().await;
            let transaction = client.transaction().await.map_err(failed)?;
            match &maintenance {
                Some(maintenance) => close(&transaction, maintenance).await?,
                None => open(&transaction).await?,
            }
            transaction.commit().await.map_err(failed)
        })
    }

    fn keeps(&self) -> u64 {
        self.options.history_events
    }

    fn clear(&self) -> Answer<'_, ()> {
        Box::pin(async {
            let sql = format!(
                "TRUNCATE leases, lease_fences, lease_events, lease_seals, lease_waiters, \
                     lease_waiter_keys, lease_replicas, records; \
                 UPDATE lease_clock SET revision = 0, at_ms = {NOW}, floor = 0, oldest = 1, \
                     waiters = 0, timer_ms = DEFAULT, watched_ms = 0"
            );
            let client = self.client.lock().await;
            client.batch_execute(&sql).await.map_err(failed)
        })
    }

    fn put_slots(&self, slots: Vec<StoredSlot>) -> Answer<'_, ()> {
        Box::pin(async move {
            let now = self.now().await?;
            let mut client = self.client.lock().await;
            let transaction = client.transaction().await.map_err(failed)?;
            put_leases(&transaction, &slots).await?;
            put_fences(&transaction, slots, now).await?;
            transaction.commit().await.map_err(failed)
        })
    }

    fn put_records(&self, records: Vec<Record>) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut tables: BTreeMap<&str, [Vec<String>; 2]> = BTreeMap::new();
            let mut revisions: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
            for record in records {
                if record.value.contains('\0') {
                    return Err(Error::Broken(format!(
                        "the record {} holds the character NUL, which PostgreSQL cannot",
                        record.key
                    )));
                }
                let table = table(&record.key);
                let [keys, values] = tables.entry(table).or_default();
                keys.push(record.key.to_string());
                values.push(record.value.to_string());
                let revision = number(record.revision.get())?;
                revisions.entry(table).or_default().push(revision);
            }
            let client = self.client.lock().await;
            for ((table, [keys, values]), revisions) in tables.iter().zip(revisions.values()) {
                let (column, body, update) = match *table {
                    "records" => ("", "", ""),
                    _ => (", body", ", lh_document(value)", ", body = excluded.body"),
                };
                let sql = format!(
                    "INSERT INTO {table} (key, value, revision{column}) \
                     SELECT key, value, revision{body} \
                     FROM unnest($1::text[], $2::text[], $3::bigint[]) AS given (key, value, revision) \
                     ON CONFLICT (key) DO UPDATE SET value = excluded.value, \
                         revision = excluded.revision{update}"
                );
                let put = client.execute(&sql, &[keys, values, revisions]).await;
                put.map_err(failed)?;
            }
            Ok(())
        })
    }

    fn put_events(&self, events: Vec<Event>) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut client = self.client.lock().await;
            let transaction = client.transaction().await.map_err(failed)?;
            put_events(&transaction, &events).await?;
            transaction.commit().await.map_err(failed)
        })
    }

    fn finish(&self, arrival: Arrival) -> Answer<'_, ()> {
        Box::pin(async move {
            let Arrival { oldest, floor, .. } = arrival;
            let mut client = self.client.lock().await;
            let transaction = client.transaction().await.map_err(failed)?;
            put_events(&transaction, std::slice::from_ref(&arrival.event)).await?;
            let sql = format!(
                "UPDATE lease_clock SET revision = $1, at_ms = {NOW}, floor = $2, oldest = $3, \
                 timer_ms = coalesce((SELECT min(timer_ms) FROM leases WHERE ended_ms IS NULL), \
                     9007199254740991)"
            );
            let revision = number(arrival.event.revision.get())?;
            let (floor, oldest) = (number(Token::get(floor))?, number(oldest.get())?);
            transaction
                .execute(&sql, &[&revision, &floor, &oldest])
                .await
                .map_err(failed)?;
            open(&transaction).await?;
            transaction.commit().await.map_err(failed)
        })
    }
}
