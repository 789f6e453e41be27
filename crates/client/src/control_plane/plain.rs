//! How to get along with a server that knows only the document's endpoints and fields.

use leasehold_api::{
    AcquireRequest, Camera, Code, Lease, LostLease, RegisterRequest, RenewRequest,
    RunnerHeartbeatAnswer,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{ControlPlaneClient, Outcome};
use crate::Error;

/// Whether the server stumbled over fields that the document does not have. This project's server
/// names its codes; a stranger's 400 or 422 has none of them.
pub(super) fn refuses_words(error: &Error) -> bool {
    match error {
        Error::Problem(problem) => matches!(problem.status, 400 | 422) && problem.known().is_none(),
        _ => false,
    }
}

/// Whether the server has no such endpoint at all.
pub(super) fn lacks(error: &Error) -> bool {
    match error {
        Error::Problem(problem) => {
            matches!(problem.status, 404 | 405 | 501)
                && problem.known().is_none_or(|code| code == Code::NotFound)
        }
        _ => false,
    }
}

pub(super) fn register(request: &RegisterRequest) -> RegisterRequest {
    RegisterRequest {
        incarnation: None,
        ttl_seconds: None,
        ..request.clone()
    }
}

pub(super) fn acquire(request: &AcquireRequest) -> AcquireRequest {
    AcquireRequest {
        camera_uuid: request.camera_uuid.clone(),
        runner_id: request.runner_id.clone(),
        shard_id: request.shard_id.clone(),
        tenant_id: request.tenant_id.clone(),
        site_id: request.site_id.clone(),
        ttl_seconds: request.ttl_seconds,
        config_version: request.config_version.clone(),
        zone_version: request.zone_version.clone(),
        ..AcquireRequest::default()
    }
}

/// Reads a value that was asked for as JSON first.
pub(super) fn read<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    serde_json::from_value(value)
        .map_err(|error| Error::Unknown(format!("an answer that cannot be read: {error}")))
}

/// The items of a page: an array, or an object that has it under its own name or as `results`.
pub(super) fn page(value: Value, name: &str) -> Result<(Vec<Value>, Option<String>), Error> {
    let strange = || Error::Unknown(format!("a list of {name} was expected"));
    match value {
        Value::Array(items) => Ok((items, None)),
        Value::Object(mut fields) => {
            let cursor = fields
                .get("next_cursor")
                .and_then(Value::as_str)
                .map(str::to_owned);
            match fields.remove(name).or_else(|| fields.remove("results")) {
                Some(Value::Array(items)) => Ok((items, cursor)),
                _ => Err(strange()),
            }
        }
        _ => Err(strange()),
    }
}

/// What the server says about a runner, if it does.
pub(super) fn status(value: &Value) -> String {
    let status = value.get("status").and_then(Value::as_str);
    status.unwrap_or("active").to_owned()
}

/// Renews lease by lease. One that the server did not answer for is neither kept nor lost.
pub(super) async fn renewed(
    client: &ControlPlaneClient,
    leases: &[Lease],
    status: String,
) -> RunnerHeartbeatAnswer {
    let mut answer = RunnerHeartbeatAnswer {
        success: true,
        status,
        next_heartbeat_due: None,
        leases: Vec::new(),
        lost: Vec::new(),
        take: Vec::new(),
        give_up: Vec::new(),
        cameras: Vec::new(),
        offers: Vec::new(),
        config: None,
        orders: Vec::new(),
    };
    for lease in leases {
        match client
            .renew(&lease.lease_id, &RenewRequest::default())
            .await
        {
            Outcome::Yes(lease) => answer.leases.push(lease),
            Outcome::No(error) => answer.lost.push(LostLease {
                lease_id: lease.lease_id.clone(),
                camera_uuid: lease.camera_uuid.clone(),
                loss: (&error.loss()).into(),
            }),
            Outcome::Unknown(error) => {
                tracing::debug!(lease = lease.lease_id, %error, "not renewed");
            }
        }
    }
    answer
}

/// Cameras of a site that nobody holds, asked for one by one.
pub(super) async fn available(
    client: &ControlPlaneClient,
    tenant: &str,
    site: &str,
) -> Result<Vec<String>, Error> {
    let cameras: Vec<Camera> = client.cameras(tenant, site).await.into_result()?;
    let mut free = Vec::new();
    for camera in cameras {
        let name = camera.camera.camera_uuid;
        if client.camera_lease(&name).await.into_result()?.is_none() {
            free.push(name);
        }
    }
    Ok(free)
}
