//! The zones of a site as records.

use lease::{
    Authority, Committed, Transaction,
    registry::{ZONE, Zone},
};
use leasehold_api::{Code, Document};

use super::{
    Place, invalid, site,
    store::{self, Condition, Found},
};
use crate::{App, Reject};

fn unknown() -> Reject {
    Reject::new(Code::NotFound, "no such zone is known")
}

/// The number as a name that sorts like the number.
fn name(id: u32) -> String {
    format!("{id:010}")
}

/// The zone number in a path.
pub(crate) fn number(text: &str) -> Result<u32, Reject> {
    text.parse().map_err(|_| unknown())
}

pub(crate) async fn load(
    authority: &dyn Authority,
    place: &Place,
    id: u32,
) -> Result<Found<Zone>, Reject> {
    store::load(authority, place.key(ZONE, &name(id))?)
        .await?
        .ok_or_else(unknown)
}

/// All zones of a site.
pub(crate) async fn all(
    authority: &dyn Authority,
    place: &Place,
) -> Result<Vec<Found<Zone>>, Reject> {
    store::all(authority, ZONE, place.prefix()).await
}

/// Adds a zone.
pub(crate) async fn create(
    app: &App,
    place: &Place,
    Document(fields): Document,
) -> Result<Found<Zone>, Reject> {
    let zone: Zone = store::parse(fields)?;
    zone.validate().map_err(invalid)?;
    let now = app.authority().now().await?;
    let key = place.key(ZONE, &name(zone.zone_id))?;
    let transaction = Transaction {
        expect: vec![store::absent(key.clone())],
        writes: vec![
            store::put(key, &zone, now, now, "created")?,
            site::touch(place, now)?,
        ],
        ..Transaction::default()
    };
    match app.authority().commit(transaction).await? {
        Committed::Done { .. } => load(app.authority(), place, zone.zone_id).await,
        Committed::Conflict { .. } | Committed::Refused(_) => Err(Reject::new(
            Code::AlreadyExists,
            format!("this site has a zone {} already", zone.zone_id),
        )),
    }
}

/// Changes the fields of a zone that are named.
pub(crate) async fn update(
    app: &App,
    place: &Place,
    id: u32,
    condition: Condition,
    Document(mut change): Document,
) -> Result<Found<Zone>, Reject> {
    store::settle(&mut change, "zone_id", id.into())?;
    for _ in 0..store::ATTEMPTS {
        let found = load(app.authority(), place, id).await?;
        condition.check(&found)?;
        let Ok(serde_json::Value::Object(mut fields)) = serde_json::to_value(&found.value) else {
            return Err(Reject::new(Code::InternalError, "a zone is an object"));
        };
        store::merge(&mut fields, change.clone());
        let zone: Zone = store::parse(fields)?;
        zone.validate().map_err(invalid)?;
        if zone == found.value {
            return Ok(found);
        }
        let now = app.authority().now().await?;
        let transaction = Transaction {
            expect: vec![found.expect()],
            writes: vec![
                store::put(found.key.clone(), &zone, found.created_at, now, "changed")?,
                site::touch(place, now)?,
            ],
            ..Transaction::default()
        };
        if let Committed::Done { .. } = app.authority().commit(transaction).await? {
            return load(app.authority(), place, id).await;
        }
        if condition != Condition::None {
            return Err(store::changed());
        }
    }
    Err(store::contended())
}

/// Removes a zone.
pub(crate) async fn delete(
    app: &App,
    place: &Place,
    id: u32,
    condition: Condition,
) -> Result<(), Reject> {
    for _ in 0..store::ATTEMPTS {
        let found = load(app.authority(), place, id).await?;
        condition.check(&found)?;
        let now = app.authority().now().await?;
        let transaction = Transaction {
            expect: vec![found.expect()],
            writes: vec![
                store::remove(found.key.clone(), "removed"),
                site::touch(place, now)?,
            ],
            ..Transaction::default()
        };
        if let Committed::Done { .. } = app.authority().commit(transaction).await? {
            return Ok(());
        }
        if condition != Condition::None {
            return Err(store::changed());
        }
    }
    Err(store::contended())
}
