//! The result of one poll, as it goes to the sinks.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use lease::{Token, UnixMillis};
use serde::Serialize;

use super::fetch::Answer;

/// What one poll came to, with the token it was made under.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The target.
    pub target: String,
    /// The fencing token: a receiver drops what carries a smaller one than it has seen.
    pub token: Token,
    /// Who polled.
    pub instance: String,
    /// When the poll began, in ms since 1970.
    pub at: UnixMillis,
    /// How long it took.
    pub duration_ms: u64,
    /// The status of the answer; none when there was no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// False when the target says that nothing changed since the last poll.
    pub changed: bool,
    /// Why there was no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What the content is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// The content, when it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The content, when it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
}

impl Report {
    pub(super) fn new(
        target: &str,
        token: Token,
        instance: &str,
        at: UnixMillis,
        duration_ms: u64,
        outcome: &Result<Answer, String>,
    ) -> Self {
        let mut report = Self {
            target: target.to_owned(),
            token,
            instance: instance.to_owned(),
            at,
            duration_ms,
            status: None,
            changed: false,
            error: None,
            content_type: None,
            body: None,
            body_base64: None,
        };
        match outcome {
            Err(error) => report.error = Some(error.clone()),
            Ok(answer) => {
                report.status = Some(answer.status.as_u16());
                report.changed = answer.status != http::StatusCode::NOT_MODIFIED;
                report.content_type.clone_from(&answer.content_type);
                if !answer.body.is_empty() {
                    match std::str::from_utf8(&answer.body) {
                        Ok(text) => report.body = Some(text.to_owned()),
                        Err(_) => report.body_base64 = Some(STANDARD.encode(&answer.body)),
                    }
                }
            }
        }
        report
    }
}
