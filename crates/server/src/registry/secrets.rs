//! Stored documents as a caller may see them.

use lease::{Record, redact, registry::CAMERA};
use serde_json::Value;

use crate::auth::{Area, Caller, Level};

/// The record as this caller may see it: the credentials in a camera's address only with their own
/// scope.
pub(crate) fn shown(caller: &Caller, mut record: Record) -> Record {
    if record.key.kind() != CAMERA || caller.may(Area::Credentials, Level::Read) {
        return record;
    }
    let hidden = serde_json::from_str::<Value>(&record.value).map(|mut document| {
        hide(&mut document);
        document.to_string()
    });
    // What cannot be read cannot be hidden either.
    record.value = hidden.unwrap_or_else(|_| "null".to_owned()).into();
    record
}

fn hide(value: &mut Value) {
    match value {
        Value::String(text) if text.contains("://") => *text = redact::without_credentials(text),
        Value::Array(items) => items.iter_mut().for_each(hide),
        Value::Object(fields) => fields.values_mut().for_each(hide),
        _ => {}
    }
}
