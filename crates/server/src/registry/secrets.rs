//! Stored documents as a caller may see them.

use lease::{Key, Record, redact, registry::CAMERA};
use leasehold_api::Code;
use serde_json::Value;

use crate::{
    Reject,
    auth::{Area, Caller, Level},
};

/// Fails when one of these records is the servers' own.
pub(crate) fn untouched<'a>(keys: impl IntoIterator<Item = &'a Key>) -> Result<(), Reject> {
    match keys.into_iter().find(|key| key.is_private()) {
        None => Ok(()),
        Some(key) => Err(Reject::new(
            Code::AuthorizationFailed,
            format!("records of the kind {} are the server's own", key.kind()),
        )),
    }
}

/// The record as this caller may see it: the credentials in a camera's address only with their own
/// scope, and what servers keep for themselves not at all.
pub(crate) fn shown(caller: &Caller, mut record: Record) -> Option<Record> {
    if record.key.is_private() {
        return None;
    }
    if record.key.kind() != CAMERA || caller.may(Area::Credentials, Level::Read) {
        return Some(record);
    }
    let hidden = serde_json::from_str::<Value>(&record.value).map(|mut document| {
        hide(&mut document);
        document.to_string()
    });
    // What cannot be read cannot be hidden either.
    record.value = hidden.unwrap_or_else(|_| "null".to_owned()).into();
    Some(record)
}

fn hide(value: &mut Value) {
    match value {
        Value::String(text) if text.contains("://") => *text = redact::without_credentials(text),
        Value::Array(items) => items.iter_mut().for_each(hide),
        Value::Object(fields) => fields.values_mut().for_each(hide),
        _ => {}
    }
}
