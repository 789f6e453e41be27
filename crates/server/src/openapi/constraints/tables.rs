//! Which field and which parameter is constrained how.

use lease::{
    Acquire, Command, EventCause, EventKind, Grace, Labels, Loss, Query, Renew, Revoke,
    polling::INTERVAL_SECONDS,
    registry::{
        Camera, CameraStatus, Deployment, DeploymentState, MAX_LABELS, Polygon, Reason, Runner,
        RunnerStatus, Zone,
    },
    session,
};
use leasehold_api::{
    CredentialRequest, DeploymentRequest, FenceCheck, MAX_WAIT_SECONDS, OutagePolicy,
    RegisterRequest, RunnerHeartbeatRequest,
    authority::{CAPABILITIES, WATCH},
    sessions::{IntentParams, IntentRequest, MAX_FILE_BYTES, STREAM_FILES},
};
use serde_json::json;

use super::values::{
    Keywords, ONE_LINE, and, default, event_types, first_ttl, holder, id, incarnation, items, key,
    kind, label_value, listed_label, name, plain, range, scopes, seconds, share, states, statuses,
    text, token, ttl, url, visible, words,
};
use crate::{
    auth::Scope,
    pictures::Picture,
    query::{DEFAULT_PAGE, MAX_OFFSET, MAX_PAGE, MAX_REVISION},
};

