//! The schema as an end of a move, and what is read from it.

use lease::{
    Answer, Error, Event, Key, LeaseId, Loss, Record, Revision, Token, UnixMillis,
    engine::{Ended, StoredSlot},
};
use tokio::sync::Mutex;
use tokio_postgres::{Client, Row, SimpleQueryMessage, types::ToSql};

use super::{
    Options, check,
    connect::{Tls, direct},
    error, migrate,
    row::{self, EVENT, LEASE, NOW, count, damaged, get},
};
use crate::migrate::{Export, Head, Maintenance, PAGE, Part};

/// How long one statement of a move may take: it may wait for the last statements of a server, and
/// touches many rows.
const PATIENCE: &str = "SET statement_timeout = '5min'; SET lock_timeout = '1min'; \
     SET idle_in_transaction_session_timeout = '5min'; SET leasehold.moving = 'on'";

/// A schema, looked at through one connection.
pub(crate) struct Endpoint {
    pub(super) client: Mutex<Client>,
    pub(super) options: Options,
    /// The tables are not there, and this is only a look.
    absent: bool,
}

impl Endpoint {
    /// Connects. `None` when there is no store in the schema and none is to be made; with `absent`
    /// that is an empty one.
    pub async fn open(options: Options, create: bool, absent: bool) -> Result<Option<Self>, Error> {
        let tls = Tls::of(&options)?;
        let (mut client, _hears) = direct(&options, &tls).await?;
        check::check(&client, &options, &tls).await?;
        if create {
            migrate::migrate(&mut client, &options).await?;
        }
        let there = exists(&client, "lease_clock").await?;
        if !there && !absent {
            return Ok(None);
        }
        let prepared = client.batch_execute(PATIENCE).await;
        prepared.map_err(|failed| error::reading(&failed))?;
        Ok(Some(Self {
            client: Mutex::new(client),
            options,
            absent: !there,
        }))
    }

    async fn read(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        let client = self.client.lock().await;
        let rows = client.query(sql, parameters).await;
        rows.map_err(|failed| error::reading(&failed))
    }

    /// The answer of a statement that always has one row.
    async fn one(&self, sql: &str) -> Result<Row, Error> {
        let mut rows = self.read(sql, &[]).await?;
        rows.pop().ok_or_else(|| damaged("no row"))
    }

    async fn live(&self, after: &str) -> Result<Part<StoredSlot>, Error> {
        let sql = format!(
            "SELECT {LEASE} FROM leases WHERE status = 'active' AND key > $1 ORDER BY key LIMIT {PAGE}"
        );
        let rows = self.read(&sql, &[&after]).await?;
        let slot = |row: &Row| {
            let lease = row::lease(row, 0)?;
            Ok(StoredSlot {
                key: lease.key.clone(),
                token: lease.token,
                lease: Some(lease),
                ended: None,
                counted_from: None,
            })
        };
        let items: Vec<StoredSlot> = rows.iter().map(slot).collect::<Result<_, Error>>()?;
        // After the last lease come the keys without one.
        let next = match items.last() {
            Some(last) if items.len() == PAGE => format!("{LIVE}{}", last.key),
            _ => IDLE.to_owned(),
        };
        Ok(Part {
            items,
            next: Some(next),
        })
    }

    async fn idle(&self, after: &str) -> Result<Part<StoredSlot>, Error> {
        let sql = format!(
            "SELECT key, token, lease_id, loss, why, ended_ms FROM lease_fences \
             WHERE key > $1 AND NOT EXISTS (SELECT FROM leases \
                 WHERE leases.key = lease_fences.key AND status = 'active') \
             ORDER BY key LIMIT {PAGE}"
        );
        let rows = self.read(&sql, &[&after]).await?;
        let slot = |row: &Row| {
            Ok(StoredSlot {
                key: row::key(row, 0)?,
                token: token(row, 1)?,
                lease: None,
                ended: Some(Ended {
                    id: LeaseId(get(row, 2)?),
                    loss: loss(get(row, 3)?, get(row, 4)?)?,
                    at: row::millis(row, 5)?,
                }),
                counted_from: None,
            })
        };
        let items: Vec<StoredSlot> = rows.iter().map(slot).collect::<Result<_, Error>>()?;
        let last = items.last().filter(|_| items.len() == PAGE);
        let next = last.map(|slot| format!("{IDLE}{}", slot.key));
        Ok(Part { items, next })
    }
}

/// How cursors through the keys begin: first those with a lease, then those without.
const LIVE: &str = "live/";
const IDLE: &str = "idle/";

fn token(row: &Row, column: usize) -> Result<Token, Error> {
    Token::new(count(row, column)?).map_err(damaged)
}

fn loss(word: &str, why: Option<&str>) -> Result<Loss, Error> {
    Loss::parse(word, why.unwrap_or_default()).ok_or_else(|| damaged("how a lease ended"))
}

async fn exists(client: &Client, table: &str) -> Result<bool, Error> {
    let row = client
        .query_one("SELECT to_regclass($1) IS NOT NULL", &[&table])
        .await
        .map_err(|failed| error::reading(&failed))?;
    get(&row, 0)
}

