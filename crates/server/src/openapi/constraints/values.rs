//! What is stated about each sort of value.

use lease::{
    EventKind, HolderName, Incarnation, Key, Labels, Status, Token,
    registry::{Camera, MAX_LABEL_BYTES, MAX_NAME_BYTES},
    session::State,
};
use leasehold_api::{DEFAULT_TTL_SECONDS, MAX_TTL_SECONDS, MIN_TTL_SECONDS};
use serde::Serialize;
use serde_json::{Value, json};

use crate::auth::Scope;

/// Letters, digits, dot, underscore and dash.
pub(super) const PLAIN: &str = "^[A-Za-z0-9._-]+$";
/// Neither white space nor control characters. The server also refuses characters that cannot be seen.
pub(super) const VISIBLE: &str = r"^[^\s\x00-\x1f\x7f-\x9f]+$";
/// No control characters.
pub(super) const ONE_LINE: &str = r"^[^\x00-\x1f\x7f-\x9f]*$";

/// The keywords of a schema that constrain a value.
pub(super) type Keywords = Value;

pub(super) fn text(pattern: &str, least: usize, most: usize) -> Keywords {
    // Bytes are counted, and no character has less than one.
    json!({"pattern": pattern, "minLength": least, "maxLength": most})
}

pub(super) fn plain(most: usize) -> Keywords {
    text(PLAIN, 1, most)
}

pub(super) fn visible(most: usize) -> Keywords {
    text(VISIBLE, 1, most)
}

pub(super) fn range(least: impl Serialize, most: impl Serialize) -> Keywords {
    json!({"minimum": least, "maximum": most})
}

pub(super) fn items(least: usize, most: usize) -> Keywords {
    json!({"minItems": least, "maxItems": most})
}

pub(super) fn words<T: Serialize>(words: impl IntoIterator<Item = T>) -> Keywords {
    json!({"enum": words.into_iter().collect::<Vec<_>>()})
}

/// With further keywords.
pub(super) fn and(mut one: Keywords, other: &Keywords) -> Keywords {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other.clone());
    }
    one
}

pub(super) fn default(value: impl Serialize) -> Keywords {
    json!({"default": value})
}

/// Milliseconds as seconds: a whole number where it is one.
pub(super) fn seconds(millis: u64) -> Value {
    serde_json::to_value(leasehold_api::Seconds::from_millis(millis)).unwrap_or_default()
}

pub(super) fn kind() -> Keywords {
    plain(Key::MAX_KIND_BYTES)
}

pub(super) fn id() -> Keywords {
    visible(Key::MAX_ID_BYTES)
}

/// A key in one text: `kind:id`.
pub(super) fn key() -> Keywords {
    let most = Key::MAX_KIND_BYTES + 1 + Key::MAX_ID_BYTES;
    text(r"^[A-Za-z0-9._-]+:[^\s\x00-\x1f\x7f-\x9f]+$", 3, most)
}

pub(super) fn holder() -> Keywords {
    visible(HolderName::MAX_BYTES)
}

pub(super) fn incarnation() -> Keywords {
    plain(Incarnation::MAX_BYTES)
}

pub(super) fn token() -> Keywords {
    range(Token::ZERO, Token::MAX)
}

pub(super) fn name() -> Keywords {
    plain(MAX_NAME_BYTES)
}

pub(super) fn label_value() -> Keywords {
    text(ONE_LINE, 0, Labels::MAX_VALUE_BYTES)
}

pub(super) fn ttl() -> Keywords {
    range(MIN_TTL_SECONDS, MAX_TTL_SECONDS)
}

pub(super) fn first_ttl() -> Keywords {
    and(ttl(), &default(DEFAULT_TTL_SECONDS))
}

pub(super) fn share() -> Keywords {
    range(0, 1)
}

pub(super) fn listed_label() -> Keywords {
    text(ONE_LINE, 1, MAX_LABEL_BYTES)
}

pub(super) fn scopes() -> Keywords {
    words(Scope::all().map(String::from))
}

pub(super) fn states() -> Keywords {
    words(State::ALL.map(State::as_str))
}

pub(super) fn statuses() -> Keywords {
    words(Status::ALL.map(Status::as_str))
}

pub(super) fn event_types() -> Keywords {
    words(EventKind::ALL.map(EventKind::as_str))
}

pub(super) fn url() -> Keywords {
    let pattern = format!(r"^({})://\S+$", Camera::URL_SCHEMES.join("|"));
    json!({"pattern": pattern, "maxLength": Camera::MAX_URL_BYTES})
}
