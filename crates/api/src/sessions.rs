//! Intents and sessions, `/api/v3`. Answers are snake_case; requests may also use camelCase.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Time;

/// `POST`: start or stop a stream.
pub const INTENTS: &str = "/api/v3/intents";
/// `GET`: all sessions, newest first.
pub const SESSIONS: &str = "/api/v3/sessions";
/// `GET`: one session, in every state.
pub const ONE: &str = "/api/v3/sessions/{session_id}";
/// `POST`: the client is still there.
pub const HEARTBEAT: &str = "/api/v3/sessions/{session_id}/heartbeat";
/// `GET`: the session's changes as server-sent events.
pub const EVENTS: &str = "/api/v3/sessions/{session_id}/events";
/// `GET`: the session's playlist and segments.
pub const HLS: &str = "/api/v3/sessions/{session_id}/hls/{file}";
/// `GET`: the same at the worker that makes the stream, for servers on other machines.
pub const WORKER_STREAM: &str = "/streams/{session_id}/{file}";
/// The label of a worker's presence that says where [`WORKER_STREAM`] is served: `http://HOST:PORT`.
pub const STREAMS: &str = "streams";
/// The largest file of a stream that goes over the wire.
pub const MAX_STREAM_BYTES: usize = 64 * 1024 * 1024;

/// The longest name of a file of a stream, in bytes.
pub const MAX_FILE_BYTES: usize = 128;
/// The files of a stream: extension, media type, and whether it is a playlist.
pub const STREAM_FILES: [(&str, &str, bool); 5] = [
    ("m3u8", "application/vnd.apple.mpegurl", true),
    ("ts", "video/mp2t", false),
    ("m4s", "video/mp4", false),
    ("mp4", "video/mp4", false),
    ("vtt", "text/vtt", false),
];

/// The media type of a file that a pipeline may have written, and whether it is a playlist. `None` for
/// every name that could lead out of a session's folder.
pub fn stream_file(file: &str) -> Option<(&'static str, bool)> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if file.starts_with('.') || file.len() > MAX_FILE_BYTES || !file.bytes().all(plain) {
        return None;
    }
    let extension = file.rsplit_once('.')?.1;
    let known = STREAM_FILES.iter().find(|(it, ..)| *it == extension);
    known.map(|&(_, media, is_playlist)| (media, is_playlist))
}

/// What a client wants. The server only records it; a worker does it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IntentRequest {
    /// `stream.start` (when absent) or `stream.stop`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub intent: Option<String>,
    /// What to stream: required for a start.
    #[serde(alias = "serviceRef", skip_serializing_if = "Option::is_none")]
    pub service_ref: Option<String>,
    /// How to stream it, a configured profile: required for a start.
    #[serde(alias = "profileID", skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Where to start, for catch-up: milliseconds.
    #[serde(alias = "startMs", skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<u64>,
    /// Which session: required for a stop.
    #[serde(alias = "sessionId", skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Names the request in logs; made up when absent.
    #[serde(alias = "correlationId", skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// Further wishes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params: Option<IntentParams>,
    /// Ignored: the server makes the key itself.
    #[serde(alias = "idempotencyKey", skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

impl IntentRequest {
    /// What `type` may be.
    pub const TYPES: [&str; 2] = ["stream.start", "stream.stop"];
}

/// Further wishes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IntentParams {
    /// `LIVE` or `CATCHUP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

impl IntentParams {
    /// What `mode` may be.
    pub const MODES: [&str; 2] = ["LIVE", "CATCHUP"];
}

/// The intent was recorded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct IntentAnswer {
    /// The session that does it.
    pub session_id: String,
    /// `accepted`, or `idempotent_replay` when the same was asked for before.
    pub status: String,
    /// Where the session is in its life.
    pub state: String,
    /// Names the request in logs.
    pub correlation_id: String,
    /// Until when the session lives without a heartbeat.
    pub lease_expires_at: Time,
    /// How often to send a heartbeat, in whole seconds.
    pub heartbeat_interval: u64,
}

/// A session, in every state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// Which one.
    pub session_id: String,
    /// What is streamed.
    pub service_ref: String,
    /// How.
    pub profile: String,
    /// `new`, `starting`, `running`, `stopping`, `stopped`, `failed` or `ended`.
    pub state: String,
    /// Why, such as `R_LEASE_BUSY`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// In words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_detail: Option<String>,
    /// `REJECTED_BUSY` or `REJECTED_NO_TUNER`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// `LEASE_EXPIRED` on expiry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// The request that started it.
    pub correlation_id: String,
    /// When it was accepted.
    pub created_at: Time,
    /// When it last changed.
    pub updated_at: Time,
    /// Until when it lives without a heartbeat, or lived.
    pub lease_expires_at: Time,
    /// How often to send a heartbeat, in whole seconds.
    pub heartbeat_interval: u64,
    /// The last heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat: Option<Time>,
    /// The tuner slot it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuner_slot: Option<String>,
    /// Where to play it, once it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub playback_url: Option<String>,
}

/// A page of sessions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    /// Newest first.
    pub sessions: Vec<SessionView>,
    /// Continue here; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// The heartbeat counted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SessionHeartbeat {
    /// Which session.
    pub session_id: String,
    /// Until when it lives without a further one.
    pub lease_expires_at: Time,
    /// Always true.
    pub acknowledged: bool,
}

/// `GET`: what may be asked for.
pub const PROFILES: &str = "/api/v3/profiles";

/// What can be requested.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProfileList {
    /// The configured profiles, by name.
    pub profiles: Vec<String>,
    /// How long a session lives without a heartbeat, in whole seconds.
    pub lease_ttl: u64,
    /// How often to send a heartbeat, in whole seconds.
    pub heartbeat_interval: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_of_a_file_leaves_its_folder() {
        for wrong in [
            "../x.ts",
            "..",
            ".hidden.ts",
            "a/b.ts",
            "a\\b.ts",
            "x",
            "x.exe",
            "",
            "é.ts",
        ] {
            assert_eq!(stream_file(wrong), None, "{wrong}");
        }
        assert_eq!(stream_file("seg00001.ts"), Some(("video/mp2t", false)));
    }
}
