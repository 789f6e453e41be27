//! Credentials on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Seconds, Time};

/// Makes a credential.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CredentialRequest {
    /// What it is for: 1 to 64 bytes without control characters.
    pub name: String,
    /// What it allows: `leases`, `runners`, `v3` or `credentials`, a colon, and `read`, `write` or `admin`.
    pub scopes: Vec<String>,
    /// The only tenant it may see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// How long it is valid; forever when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub expires_in_seconds: Option<Seconds>,
}

impl CredentialRequest {
    /// The longest name, and the longest name of a tenant, in bytes.
    pub const MAX_NAME_BYTES: usize = 64;
    /// How many scopes one credential may have.
    pub const MAX_SCOPES: usize = 16;
    /// The longest that a credential may be valid for: as long as anybody plans.
    pub const MAX_LIFE_SECONDS: u64 = 10 * 366 * 86_400;
}

/// Replaces the secret of a credential.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateRequest {
    /// How long the secret before is let in beside the new one; not at all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub grace_seconds: Option<Seconds>,
}

/// A credential, without its secret.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Credential {
    /// Names it in lists and logs.
    pub id: String,
    /// What it is for.
    pub name: String,
    /// What it allows.
    pub scopes: Vec<String>,
    /// The only tenant it may see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// `active`, `expired` or `revoked`.
    pub state: String,
    /// When it was made.
    pub created_at: Time,
    /// From when on it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// When its secret was last replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotated_at: Option<Time>,
    /// Until when the old secret is also valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_until: Option<Time>,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Time>,
}

/// A credential with its secret, which is shown this once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CredentialSecret {
    /// The credential.
    #[serde(flatten)]
    pub credential: Credential,
    /// What its owner sends as bearer token.
    pub secret: String,
}

/// Every credential that was made; configured ones are not among them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct CredentialList {
    /// Oldest first.
    pub credentials: Vec<Credential>,
}
