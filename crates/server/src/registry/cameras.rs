//! Cameras as records, and the index that finds them by name.

use lease::{
    Authority, Committed, LeaseRef, Transaction,
    registry::{CAMERA, Camera},
};
use leasehold_api::{Code, Document};

use super::{
    Place, index_key, invalid, place_of, site,
    store::{self, Condition, Found},
};
use crate::{App, Reject, auth::Caller};

pub(crate) fn unknown() -> Reject {
    Reject::new(Code::CameraNotFound, "no such camera is known")
}

/// A camera of a site.
pub(crate) async fn load(
    authority: &dyn Authority,
    place: &Place,
    uuid: &str,
) -> Result<Found<Camera>, Reject> {
    if !lease::registry::is_name(uuid) {
        return Err(unknown());
    }
    store::load(authority, place.key(CAMERA, uuid)?)
        .await?
        .ok_or_else(unknown)
}

/// A camera by its name alone, if this caller may know of it.
pub(crate) async fn find(app: &App, caller: &Caller, uuid: &str) -> Result<Found<Camera>, Reject> {
    let place = place_of(app.authority(), CAMERA, uuid).await?;
    let place = place
        .filter(|found| caller.sees(Some(&found.value.tenant_id)))
        .ok_or_else(unknown)?;
    load(app.authority(), &place.value, uuid).await
}

/// All cameras of a site.
pub(crate) async fn all(
    authority: &dyn Authority,
    place: &Place,
) -> Result<Vec<Found<Camera>>, Reject> {
    store::all(authority, CAMERA, place.prefix()).await
}

/// Adds a camera.
pub(crate) async fn create(
    app: &App,
    place: &Place,
    Document(mut fields): Document,
) -> Result<Found<Camera>, Reject> {
    store::settle(&mut fields, "tenant_id", place.tenant_id.clone().into())?;
    store::settle(&mut fields, "site_id", place.site_id.clone().into())?;
    let camera: Camera = store::parse(fields)?;
    camera.validate().map_err(invalid)?;
    let now = app.authority().now().await?;
    let key = place.key(CAMERA, &camera.camera_uuid)?;
    let index = index_key(CAMERA, &camera.camera_uuid)?;
    let transaction = Transaction {
        expect: vec![store::absent(index.clone()), store::absent(key.clone())],
        writes: vec![
            store::put(index, place, now, now, "created")?,
            store::put(key.clone(), &camera, now, now, "created")?,
            site::touch(place, now)?,
        ],
        ..Transaction::default()
    };
    match app.authority().commit(transaction).await? {
        Committed::Done { .. } => {}
        Committed::Conflict { .. } | Committed::Refused(_) => {
            return Err(Reject::new(
                Code::AlreadyExists,
                format!("a camera named {} exists already", camera.camera_uuid),
            ));
        }
    }
    load(app.authority(), place, &camera.camera_uuid).await
}

/// Changes the fields of a camera that are named.
pub(crate) async fn update(
    app: &App,
    place: &Place,
    uuid: &str,
    condition: Condition,
    Document(mut change): Document,
) -> Result<Found<Camera>, Reject> {
    store::settle(&mut change, "tenant_id", place.tenant_id.clone().into())?;
    store::settle(&mut change, "site_id", place.site_id.clone().into())?;
    store::settle(&mut change, "camera_uuid", uuid.into())?;
    for _ in 0..store::ATTEMPTS {
        let found = load(app.authority(), place, uuid).await?;
        condition.check(&found)?;
        let Ok(serde_json::Value::Object(mut fields)) = serde_json::to_value(&found.value) else {
            return Err(Reject::new(Code::InternalError, "a camera is an object"));
        };
        store::merge(&mut fields, change.clone());
        let camera: Camera = store::parse(fields)?;
        camera.validate().map_err(invalid)?;
        if camera == found.value {
            // Nothing changes: no new version for anyone to fetch.
            return Ok(found);
        }
        let now = app.authority().now().await?;
        let transaction = Transaction {
            expect: vec![found.expect()],
            writes: vec![
                store::put(found.key.clone(), &camera, found.created_at, now, "changed")?,
                site::touch(place, now)?,
            ],
            ..Transaction::default()
        };
        if let Committed::Done { .. } = app.authority().commit(transaction).await? {
            return load(app.authority(), place, uuid).await;
        }
        if condition != Condition::None {
            return Err(store::changed());
        }
    }
    Err(store::contended())
}

/// Removes a camera. Whoever holds it loses it in the same step: work that is gone keeps no lease.
pub(crate) async fn delete(
    app: &App,
    place: &Place,
    uuid: &str,
    condition: Condition,
) -> Result<(), Reject> {
    for _ in 0..store::ATTEMPTS {
        let found = load(app.authority(), place, uuid).await?;
        condition.check(&found)?;
        let now = app.authority().now().await?;
        let lease = app
            .authority()
            .lease(lease::Key::new(CAMERA, uuid)?)
            .await?;
        let transaction = Transaction {
            expect: vec![found.expect()],
            writes: vec![
                store::remove(found.key.clone(), "removed"),
                store::remove(index_key(CAMERA, uuid)?, "removed"),
                site::touch(place, now)?,
            ],
            release: lease.iter().map(LeaseRef::from).collect(),
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
