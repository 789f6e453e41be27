//! One text and one version for equal JSON, everywhere: sorted keys, no white space, whole numbers
//! without a fraction.

use std::fmt::Write;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// The canonical text of a JSON value.
///
/// ```
/// let value = serde_json::json!({"b": 1.0, "a": [true, null]});
/// assert_eq!(leasehold_lease::canonical::text(&value), r#"{"a":[true,null],"b":1}"#);
/// ```
pub fn text(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

/// The version of a JSON value: the lower-case hex SHA-256 of its canonical text.
pub fn version(value: &Value) -> String {
    hex_sha256(text(value).as_bytes())
}

/// The lower-case hex SHA-256 of some bytes.
pub fn hex_sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .fold(String::with_capacity(64), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|(name, _)| *name);
            out.push('{');
            for (index, (name, value)) in entries.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                let _ = write!(out, "{}:", Value::String(name.clone()));
                write(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Number(number) => match number.as_f64() {
            // 2^53: beyond it a float no longer distinguishes whole numbers.
            Some(float)
                if number.is_f64()
                    && float.fract() == 0.0
                    && float.abs() < 9_007_199_254_740_992.0 =>
            {
                let _ = write!(out, "{float:.0}");
            }
            _ => {
                let _ = write!(out, "{number}");
            }
        },
        scalar => {
            let _ = write!(out, "{scalar}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equal_configs_have_equal_versions_however_they_were_written() {
        let a: Value = serde_json::from_str(r#"{"x": {"b": 2, "a": 0.30}, "y": [1.0]}"#).unwrap();
        let b: Value = serde_json::from_str(r#"{"y":[1],"x":{"a":0.3,"b":2.0}}"#).unwrap();
        assert_eq!(version(&a), version(&b));
        assert_ne!(version(&a), version(&json!({"y": [2]})));
        assert_eq!(text(&json!(-0.0)), "-0");
    }
}
