//! Where everything is. Paths are accepted with and without a trailing slash.

/// The prefix of the control plane.
pub const V1: &str = "/api/v1";

/// `POST`: ask for keys.
pub const ACQUIRE: &str = "/api/v1/leases/acquire";
/// `POST`: keep many leases.
pub const RENEW_MANY: &str = "/api/v1/leases/renew";
/// `GET`: list leases.
pub const LEASES: &str = "/api/v1/leases";
/// `GET`: one lease.
pub const LEASE: &str = "/api/v1/leases/{lease_id}";
/// `PUT`: keep one lease.
pub const RENEW: &str = "/api/v1/leases/{lease_id}/renew";
/// `POST`: a sign of life for one lease.
pub const HEARTBEAT: &str = "/api/v1/leases/{lease_id}/heartbeat";
/// `POST`: is it still live?
pub const VALIDATE: &str = "/api/v1/leases/{lease_id}/validate";
/// `DELETE`: give it back.
pub const RELEASE: &str = "/api/v1/leases/{lease_id}/release";
/// `POST`: take it away.
pub const REVOKE: &str = "/api/v1/leases/{lease_id}/revoke";
/// `GET`: the live leases of a runner.
pub const BY_RUNNER: &str = "/api/v1/leases/runner/{runner_id}";
/// `GET`: the live lease of a camera.
pub const BY_CAMERA: &str = "/api/v1/leases/camera/{camera_uuid}";
/// `GET`: who owned a key, and when.
pub const HISTORY: &str = "/api/v1/leases/history";
/// Whether the history is as it was written.
pub const HISTORY_VERIFY: &str = "/api/v1/leases/history/verify";
/// `GET`: a page of the history.
pub const EVENTS: &str = "/api/v1/events";
/// `GET`: changes as server-sent events.
pub const EVENT_STREAM: &str = "/api/v1/events/stream";
/// `POST`: do these tokens still count?
pub const FENCES_CHECK: &str = "/api/v1/fences/check";
/// `GET`: who is there.
pub const HOLDERS: &str = "/api/v1/holders";
/// `PUT`, `DELETE`: one holder's presence.
pub const HOLDER: &str = "/api/v1/holders/{name}";
/// `GET` as WebSocket: the holder's stream.
pub const HOLDER_STREAM: &str = "/api/v1/holders/{name}/stream";
/// `GET`: who polls what.
pub const NODES: &str = "/api/v1/nodes";
/// `GET`, `POST`: what is polled.
pub const TARGETS: &str = "/api/v1/targets";
/// `GET`, `PUT`, `DELETE`: one polling target.
pub const TARGET: &str = "/api/v1/targets/{target_id}";
/// `POST`: a runner says that it is there.
pub const RUNNER_REGISTER: &str = "/api/v1/runners/register";
/// `GET`: list runners.
pub const RUNNERS: &str = "/api/v1/runners";
/// `GET`, `DELETE`: one runner.
pub const RUNNER: &str = "/api/v1/runners/{runner_id}";
/// `PUT`: a runner's sign of life, which renews everything and answers everything.
pub const RUNNER_HEARTBEAT: &str = "/api/v1/runners/{runner_id}/heartbeat";
/// `GET`: which cameras a runner should have.
pub const RUNNER_ASSIGNMENTS: &str = "/api/v1/runners/{runner_id}/assignments";
/// `POST`: nothing new for this runner.
pub const RUNNER_CORDON: &str = "/api/v1/runners/{runner_id}/cordon";
/// `POST`: work for this runner again.
pub const RUNNER_UNCORDON: &str = "/api/v1/runners/{runner_id}/uncordon";
/// `POST`: take everything from this runner.
pub const RUNNER_DRAIN: &str = "/api/v1/runners/{runner_id}/drain";
/// `GET`, `POST`: deployments.
pub const DEPLOYMENTS: &str = "/api/v1/deployments";
/// `GET`: the deployment of a group.
pub const DEPLOYMENT: &str = "/api/v1/deployments/{tenant_id}/{site_id}/{deployment_group}";
/// `POST`: shift nothing further.
pub const DEPLOYMENT_PAUSE: &str =
    "/api/v1/deployments/{tenant_id}/{site_id}/{deployment_group}/pause";
/// `POST`: shift cameras again.
pub const DEPLOYMENT_RESUME: &str =
    "/api/v1/deployments/{tenant_id}/{site_id}/{deployment_group}/resume";
