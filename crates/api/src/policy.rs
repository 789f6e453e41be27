//! The outage policy on the wire (L13): `{"policy": "hold", "grace_seconds": 300}`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Check, Seconds};

/// What happens while the holder cannot reach the authority.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutagePolicy {
    /// `fail_closed`, `hold` or `continue`.
    pub policy: String,
    /// How long the holder continues; required with `hold` and `continue`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub grace_seconds: Option<Seconds>,
}

impl OutagePolicy {
    /// What `policy` may be.
    pub const WORDS: [&str; 3] = ["fail_closed", "hold", "continue"];

    /// The kernel's value, or what is wrong under the name `field`.
    pub fn check(&self, field: &str, check: &mut Check) -> Option<lease::OnOutage> {
        let grace_field = format!("{field}.grace_seconds");
        if self.policy == "fail_closed" {
            if self.grace_seconds.is_some() {
                check.wrong(grace_field, "nothing: fail_closed has no grace");
                return None;
            }
            return Some(lease::OnOutage::FailClosed);
        }
        let with_grace: fn(lease::Grace) -> lease::OnOutage = match self.policy.as_str() {
            "hold" => lease::OnOutage::Hold,
            "continue" => lease::OnOutage::Continue,
            _ => {
                check.wrong(
                    format!("{field}.policy"),
                    "one of fail_closed, hold, continue",
                );
                return None;
            }
        };
        let grace = check.required(&grace_field, self.grace_seconds)?;
        check
            .take(&grace_field, lease::Grace::from_millis(grace.millis()))
            .map(with_grace)
    }
}

impl From<lease::OnOutage> for OutagePolicy {
    fn from(policy: lease::OnOutage) -> Self {
        let (word, grace) = match policy {
            lease::OnOutage::FailClosed => ("fail_closed", None),
            lease::OnOutage::Hold(grace) => ("hold", Some(grace)),
            lease::OnOutage::Continue(grace) => ("continue", Some(grace)),
        };
        Self {
            policy: word.to_owned(),
            grace_seconds: grace.map(|grace| Seconds::from_millis(grace.millis())),
        }
    }
}
