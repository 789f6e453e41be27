//! Reading a JSON body so that a mistake can be named.

use std::marker::PhantomData;

use serde::de::{DeserializeOwned, DeserializeSeed};
use serde_json::{Map, Value};
use serde_path_to_error::Track;

use crate::{FieldError, check::REQUIRED};

/// Reads a JSON object. A mistake says in which field it is and what was expected there. An empty
/// body counts as `{}`, so that requests without any required field need none.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, FieldError> {
    match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None if body.is_empty() => parse_value(b"{}"),
        Some(b'{') => parse_value(body),
        // serde would read an array as an object's fields in their order.
        _ => Err(FieldError::new("body", "a JSON object")),
    }
}

/// Reads any JSON value. A mistake says in which field it is and what was expected there.
pub fn parse_value<T: DeserializeOwned>(body: &[u8]) -> Result<T, FieldError> {
    // Where it is in the document is only worth knowing once there is a mistake.
    if !has_nul(body)
        && let Ok(value) = serde_json::from_slice(body)
    {
        return Ok(value);
    }
    parse_as(body, PhantomData::<T>)
}

/// Reads a JSON value as `seed` says. A mistake says in which field it is and what was expected there.
pub fn parse_as<'de, S: DeserializeSeed<'de>>(
    body: &'de [u8],
    seed: S,
) -> Result<S::Value, FieldError> {
    if has_nul(body) {
        return Err(FieldError::new("body", "text without the character NUL"));
    }
    let reader = &mut serde_json::Deserializer::from_slice(body);
    let mut track = Track::new();
    let tracked = serde_path_to_error::Deserializer::new(&mut *reader, &mut track);
    let value = seed.deserialize(tracked).map_err(|inner| {
        let path = track.path().to_string();
        // An enum of the wrong type counts as a mistake of syntax, yet its field is known.
        if inner.is_data() || !matches!(path.as_str(), "." | "?") {
            describe(&path, &inner.to_string())
        } else {
            FieldError::new("body", format!("valid JSON: {inner}"))
        }
    })?;
    reader
        .end()
        .map_err(|error| FieldError::new("body", format!("one JSON value: {error}")))?;
    Ok(value)
}

/// More mistakes than anyone mends in one go.
const MAX_MISTAKES: usize = 64;

/// Reads a document and names every field that is wrong, not only the first: a wrong one is noted, put
/// right by its value in `stand_ins` (by its name; left out where there is none) and reading goes on.
/// The document that comes with mistakes is fit for further checks, and for nothing else.
pub fn parse_document<T: DeserializeOwned>(
    fields: Map<String, Value>,
    stand_ins: &Map<String, Value>,
) -> (Option<T>, Vec<FieldError>) {
    let mut document = Value::Object(fields);
    let mut mistakes: Vec<FieldError> = Vec::new();
    while mistakes.len() < MAX_MISTAKES {
        let mistake = match parse_value(document.to_string().as_bytes()) {
            Ok(value) => return (Some(value), mistakes),
            Err(mistake) => mistake,
        };
        let known = mistakes.iter().any(|it| it.field == mistake.field);
        let mended = !known && mend(&mut document, &mistake.field, stand_ins);
        if !known {
            mistakes.push(mistake);
        }
        if !mended {
            break;
        }
    }
    (None, mistakes)
}