/// The fields of bodies: the schema, the path of the field in it (`ids[]` for the items of a list,
/// `labels{}` for the values of a map, `labels{name}` for their names), and what is stated about it.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn fields() -> Vec<(&'static str, &'static str, Keywords)> {
    let keys = and(items(1, Acquire::MAX_KEYS), &json!({"uniqueItems": true}));
    let labels = json!({"maxProperties": Labels::MAX_COUNT});
    let label_name = plain(Labels::MAX_NAME_BYTES);
    let life = CredentialRequest::MAX_LIFE_SECONDS;
    let (shortest, longest) = Deployment::HEALTH_TIMEOUT_MS;
    let (least_interval, most_interval) = INTERVAL_SECONDS;
    let mut rows = vec![
        ("AcquireRequest", "kind", kind()),
        ("AcquireRequest", "id", id()),
        ("AcquireRequest", "keys", keys.clone()),
        ("AcquireRequest", "camera_uuid", id()),
        ("AcquireRequest", "holder", holder()),
        ("AcquireRequest", "incarnation", incarnation()),
        ("AcquireRequest", "runner_id", holder()),
        ("AcquireRequest", "shard_id", label_value()),
        ("AcquireRequest", "tenant_id", label_value()),
        ("AcquireRequest", "site_id", label_value()),
        ("AcquireRequest", "config_version", label_value()),
        ("AcquireRequest", "zone_version", label_value()),
        ("AcquireRequest", "request_id", label_value()),
        ("AcquireRequest", "ttl_seconds", first_ttl()),
        (
            "AcquireRequest",
            "wait_seconds",
            and(range(0, MAX_WAIT_SECONDS), &default(0)),
        ),
        ("AcquireRequest", "labels", labels.clone()),
        ("AcquireRequest", "labels{}", label_value()),
        ("AcquireRequest", "labels{name}", label_name.clone()),
        ("KeyParts", "kind", kind()),
        ("KeyParts", "id", id()),
        ("Pool", "kind", kind()),
        ("Pool", "ids", keys),
        ("Pool", "ids[]", id()),
        ("OutagePolicy", "policy", words(OutagePolicy::WORDS)),
        (
            "OutagePolicy",
            "grace_seconds",
            range(seconds(1), seconds(Grace::MAX_MILLIS)),
        ),
        ("RenewRequest", "token", token()),
        ("RenewRequest", "ttl_seconds", ttl()),
        ("RenewManyRequest", "holder", holder()),
        ("RenewManyRequest", "runner_id", holder()),
        ("RenewManyRequest", "incarnation", incarnation()),
        ("RenewManyRequest", "leases", items(0, Renew::MAX_LEASES)),
        ("RenewItem", "kind", kind()),
        ("RenewItem", "id", id()),
        ("RenewItem", "token", token()),
        ("RenewItem", "ttl_seconds", ttl()),
        (
            "RevokeRequest",
            "reason",
            text(r"\S", 1, Revoke::MAX_REASON_BYTES),
        ),
        ("ValidateRequest", "token", token()),
        ("FenceCheck", "tokens", items(1, FenceCheck::MAX_TOKENS)),
        ("FencedToken", "kind", kind()),
        ("FencedToken", "id", id()),
        ("FencedToken", "token", token()),
        (
            "CredentialRequest",
            "name",
            text(ONE_LINE, 1, CredentialRequest::MAX_NAME_BYTES),
        ),
        (
            "CredentialRequest",
            "tenant_id",
            text(ONE_LINE, 1, CredentialRequest::MAX_NAME_BYTES),
        ),
        (
            "CredentialRequest",
            "scopes",
            items(1, CredentialRequest::MAX_SCOPES),
        ),
        ("CredentialRequest", "scopes[]", words(Scope::words())),
        ("CredentialRequest", "expires_in_seconds", range(1, life)),
        ("RotateRequest", "grace_seconds", range(0, life)),
        ("DeploymentRequest", "tenant_id", name()),
        ("DeploymentRequest", "site_id", name()),
        ("DeploymentRequest", "deployment_group", name()),
        ("DeploymentRequest", "to_version", name()),
        ("DeploymentRequest", "from_version", name()),
        (
            "DeploymentRequest",
            "step",
            and(
                range(1, Deployment::MAX_STEP),
                &default(DeploymentRequest::DEFAULT_STEP),
            ),
        ),
        (
            "DeploymentRequest",
            "health_timeout_seconds",
            and(
                range(seconds(shortest), seconds(longest)),
                &default(seconds(DeploymentRequest::DEFAULT_HEALTH_TIMEOUT_MS)),
            ),
        ),
        ("PresenceRequest", "incarnation", incarnation()),
        ("PresenceRequest", "ttl_seconds", first_ttl()),
        ("PresenceRequest", "labels", labels),
        ("PresenceRequest", "labels{}", label_value()),
        ("PresenceRequest", "labels{name}", label_name),
        ("RegisterRequest", "runner_id", name()),
        ("RegisterRequest", "tenant_id", name()),
        ("RegisterRequest", "site_id", name()),
        ("RegisterRequest", "deployment_group", name()),
        ("RegisterRequest", "deployment_version", name()),
        ("RegisterRequest", "host", visible(Runner::MAX_HOST_BYTES)),
        ("RegisterRequest", "port", range(1, u16::MAX)),
        ("RegisterRequest", "metrics_port", range(0, u16::MAX)),
        (
            "RegisterRequest",
            "capacity",
            and(
                range(1, Runner::MAX_CAPACITY),
                &default(RegisterRequest::DEFAULT_CAPACITY),
            ),
        ),
        ("RegisterRequest", "incarnation", incarnation()),
        ("RegisterRequest", "ttl_seconds", first_ttl()),
        (
            "RunnerHeartbeatRequest",
            "active_leases",
            items(0, RunnerHeartbeatRequest::MAX_LEASES),
        ),
        (
            "RunnerHeartbeatRequest",
            "camera_status",
            json!({"maxProperties": RunnerHeartbeatRequest::MAX_LEASES}),
        ),
        ("RunnerHeartbeatRequest", "revision", range(0, MAX_REVISION)),
        ("TargetDocument", "id", id()),
        (
            "TargetDocument",
            "intervalSeconds",
            range(least_interval, most_interval),
        ),
        ("CameraDocument", "camera_uuid", name()),
        ("CameraDocument", "rtsp_url", url()),
        ("CameraDocument", "tenant_id", name()),
        ("CameraDocument", "site_id", name()),
        ("CameraDocument", "deployment_group", name()),
        ("CameraDocument", "zones", items(0, Camera::MAX_ZONES)),
        ("CameraDocument", "min_score", share()),
        ("CameraDocument", "iou_threshold", share()),
        ("MotionGatingDocument", "downscale", share()),
        (
            "MotionGatingDocument",
            "max_inference_interval_seconds",
            json!({"minimum": 0}),
        ),
        (
            "MotionGatingDocument",
            "adaptive_threshold_factor",
            json!({"minimum": 0}),
        ),
        (
            "MotionGatingDocument",
            "min_area_roi_percent",
            range(0, 100),
        ),
        (
            "ZoneDocument",
            "name",
            text(ONE_LINE, 1, Zone::MAX_NAME_BYTES),
        ),
        ("ZoneDocument", "priority", range(i32::MIN, i32::MAX)),
        (
            "ZoneDocument",
            "polygon",
            items(Polygon::MIN_POINTS, Polygon::MAX_POINTS),
        ),
        ("ZoneDocument", "polygon[]", items(2, 2)),
        ("ZoneDocument", "min_score", share()),
        ("ZoneDocument", "camera_uuid", name()),
        ("IntentRequest", "type", words(IntentRequest::TYPES)),
        (
            "IntentRequest",
            "service_ref",
            visible(session::MAX_SERVICE_REF_BYTES),
        ),
        (
            "IntentRequest",
            "profile",
            plain(session::MAX_PROFILE_BYTES),
        ),
        (
            "IntentRequest",
            "correlation_id",
            plain(session::MAX_CORRELATION_ID_BYTES),
        ),
        ("IntentParams", "mode", words(IntentParams::MODES)),
    ];
    let lists = [
        ("CameraDocument", "allow_labels", "allow_labels[]"),
        ("CameraDocument", "deny_labels", "deny_labels[]"),
        (
            "CameraDocument",
            "required_capabilities",
            "required_capabilities[]",
        ),
        ("ZoneDocument", "allow_labels", "allow_labels[]"),
        ("ZoneDocument", "deny_labels", "deny_labels[]"),
        ("RegisterRequest", "capabilities", "capabilities[]"),
    ];
    for (schema, list, item) in lists {
        rows.push((schema, list, items(0, MAX_LABELS)));
        rows.push((schema, item, listed_label()));
    }
    rows.extend(answers());
    rows
}