/// Asks with plain queries: this is the first that a server does, perhaps through a proxy that is yet
/// to be found out.
async fn read_maintenance(client: &Client) -> Result<Option<Maintenance>, Error> {
    let ask = async |sql| {
        let messages = client.simple_query(sql).await;
        let messages = messages.map_err(|failed| error::reading(&failed))?;
        Ok::<_, Error>(messages.into_iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        }))
    };
    if ask("SELECT to_regclass('leasehold_maintenance')")
        .await?
        .is_none()
    {
        return Ok(None);
    }
    let maintenance = ask("SELECT maintenance FROM leasehold_maintenance").await?;
    maintenance
        .map(|maintenance| row::json(&maintenance))
        .transpose()
}

/// Whether a schema is closed to servers.
pub(crate) async fn maintenance_in(options: &Options) -> Result<Option<Maintenance>, Error> {
    let tls = Tls::of(options)?;
    let (client, _hears) = direct(options, &tls).await?;
    read_maintenance(&client).await
}

impl Export for Endpoint {
    fn store(&self) -> &'static str {
        "postgres"
    }

    fn maintenance(&self) -> Answer<'_, Option<Maintenance>> {
        Box::pin(async { read_maintenance(&*self.client.lock().await).await })
    }

    fn at_work(&self) -> Answer<'_, Option<String>> {
        Box::pin(async {
            if self.absent {
                return Ok(None);
            }
            let sql = format!(
                "SELECT incarnation FROM leases WHERE key = 'leadership:expiry' AND status = 'active' \
                 AND expires_ms > {NOW}"
            );
            let rows = self.read(&sql, &[]).await?;
            let who = rows.first().map(|row| get::<String>(row, 0)).transpose()?;
            Ok(who.map(|who| format!("it holds leadership:expiry as {who}")))
        })
    }

    fn head(&self) -> Answer<'_, Head> {
        Box::pin(async {
            if self.absent {
                return Ok(Head::default());
            }
            let row = self
                .one(
                    "SELECT c.revision, c.oldest, c.floor, \
                     (SELECT count(*) FROM leases WHERE status = 'active' AND kind <> 'leadership'), \
                     (SELECT count(*) FROM lease_fences WHERE key NOT LIKE 'leadership:%' AND NOT EXISTS \
                        (SELECT FROM leases WHERE leases.key = lease_fences.key AND status = 'active')), \
                     (SELECT count(*) FROM records), \
                     (SELECT count(*) FROM lease_events WHERE key NOT LIKE 'leadership:%') \
                     FROM lease_clock c",
                )
                .await?;
            let live = count(&row, 3)?;
            Ok(Head {
                revision: Revision::new(count(&row, 0)?),
                base: Revision::ZERO,
                oldest: Revision::new(count(&row, 1)?),
                floor: token(&row, 2)?,
                keys: live + count(&row, 4)?,
                live,
                records: count(&row, 5)?,
                events: count(&row, 6)?,
            })
        })
    }

    fn now(&self) -> Answer<'_, UnixMillis> {
        Box::pin(async {
            let row = self.one(&format!("SELECT {NOW}")).await?;
            row::millis(&row, 0)
        })
    }

    fn slots(&self, cursor: String) -> Answer<'_, Part<StoredSlot>> {
        Box::pin(async move {
            if self.absent {
                return Ok(Part::none());
            }
            match cursor.strip_prefix(IDLE) {
                Some(after) => self.idle(after).await,
                None => self.live(cursor.strip_prefix(LIVE).unwrap_or("")).await,
            }
        })
    }

    fn records(&self, cursor: String) -> Answer<'_, Part<Record>> {
        Box::pin(async move {
            let sql = format!(
                "SELECT key, value, revision FROM records WHERE key > $1 ORDER BY key LIMIT {PAGE}"
            );
            let rows = self.read(&sql, &[&cursor]).await?;
            let items: Vec<Record> = rows.iter().map(row::record).collect::<Result<_, _>>()?;
            let last = items.last().filter(|_| items.len() == PAGE);
            let next = last.map(|record| record.key.to_string());
            Ok(Part { items, next })
        })
    }

    fn events(&self, after: Revision) -> Answer<'_, Vec<Event>> {
        Box::pin(async move {
            let sql = format!(
                "SELECT {EVENT} FROM lease_events WHERE revision > $1 ORDER BY revision LIMIT {PAGE}"
            );
            let after = i64::try_from(after.get()).map_err(damaged)?;
            let rows = self.read(&sql, &[&after]).await?;
            rows.iter().map(|row| row::event(row, 0)).collect()
        })
    }

    fn tokens(&self, keys: Vec<Key>) -> Answer<'_, Vec<Token>> {
        Box::pin(async move {
            let keys: Vec<&str> = keys.iter().map(Key::as_str).collect();
            let rows = self
                .read(
                    "SELECT greatest(0, \
                        (SELECT token FROM leases WHERE key = asked.key AND status = 'active'), \
                        (SELECT token FROM lease_fences WHERE key = asked.key)) \
                     FROM unnest($1::text[]) WITH ORDINALITY AS asked (key, place) ORDER BY place",
                    &[&keys],
                )
                .await?;
            rows.iter().map(|row| token(row, 0)).collect()
        })
    }
}