/// Replaces what stands at `path`, or a part of the document around it, by a stand-in; removes it where
/// there is none.
fn mend(document: &mut Value, path: &str, stand_ins: &Map<String, Value>) -> bool {
    let names: Vec<&str> = path.split('.').collect();
    let stem = |name: &str| name.split('[').next().unwrap_or_default().to_owned();
    // The innermost part that has a stand-in, or else the field itself.
    let last = (0..names.len())
        .rev()
        .find(|&index| stand_ins.contains_key(&stem(names[index])))
        .unwrap_or(names.len() - 1);
    let mut parent = document;
    for name in &names[..last] {
        let mut parts = name.split(['[', ']']).filter(|part| !part.is_empty());
        let Some(found) = parts.next().and_then(|field| parent.get_mut(field)) else {
            return false;
        };
        parent = found;
        for index in parts {
            let Some(found) = index.parse().ok().and_then(|at: usize| parent.get_mut(at)) else {
                return false;
            };
            parent = found;
        }
    }
    let Some(object) = parent.as_object_mut() else {
        return false;
    };
    let field = stem(names[last]);
    match stand_ins.get(&field) {
        Some(value) => object.insert(field, value.clone()) != Some(value.clone()),
        None => object.remove(&field).is_some(),
    }
}

/// Whether a string of the JSON holds the character NUL, which not every store can keep.
fn has_nul(json: &[u8]) -> bool {
    const ESCAPED: &[u8] = b"\\u0000";
    if !json.contains(&b'\\') {
        return false;
    }
    let mut from = 0;
    while let Some(found) = json[from..]
        .windows(ESCAPED.len())
        .position(|it| it == ESCAPED)
    {
        let at = from + found;
        // An escaped backslash before it makes it plain text.
        let slashes = json[..at]
            .iter()
            .rev()
            .take_while(|&&byte| byte == b'\\')
            .count();
        if slashes % 2 == 0 {
            return true;
        }
        from = at + ESCAPED.len();
    }
    false
}

/// serde's words as field and expectation. It names an unknown or missing field in its message and
/// not in its path.
pub fn describe(path: &str, message: &str) -> FieldError {
    let message = message
        .rsplit_once(" at line ")
        .map_or(message, |(text, _)| text);
    let inside = |name: &str| {
        if path == "." || path == name || path.ends_with(&format!(".{name}")) {
            path.strip_suffix(name).unwrap_or_default().to_owned() + name
        } else {
            format!("{path}.{name}")
        }
    };
    if let Some(rest) = message.strip_prefix("unknown field `")
        && let Some((name, rest)) = rest.split_once('`')
    {
        let known = rest.trim_start_matches(", expected ");
        let meant = similar(name, known.split('`').skip(1).step_by(2))
            .map_or(String::new(), |meant| format!("did you mean `{meant}`? "));
        return FieldError::new(
            inside(name),
            format!("no such field; {meant}known: {known}"),
        );
    }
    if let Some(name) = message
        .strip_prefix("missing field `")
        .and_then(|rest| rest.strip_suffix('`'))
    {
        return FieldError::new(inside(name), REQUIRED);
    }
    let field = if path == "." { "body" } else { path };
    let expected = message
        .rsplit_once(", expected ")
        .map_or(message, |(_, expected)| expected);
    FieldError::new(field, in_words(expected))
}

/// The known name that was probably meant.
fn similar<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// Below it a guess helps nobody.
    const LIKE: f64 = 0.8;
    let plain = |text: &str| text.replace(['_', '-'], "").to_lowercase();
    let name = plain(name);
    known
        .map(|it| (strsim::jaro_winkler(&name, &plain(it)), it))
        .filter(|(like, _)| *like >= LIKE)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, it)| it)
}

