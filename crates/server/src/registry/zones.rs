//! Zones: documents that a site numbers.

use lease::registry::{FieldError, ZONE, Zone};
use leasehold_api::Code;
use serde_json::{Map, Value};

use super::{SiteId, items::Item, store};
use crate::Reject;

impl Item for Zone {
    const KIND: &'static str = ZONE;
    const UNIQUE: bool = false;
    const ANSWERED: &'static [&'static str] = &["created_at", "updated_at"];

    fn name_of(text: &str) -> Option<String> {
        text.parse().ok().map(name)
    }

    fn name(&self) -> String {
        name(self.zone_id)
    }

    fn validate(&self) -> Result<(), Vec<FieldError>> {
        Zone::validate(self)
    }

    fn settle(
        fields: &mut Map<String, Value>,
        _: &SiteId,
        text: Option<&str>,
    ) -> Result<(), Reject> {
        match text {
            Some(text) => {
                let id: u32 = text.parse().map_err(|_| Self::unknown())?;
                store::settle(fields, "zone_id", id.into())
            }
            None => Ok(()),
        }
    }

    fn unknown() -> Reject {
        Reject::new(Code::NotFound, "no such zone is known")
    }

    fn taken(&self) -> Reject {
        Reject::new(
            Code::AlreadyExists,
            format!("this site has a zone {} already", self.zone_id),
        )
    }
}

/// The number as a name that sorts like the number.
fn name(id: u32) -> String {
    format!("{id:010}")
}
