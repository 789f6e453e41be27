//! What a site has many of: documents that are listed, added, changed and removed by their names.

use lease::{
    Authority, Committed, Key, Lease, LeaseRef, Transaction, UnixMillis, Write,
    registry::FieldError,
};
use leasehold_api::{Code, Document};
use leasehold_client::documents::Attempts;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{
    SiteId, index_key, site,
    store::{self, Condition, Found},
};
use crate::{App, Reject};

/// A sort of document that a site has many of.
pub(crate) trait Item: Serialize + DeserializeOwned + PartialEq + Send + Sync {
    /// The kind of its records.
    const KIND: &'static str;
    /// Whether a name is given only once over all sites. Such a thing is found, and owned, by its name
    /// alone.
    const UNIQUE: bool;
    /// What an answer carries beside the document: taken back unread, so that what was read can be
    /// written.
    const ANSWERED: &'static [&'static str];

    /// The name in the records of what a path calls `text`, unless nothing can be called so.
    fn name_of(text: &str) -> Option<String>;

    /// Its name in the records.
    fn name(&self) -> String;

    /// Everything that is wrong with it.
    fn validate(&self) -> Result<(), Vec<FieldError>>;

    /// Fills in what the path says already, and refuses what contradicts it. `text` is what the path
    /// calls it, when it exists already.
    fn settle(
        fields: &mut Map<String, Value>,
        place: &SiteId,
        text: Option<&str>,
    ) -> Result<(), Reject>;

    /// Puts back what a caller that may not see secrets could not send.
    fn restore(_: &mut Map<String, Value>, _stored: &Self) {}

    /// The answer when there is none.
    fn unknown() -> Reject;

    /// The answer when there is one already.
    fn taken(&self) -> Reject;
}

/// One of a site, by what a path calls it.
pub(crate) async fn load<T: Item>(
    authority: &dyn Authority,
    place: &SiteId,
    text: &str,
) -> Result<Found<T>, Reject> {
    let name = T::name_of(text).ok_or_else(T::unknown)?;
    store::load(authority, place.key(T::KIND, &name)?)
        .await?
        .ok_or_else(T::unknown)
}

/// Adds one.
pub(crate) async fn create<T: Item>(
    app: &App,
    place: &SiteId,
    Document(mut fields): Document,
) -> Result<Found<T>, Reject> {
    fields.retain(|name, _| !T::ANSWERED.contains(&name.as_str()));
    T::settle(&mut fields, place, None)?;
    let item: T = checked(fields)?;
    let now = app.authority().now().await?;
    let name = item.name();
    let key = place.key(T::KIND, &name)?;
    let mut transaction = Transaction {
        expect: vec![store::absent(key.clone())],
        writes: vec![
            store::put(key.clone(), &item, now, now, "created")?,
            site::touch(place, now)?,
        ],
        ..Transaction::default()
    };
    if T::UNIQUE {
        let index = index_key(T::KIND, &name)?;
        transaction.expect.push(store::absent(index.clone()));
        let entry = store::put(index, place, now, now, "created")?;
        transaction.writes.push(entry);
    }
    match store::commit_first(app, transaction).await? {
        Some(revision) => Ok(Found {
            key,
            value: item,
            created_at: now,
            updated_at: now,
            revision,
        }),
        None => Err(item.taken()),
    }
}

