//! Cameras: documents with unique names, since runners own them by their names.

use lease::{
    redact,
    registry::{CAMERA, Camera, FieldError, is_name},
};
use leasehold_api::Code;
use serde_json::{Map, Value};

use super::{
    SiteId,
    items::{self, Item},
    place_of,
    store::{self, Found},
};
use crate::{App, Reject, auth::Caller};

impl Item for Camera {
    const KIND: &'static str = CAMERA;
    const UNIQUE: bool = true;
    const ANSWERED: &'static [&'static str] = &[
        "config_version",
        "zone_version",
        "created_at",
        "updated_at",
        "parked",
    ];

    fn name_of(text: &str) -> Option<String> {
        is_name(text).then(|| text.to_owned())
    }

    fn name(&self) -> String {
        self.camera_uuid.clone()
    }

    fn validate(&self) -> Result<(), Vec<FieldError>> {
        Camera::validate(self)
    }

    fn settle(
        fields: &mut Map<String, Value>,
        place: &SiteId,
        text: Option<&str>,
    ) -> Result<(), Reject> {
        store::settle(fields, "tenant_id", place.tenant_id.clone().into())?;
        store::settle(fields, "site_id", place.site_id.clone().into())?;
        match text {
            Some(uuid) => store::settle(fields, "camera_uuid", uuid.into()),
            None => Ok(()),
        }
    }

    fn restore(change: &mut Map<String, Value>, stored: &Self) {
        if let Some(Value::String(url)) = change.get_mut("rtsp_url") {
            *url = redact::restored(url, &stored.rtsp_url);
        }
    }

    fn unknown() -> Reject {
        Reject::new(Code::CameraNotFound, "no such camera is known")
    }

    fn taken(&self) -> Reject {
        Reject::new(
            Code::AlreadyExists,
            format!("a camera named {} exists already", self.camera_uuid),
        )
    }
}

/// A camera by its name alone, if this caller may know of it.
pub(crate) async fn find(app: &App, caller: &Caller, uuid: &str) -> Result<Found<Camera>, Reject> {
    let place = place_of(app.authority(), CAMERA, uuid).await?;
    let place = place
        .filter(|found| caller.sees(Some(&found.value.tenant_id)))
        .ok_or_else(Camera::unknown)?;
    items::load(app.authority(), &place.value, uuid).await
}