/// `POST`: give every camera back to the version before.
pub const DEPLOYMENT_ROLLBACK: &str =
    "/api/v1/deployments/{tenant_id}/{site_id}/{deployment_group}/rollback";
/// `GET`, `PUT`: a camera by its name alone.
pub const CAMERA: &str = "/api/v1/cameras/{camera_uuid}";
/// `GET`: why a camera is where it is.
pub const CAMERA_EXPLAIN: &str = "/api/v1/cameras/{camera_uuid}/explain";
/// `GET`, `PUT`: the newest still of a camera.
pub const CAMERA_PICTURE: &str = "/api/v1/cameras/{camera_uuid}/picture";
/// `GET`: cameras that nobody holds.
pub const CAMERAS_AVAILABLE: &str = "/api/v1/cameras/available";
/// `GET`, `PUT`: the settings of a site.
pub const SITE: &str = "/api/v1/tenants/{tenant_id}/sites/{site_id}";
/// `GET`: the versions of a site's configuration.
pub const SITE_VERSION: &str = "/api/v1/tenants/{tenant_id}/sites/{site_id}/config/version";
/// `GET`: which cameras of a site would move, and why.
pub const SITE_PLAN: &str = "/api/v1/tenants/{tenant_id}/sites/{site_id}/plan";
/// `GET`, `POST`: the cameras of a site.
pub const SITE_CAMERAS: &str = "/api/v1/tenants/{tenant_id}/sites/{site_id}/cameras";
/// `GET`, `PUT`, `DELETE`: one camera of a site.
pub const SITE_CAMERA: &str = "/api/v1/tenants/{tenant_id}/sites/{site_id}/cameras/{camera_uuid}";
/// `GET`, `POST`: the zones of a site.
pub const SITE_ZONES: &str = "/api/v1/tenants/{tenant_id}/sites/{site_id}/zones";
/// `GET`, `PUT`, `DELETE`: one zone of a site.
pub const SITE_ZONE: &str = "/api/v1/tenants/{tenant_id}/sites/{site_id}/zones/{zone_id}";
/// `POST`: a method of the authority.
pub const AUTHORITY: &str = "/api/v1/authority/{method}";
/// `GET`, `POST`: the credentials that were made.
pub const CREDENTIALS: &str = "/api/v1/credentials";
/// `DELETE`: revoke a credential.
pub const CREDENTIAL: &str = "/api/v1/credentials/{credential_id}";
/// `POST`: replace a credential's secret.
pub const CREDENTIAL_ROTATE: &str = "/api/v1/credentials/{credential_id}/rotate";
/// `POST`, `DELETE`: log the page in and out with a cookie.
pub const SESSION: &str = "/api/v3/auth/session";
/// The process is alive.
pub const HEALTHZ: &str = "/healthz";
/// The same, where clients of the first control plane look for it.
pub const HEALTH: &str = "/health";
/// The store can be reached.
pub const READYZ: &str = "/readyz";
/// Prometheus metrics.
pub const METRICS: &str = "/metrics";
/// The specification of all of this.
pub const OPENAPI: &str = "/api/openapi.json";
/// The page that shows the specification.
pub const DOCS: &str = "/api/docs";
/// What each problem means and what to do about it.
pub const PROBLEMS: &str = "/api/docs/problems";

/// Puts values into a path, in order, each encoded so that it stays one segment.
///
/// ```
/// use leasehold_api::paths;
/// assert_eq!(paths::fill(paths::HOLDER, &["a/b c"]), "/api/v1/holders/a%2Fb%20c");
/// ```
pub fn fill(path: &str, values: &[&str]) -> String {
    let mut values = values.iter();
    path.split('/')
        .map(|segment| {
            if segment.starts_with('{') {
                values.next().map_or(String::new(), |value| encode(value))
            } else {
                segment.to_owned()
            }
        })
        .collect::<Vec<_>>()
        .join("/")
}

/// The path of a runner that is named by its id, or by `tenant/id` where another tenant may have one of the
/// same name.
pub fn runner(path: &str, runner: &str) -> String {
    match runner.split_once('/') {
        Some((tenant, id)) => format!("{}?tenant_id={}", fill(path, &[id]), encode(tenant)),
        None => fill(path, &[runner]),
    }
}

/// Encodes one segment of a path, or one value of a query.
pub fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(byte.into());
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}
