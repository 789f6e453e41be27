//! Addresses made of a pattern and a target's document.

use std::fmt::Write as _;

use serde_json::Value;

use crate::poller::Target;

/// Puts the target's fields into a pattern: `{id}`, `{field}`, `{field.inner}`, escaped so that each stays
/// within its segment of a path or its value of a query; `{+field}` as it is.
pub(super) fn fill(pattern: &str, target: &Target) -> Result<String, String> {
    let mut filled = String::with_capacity(pattern.len() + target.id.len());
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after
            .split_once('}')
            .ok_or("`poll.url` has a { without its }")?;
        filled.push_str(before);
        match name.strip_prefix('+') {
            Some(name) => filled.push_str(&value(name, target)?),
            None => escape(&value(name, target)?, &mut filled),
        }
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

fn value(name: &str, target: &Target) -> Result<String, String> {
    if name == "id" {
        return Ok(target.id.clone());
    }
    let mut found = &*target.document;
    for part in name.split('.') {
        found = found.get(part).unwrap_or(&Value::Null);
    }
    match found {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(yes) => Ok(yes.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => Err(format!(
            "`poll.url` has {{{name}}}, and the target has no such text or number"
        )),
    }
}

fn escape(text: &str, into: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:@!$'()*,;".contains(&byte) {
            into.push(byte.into());
        } else {
            // Writing to a string cannot fail.
            let _ = write!(into, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_takes_fields_of_the_targets_document() {
        let document = serde_json::json!({
            "id": "a b", "host": "api.example:8080", "save": {"slot": 3}, "path": "x/y", "on": true, "list": []
        });
        let target = Target::from_document(document);
        assert!(target.is_err(), "no blank in an id");
        let document = serde_json::json!({
            "id": "a:b", "host": "api.example:8080", "save": {"slot": 3}, "path": "x/y", "q": "1&2=3", "list": []
        });
        let target = Target::from_document(document).unwrap();
        let fill = |pattern| fill(pattern, &target);
        assert_eq!(fill("http://h/{id}").unwrap(), "http://h/a:b");
        assert_eq!(
            fill("http://{host}/{save.slot}/{path}?q={q}").unwrap(),
            "http://api.example:8080/3/x%2Fy?q=1%262%3D3"
        );
        assert_eq!(fill("http://h/{+path}").unwrap(), "http://h/x/y");
        for wrong in [
            "http://h/{none}",
            "http://h/{list}",
            "http://h/{save}",
            "http://h/{id",
        ] {
            assert!(fill(wrong).is_err(), "{wrong}");
        }
    }
}