/// The fields of answers that have one of a few words.
fn answers() -> Vec<(&'static str, &'static str, Keywords)> {
    let orders = words(["cordon", "drain", "hard"]);
    let moves = || Reason::ALL.map(Reason::word).into_iter();
    vec![
        ("Lease", "status", statuses()),
        ("ValidateAnswer", "status", statuses()),
        ("Loss", "reason", words(Loss::words())),
        ("Event", "event_type", event_types()),
        ("EventCause", "type", words(EventCause::WORDS)),
        ("EventCause", "state", states()),
        (
            "Owner",
            "ended_by",
            words(EventKind::ENDS.map(EventKind::as_str)),
        ),
        ("SessionView", "state", states()),
        (
            "SessionView",
            "reason",
            words(
                session::Reason::ALL
                    .into_iter()
                    .filter(|it| *it != session::Reason::None),
            ),
        ),
        ("IntentAnswer", "state", states()),
        (
            "IntentAnswer",
            "status",
            words(["accepted", "idempotent_replay"]),
        ),
        ("Problem", "state", states()),
        ("Runner", "status", words(RunnerStatus::ALL)),
        ("RunnerHeartbeatAnswer", "status", words(RunnerStatus::ALL)),
        ("RunnerHeartbeatAnswer", "orders[]", orders),
        ("GiveUp", "reason", words(moves().chain(["removed"]))),
        ("Move", "reason", words(moves())),
        ("Explanation", "reason", words(moves())),
        (
            "Deployment",
            "state",
            words(DeploymentState::ALL.map(DeploymentState::as_str)),
        ),
        ("Credential", "scopes[]", scopes()),
        (
            "Credential",
            "state",
            words(["active", "expired", "revoked"]),
        ),
        ("Me", "scopes[]", scopes()),
        ("Replica", "leads[]", words(["expiry", "outbox"])),
        ("Health", "status", words(["ok", "ready"])),
    ]
}

/// The parameters: of which operation (`*` for all that have none of their own), its name (in braces
/// when it is a part of the path), and what is stated about it.
pub(super) fn parameters() -> Vec<(&'static str, &'static str, Keywords)> {
    let methods = Command::NAMES.iter().chain(Query::NAMES);
    let orders = ["key", "holder", "expires_at", "acquired_at", "token"];
    let backwards = orders.map(|order| format!("-{order}"));
    let sort = orders.map(str::to_owned).into_iter().chain(backwards);
    let page = and(range(1, MAX_PAGE), &default(DEFAULT_PAGE));
    let extensions = STREAM_FILES.map(|(extension, ..)| extension).join("|");
    let file = format!(r"^[A-Za-z0-9_-][A-Za-z0-9._-]*\.({extensions})$");
    let nothing = || json!({});
    vec![
        (
            "authority_call",
            "{method}",
            words(methods.chain([&CAPABILITIES, &WATCH])),
        ),
        ("leases_by_camera", "{camera_uuid}", id()),
        ("leases_by_runner", "{runner_id}", holder()),
        ("leases_list", "status", statuses()),
        (
            "overview_search",
            "status",
            words(["active", "pending", "jeopardy", "expiring"]),
        ),
        ("cameras_list", "status", words(CameraStatus::ALL)),
        ("sessions_list", "state", states()),
        // These search by equality, whatever the text.
        ("overview_search", "kind", nothing()),
        ("overview_search", "holder", nothing()),
        ("overview_search", "offset", nothing()),
        // The last id of the page before.
        ("sessions_list", "cursor", nothing()),
        ("sessions_file", "{file}", text(&file, 1, MAX_FILE_BYTES)),
        ("cameras_available", "tenant_id", name()),
        ("cameras_available", "site_id", name()),
        ("deployments_list", "tenant_id", name()),
        ("deployments_list", "site_id", name()),
        ("runners_list", "tenant_id", name()),
        ("runners_list", "site_id", name()),
        ("*", "{tenant_id}", name()),
        ("*", "{site_id}", name()),
        ("*", "{deployment_group}", name()),
        ("*", "{camera_uuid}", name()),
        ("*", "{runner_id}", name()),
        ("*", "{target_id}", id()),
        ("*", "{name}", holder()),
        ("*", "incarnation", incarnation()),
        ("*", "kind", kind()),
        ("*", "key", key()),
        ("*", "type", event_types()),
        ("*", "holder", holder()),
        ("*", "limit", page),
        ("*", "offset", range(0, MAX_OFFSET)),
        ("*", "cursor", json!({"pattern": "^[A-Za-z0-9_-]+$"})),
        ("*", "sort", words(sort)),
        ("*", "after", range(0, MAX_REVISION)),
        ("*", "Last-Event-ID", range(0, MAX_REVISION)),
        ("*", "token", token()),
        ("*", "width", range(1, Picture::MAX_SIDE)),
        ("*", "height", range(1, Picture::MAX_SIDE)),
    ]
}