/// Names of Rust's types mean nothing to whoever wrote the JSON.
fn in_words(expected: &str) -> &str {
    match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        // The second is what parsing a parameter says.
        "u64" | "usize" | "invalid digit found in string" => "a whole number of at least 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" | "provided string was not `true` or `false`" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AcquireRequest, RenewManyRequest};

    fn error(body: &str) -> FieldError {
        parse::<AcquireRequest>(body.as_bytes()).unwrap_err()
    }

    #[test]
    fn mistakes_name_their_field() {
        assert_eq!(error(r#"{"ttl_seconds": "x"}"#).field, "ttl_seconds");
        let unknown = error(r#"{"tttl": 1}"#);
        assert_eq!(unknown.field, "tttl");
        assert!(unknown.expected.contains("ttl_seconds"), "{unknown:?}");
        for (wrong, meant) in [("ttl", "ttl_seconds"), ("waitSeconds", "wait_seconds")] {
            let expected = error(&format!(r#"{{"{wrong}": 1}}"#)).expected;
            assert!(
                expected.contains(&format!("did you mean `{meant}`?")),
                "{expected}"
            );
        }
        let expected = error(r#"{"xyz": 1}"#).expected;
        assert!(!expected.contains("did you mean"), "{expected}");
        assert_eq!(error(r#"{"pool": {"kind": "t"}}"#).field, "pool.ids");
        assert_eq!(error(r#"{"pool": {"kinds": "t"}}"#).field, "pool.kinds");
        assert_eq!(error("[1]").field, "body");
        assert_eq!(error("{").field, "body");
        assert_eq!(error("{} {}").field, "body");
        let nested = parse::<RenewManyRequest>(br#"{"holder":"a","leases":[{"token":-1}]}"#);
        assert_eq!(nested.unwrap_err().field, "leases[0].token");
    }

    #[test]
    fn what_is_expected_is_said_in_words() {
        let of = |body: &str| {
            let error = parse::<crate::sessions::IntentRequest>(body.as_bytes()).unwrap_err();
            (error.field, error.expected)
        };
        let whole = "a whole number of at least 0".to_owned();
        assert_eq!(of(r#"{"start_ms": -1}"#), ("start_ms".into(), whole));
        assert_eq!(
            of(r#"{"params": 1}"#),
            ("params".into(), "an object".into())
        );
    }

    #[test]
    fn a_document_with_many_mistakes_hears_of_all_of_them() {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "only read")]
        struct Inner {
            name: String,
            #[serde(default)]
            size: u8,
        }
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "only read")]
        struct Outer {
            name: String,
            #[serde(default)]
            score: f64,
            inner: Vec<Inner>,
        }
        let read = |text: &str| {
            let Ok(Value::Object(stand_ins)) = serde_json::from_str(r#"{"name": "x"}"#) else {
                unreachable!("an object")
            };
            let Ok(Value::Object(fields)) = serde_json::from_str(text) else {
                unreachable!("an object")
            };
            let (value, mistakes) = parse_document::<Outer>(fields, &stand_ins);
            let fields: Vec<String> = mistakes.into_iter().map(|it| it.field).collect();
            (value.is_some(), fields.join(" "))
        };
        assert_eq!(read(r#"{"name": "a", "inner": []}"#), (true, String::new()));
        let (whole, mut fields) = read(
            r#"{"score": "high", "colour": 1, "inner": [{"name": 1}, {"name": "b", "size": -1}, {}]}"#,
        );
        let mut sorted: Vec<&str> = fields.split(' ').collect();
        sorted.sort_unstable();
        fields = sorted.join(" ");
        assert!(whole);
        assert_eq!(
            fields,
            "colour inner[0].name inner[1].size inner[2].name name score"
        );
        // Without a stand-in reading ends where it must.
        assert_eq!(read(r#"{"score": 1}"#), (false, "name inner".into()));
        assert_eq!(
            read(r#"{"name": "a", "inner": 7}"#),
            (false, "inner".into())
        );
    }

    #[test]
    fn nul_is_refused_and_what_only_looks_like_it_is_not() {
        assert_eq!(error(r#"{"holder": "a\u0000"}"#).field, "body");
        assert_eq!(error(r#"{"holder": "a\\\u0000"}"#).field, "body");
        let text: AcquireRequest = parse(br#"{"holder": "a\\u0000"}"#).unwrap();
        assert_eq!(text.holder.as_deref(), Some("a\\u0000"));
    }

    #[test]
    fn an_empty_body_is_an_empty_object() {
        assert_eq!(
            parse::<AcquireRequest>(b"").unwrap(),
            AcquireRequest::default()
        );
        // White space is not empty, and no JSON either.
        assert_eq!(error(" \t").field, "body");
    }
}