/// Changes the fields that are named. A caller that does not see secrets leaves them as they are.
pub(crate) async fn update<T: Item>(
    app: &App,
    place: &SiteId,
    text: &str,
    condition: Condition,
    Document(mut change): Document,
    sees_secrets: bool,
) -> Result<Found<T>, Reject> {
    change.retain(|name, _| !T::ANSWERED.contains(&name.as_str()));
    T::settle(&mut change, place, Some(text))?;
    let mut attempts = Attempts::default();
    loop {
        attempts.next().await?;
        let found: Found<T> = load(app.authority(), place, text).await?;
        condition.check(&found)?;
        let Ok(Value::Object(mut fields)) = serde_json::to_value(&found.value) else {
            return Err(Reject::new(
                Code::InternalError,
                "a stored document is no object",
            ));
        };
        let mut change = change.clone();
        if !sees_secrets {
            T::restore(&mut change, &found.value);
        }
        store::merge(&mut fields, change);
        let item: T = checked(fields)?;
        if item == found.value {
            // Nothing changes: no new version for anyone to fetch.
            return Ok(found);
        }
        let now = app.authority().now().await?;
        let write = store::put(found.key.clone(), &item, found.created_at, now, "changed")?;
        let transaction = replacing(place, &found, now, vec![write], None)?;
        if let Some(revision) = store::commit_first(app, transaction).await? {
            return Ok(Found {
                value: item,
                updated_at: now,
                revision,
                ..found
            });
        }
        if condition != Condition::None {
            return Err(store::changed());
        }
    }
}

/// Removes one. Its owner loses it in the same step: work that is gone keeps no lease.
pub(crate) async fn delete<T: Item>(
    app: &App,
    place: &SiteId,
    text: &str,
    condition: Condition,
) -> Result<(), Reject> {
    let mut attempts = Attempts::default();
    loop {
        attempts.next().await?;
        let found: Found<T> = load(app.authority(), place, text).await?;
        condition.check(&found)?;
        let now = app.authority().now().await?;
        let mut writes = vec![store::remove(found.key.clone(), "removed")];
        let mut owned = None;
        if T::UNIQUE {
            let name = found.value.name();
            writes.push(store::remove(index_key(T::KIND, &name)?, "removed"));
            owned = Some(Key::new(T::KIND, &name)?);
        }
        let lease = lease_of(app, owned.as_ref()).await?;
        let transaction = replacing(place, &found, now, writes, lease.as_ref())?;
        if let Committed::Done { .. } = store::commit(app, transaction).await? {
            // Granted between the look and the removal; from the removal on, an acquire that still saw
            // the document fails.
            if let Some(late) = lease_of(app, owned.as_ref()).await? {
                app.authority().release(LeaseRef::from(&late)).await?;
            }
            return Ok(());
        }
        if condition != Condition::None {
            return Err(store::changed());
        }
    }
}

async fn lease_of(app: &App, owned: Option<&Key>) -> Result<Option<Lease>, Reject> {
    match owned {
        Some(key) => Ok(app.authority().lease(key.clone()).await?),
        None => Ok(None),
    }
}

/// Writes, if the document is still what was found.
fn replacing<T>(
    place: &SiteId,
    found: &Found<T>,
    now: UnixMillis,
    mut writes: Vec<Write>,
    release: Option<&Lease>,
) -> Result<Transaction, Reject> {
    writes.push(site::touch(place, now)?);
    Ok(Transaction {
        expect: vec![found.expect()],
        writes,
        release: release.into_iter().map(LeaseRef::from).collect(),
        ..Transaction::default()
    })
}

/// Required fields that passed every check, in the place of wrong ones while the rest is checked.
const STAND_INS: &str = r#"{"camera_uuid": "x", "rtsp_url": "file:///x", "zone_id": 4294967295,
    "name": "x", "kind": "include", "polygon": [[0, 0], [1, 0], [1, 1]]}"#;

/// Reads a document; every wrong field is named in one answer. `null` is the default, wherever it stands.
fn checked<T: Item>(mut fields: Map<String, Value>) -> Result<T, Reject> {
    store::drop_nulls(&mut fields);
    let stand_ins = serde_json::from_str(STAND_INS).unwrap_or_default();
    let (item, mut wrong) = leasehold_api::parse_document::<T>(fields, &stand_ins);
    let found = item.as_ref().map_or(Ok(()), Item::validate);
    for error in found.err().into_iter().flatten() {
        if wrong.iter().all(|known| known.field != error.field) {
            wrong.push(leasehold_api::FieldError::new(error.field, error.expected));
        }
    }
    match item {
        Some(item) if wrong.is_empty() => Ok(item),
        _ => Err(Reject::invalid(wrong)),
    }
}
