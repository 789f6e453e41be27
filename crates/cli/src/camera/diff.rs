//! What a document would change, field by field.

use serde_json::{Map, Value};

/// One field that would change.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Change {
    /// Where: `motion_gating.downscale`.
    pub path: String,
    /// What it is; absent when it is new.
    pub from: Option<Value>,
    /// What it is to be; absent when it goes back to its default.
    pub to: Option<Value>,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.from, &self.to) {
            (Some(from), Some(to)) => {
                write!(f, "~ {}: {} -> {}", self.path, shown(from), shown(to))
            }
            (None, Some(to)) => write!(f, "+ {}: {}", self.path, shown(to)),
            (Some(from), None) => write!(f, "- {}: {}", self.path, shown(from)),
            (None, None) => write!(f, "  {}", self.path),
        }
    }
}

/// A value, with the login of an address hidden: diffs end up in logs and tickets.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => ::lease::redact::url(text),
        other => other.to_string(),
    }
}

/// What `wanted` changes in `current`. Fields that it does not name stay as they are; `null` goes back to
/// the default; objects are compared field by field, everything else as a whole.
pub(super) fn changes(current: &Map<String, Value>, wanted: &Map<String, Value>) -> Vec<Change> {
    let mut found = Vec::new();
    collect("", current, wanted, &mut found);
    found
}

fn collect(
    prefix: &str,
    current: &Map<String, Value>,
    wanted: &Map<String, Value>,
    found: &mut Vec<Change>,
) {
    for (name, to) in wanted {
        let path = format!("{prefix}{name}");
        match (current.get(name), to) {
            (None, Value::Null) => {}
            (Some(Value::Object(from)), Value::Object(to)) => {
                collect(&format!("{path}."), from, to, found);
            }
            (Some(from), to) if equal(from, to) => {}
            (from, to) => found.push(Change {
                path,
                from: from.cloned(),
                to: (!to.is_null()).then(|| to.clone()),
            }),
        }
    }
}

/// Equal as values: 1 and 1.0 are one number, and a zone that leaves out a default is the same zone.
fn equal(from: &Value, to: &Value) -> bool {
    match (from, to) {
        (Value::Number(from), Value::Number(to)) => from.as_f64() == to.as_f64(),
        (Value::Array(from), Value::Array(to)) => {
            from.len() == to.len() && from.iter().zip(to).all(|(from, to)| equal(from, to))
        }
        (Value::Object(from), Value::Object(to)) => to
            .iter()
            .all(|(name, to)| from.get(name).is_some_and(|from| equal(from, to))),
        (from, to) => from == to,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(current: &Value, wanted: &Value) -> Vec<String> {
        let object = |value: &Value| value.as_object().cloned().unwrap();
        let changes = changes(&object(current), &object(wanted));
        changes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_what_is_named_and_different_changes() {
        let current = json!({"a": 1, "b": {"c": 2.0, "d": 3}, "e": [[0, 1]], "f": "x"});
        assert!(
            of(
                &current,
                &json!({"a": 1.0, "b": {"c": 2}, "e": [[0.0, 1.0]]})
            )
            .is_empty()
        );
        assert_eq!(
            of(
                &current,
                &json!({"b": {"d": 4}, "f": null, "g": true, "h": null})
            ),
            ["~ b.d: 3 -> 4", "- f: x", "+ g: true"]
        );
    }

    #[test]
    fn a_login_is_not_shown() {
        let shown = of(
            &json!({"rtsp_url": "rtsp://ann:one@h/s"}),
            &json!({"rtsp_url": "rtsp://ann:two@h/s"}),
        );
        assert_eq!(
            shown,
            ["~ rtsp_url: rtsp://ann:(hidden)@h/s -> rtsp://ann:(hidden)@h/s"]
        );
    }
}
