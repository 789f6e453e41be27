//! Keeping, checking and ending leases.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Check, FieldError, Lease, Loss, Seconds, Time,
    acquire::{check_holder, check_key, check_ttl},
};

/// Keeps one lease.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RenewRequest {
    /// The token that must be the lease's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// A new ttl from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub ttl_seconds: Option<Seconds>,
    /// What the holder reports about its work: a JSON object.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub processing_stats: Option<serde_json::Map<String, serde_json::Value>>,
}

impl RenewRequest {
    /// The renewal of this lease, or everything that is wrong.
    pub fn check(self, lease: &lease::Lease) -> Result<lease::Renewal, Vec<FieldError>> {
        let mut check = Check::new();
        if self.token.is_some_and(|token| token != lease.token.get()) {
            check.wrong("token", "the token of this lease");
        }
        let ttl = match self.ttl_seconds {
            Some(ttl) => check_ttl("ttl_seconds", Some(ttl), &mut check).map(Some),
            None => Some(None),
        };
        let renewal = ttl.map(|ttl| lease::Renewal {
            ttl,
            stats: self.processing_stats.as_ref().map(stats_text),
            ..lease::Renewal::of(lease)
        });
        check.finish(renewal)
    }
}

/// A heartbeat for one lease, which renews it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HeartbeatRequest {
    /// What the holder reports about its work: a JSON object.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub processing_stats: Option<serde_json::Map<String, serde_json::Value>>,
    /// How the camera is; kept as `camera_status` within the stats.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub camera_status: Option<serde_json::Value>,
}

/// What a heartbeat answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatAnswer {
    /// Always true: a lease that is gone is a problem, not an answer.
    pub success: bool,
    /// Until when the lease is valid now.
    pub lease_expires_at: Time,
    /// When the next heartbeat should come: after a third of the ttl.
    pub next_heartbeat_due: Time,
}

/// It worked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Success {
    /// Always true.
    pub success: bool,
}

/// Takes a lease away.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeRequest {
    /// Why: 1 to 512 bytes. The holder is notified.
    pub reason: String,
}

/// Asks whether a lease is still live.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ValidateRequest {
    /// The token that must be the lease's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
}

/// Whether a lease is live.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ValidateAnswer {
    /// Live, and with the token that was sent, if one was.
    pub active: bool,
    /// The lease's token.
    pub token: u64,
    /// Where the lease is in its life.
    #[serde(default)]
    pub status: String,
    /// Until when it is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

/// Keeps many leases of one holder, or all of them, in one step.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RenewManyRequest {
    /// Whose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Whose, for runners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner_id: Option<String>,
    /// Which process start of the holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// Which leases; absent means whatever this holder and incarnation has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leases: Option<Vec<RenewItem>>,
    /// Answer with how many were kept, and one by one only what was lost. Only without `leases`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub brief: bool,
}

/// One lease to keep.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewItem {
    /// The kind of its key.
    pub kind: String,
    /// The id of its key.
    pub id: String,
    /// Its token.
    pub token: u64,
    /// A new ttl from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub ttl_seconds: Option<Seconds>,
    /// What the holder reports about its work: a JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub processing_stats: Option<serde_json::Map<String, serde_json::Value>>,
}

impl RenewItem {
    /// Keep this lease as it is.
    pub fn of(lease: &lease::Lease) -> Self {
        Self {
            kind: lease.key.kind().to_owned(),
            id: lease.key.id().to_owned(),
            token: lease.token.get(),
            ttl_seconds: None,
            processing_stats: None,
        }
    }

    /// The kernel's value, or what is wrong, with `prefix` before each field's name.
    pub fn check(&self, prefix: &str, check: &mut Check) -> Option<lease::Renewal> {
        let key = check_key(&self.kind, &self.id, prefix, check);
        let token = check.take(&format!("{prefix}token"), lease::Token::new(self.token));
        let ttl = match self.ttl_seconds {
            Some(ttl) => Some(check_ttl(
                &format!("{prefix}ttl_seconds"),
                Some(ttl),
                check,
            )?),
            None => None,
        };
        Some(lease::Renewal {
            key: key?,
            token: token?,
            ttl,
            stats: self.processing_stats.as_ref().map(stats_text),
        })
    }
}

fn stats_text(stats: &serde_json::Map<String, serde_json::Value>) -> std::sync::Arc<str> {
    serde_json::Value::Object(stats.clone()).to_string().into()
}

impl RenewManyRequest {
    /// The kernel's request, or everything that is wrong with this one.
    pub fn check(&self) -> Result<lease::Renew, Vec<FieldError>> {
        let mut check = Check::new();
        let holder = match (&self.holder, &self.runner_id) {
            (Some(name), None) => {
                check_holder("holder", name, self.incarnation.as_deref(), &mut check)
            }
            (None, Some(name)) => {
                check_holder("runner_id", name, self.incarnation.as_deref(), &mut check)
            }
            _ => {
                check.wrong("holder", "exactly one of holder and runner_id");
                None
            }
        };
        let leases = self.check_leases(&mut check);
        if self.brief && self.leases.is_some() {
            check.wrong("brief", "only for everything a holder has, without leases");
        }
        let request = (|| {
            Some(lease::Renew {
                holder: holder?,
                leases: leases?,
            })
        })();
        if let Some(Err(invalid)) = request.as_ref().map(lease::Renew::validate) {
            let field = match invalid.field {
                "stats" => "processing_stats",
                other => other,
            };
            check.wrong(field, invalid.expected);
        }
        check.finish(request)
    }

    fn check_leases(&self, check: &mut Check) -> Option<lease::Renewals> {
        let Some(items) = &self.leases else {
            return Some(lease::Renewals::All);
        };
        let checked: Vec<_> = items
            .iter()
            .enumerate()
            .map(|(index, item)| item.check(&format!("leases[{index}]."), check))
            .collect();
        checked
            .into_iter()
            .collect::<Option<Vec<_>>>()
            .map(lease::Renewals::These)
    }
}

/// What became of one renewal.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Renewed {
    /// The kind of the key asked about.
    pub kind: String,
    /// The id of the key asked about.
    pub id: String,
    /// The token asked about.
    pub token: u64,
    /// Whether it was kept.
    pub renewed: bool,
    /// The lease as it is now, when it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// Why it is gone, when it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
}

impl From<&lease::Renewed> for Renewed {
    fn from(it: &lease::Renewed) -> Self {
        Self {
            kind: it.key.kind().to_owned(),
            id: it.key.id().to_owned(),
            token: it.token.get(),
            renewed: it.outcome.is_ok(),
            lease: it.outcome.as_ref().ok().map(Lease::from),
            loss: it.outcome.as_ref().err().map(Loss::from),
        }
    }
}

/// An answer per lease: in the order of the request, or of the keys when all were asked for. A brief one
/// has only those that were lost, and how many were kept.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct RenewedList {
    /// The answers.
    pub results: Vec<Renewed>,
    /// How many were kept, in a brief answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<u64>,
    /// When the first of these expires unless it is kept again, in a brief answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

impl From<&lease::Kept> for RenewedList {
    fn from(kept: &lease::Kept) -> Self {
        Self {
            results: kept.lost.iter().map(Renewed::from).collect(),
            kept: Some(kept.leases),
            expires_at: kept.expires_at.map(Time::from),
        }
    }
}
