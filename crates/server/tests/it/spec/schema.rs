//! Values against the schemas of the specification. Only what the specification uses is known here: any
//! other keyword fails.

use regex::Regex;
use serde_json::{Map, Value};

/// Keywords that say nothing about whether a value is right.
const ANNOTATIONS: [&str; 6] = [
    "default",
    "description",
    "example",
    "examples",
    "format",
    "title",
];

/// The schema that a reference leads to; of one that may also be null, the other one.
pub fn resolve<'a>(api: &'a Value, schema: &'a Value) -> &'a Value {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap_or_default();
        return resolve(api, &api["components"]["schemas"][name]);
    }
    match schema["oneOf"].as_array().map(Vec::as_slice) {
        Some([one, other]) if other["type"] == "null" => resolve(api, one),
        Some([other, one]) if other["type"] == "null" => resolve(api, one),
        _ => schema,
    }
}

/// The examples of a schema.
pub fn examples<'a>(api: &'a Value, schema: &'a Value) -> &'a [Value] {
    let found = &resolve(api, schema)["examples"];
    found.as_array().map_or(&[], Vec::as_slice)
}

/// Whether a text is as the pattern says.
pub fn matches(pattern: &str, text: &str) -> bool {
    Regex::new(pattern).expect("a pattern").is_match(text)
}

/// Everything that is wrong with a value.
pub fn errors(api: &Value, schema: &Value, value: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    check(api, schema, value, "", &mut wrong);
    wrong
}

fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        other => panic!("no such type: {other}"),
    }
}

fn check(api: &Value, schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    let Some(keywords) = schema.as_object() else {
        assert_eq!(schema, &Value::Bool(true), "{at}: no schema");
        return;
    };
    for (keyword, stated) in keywords {
        let number = || stated.as_f64().expect("a number");
        let most = |count: Option<usize>| count.is_none_or(|count| count as f64 <= number());
        let least = |count: Option<usize>| count.is_none_or(|count| count as f64 >= number());
        let length = value.as_str().map(|text| text.chars().count());
        let items = value.as_array().map(Vec::len);
        let is_right = match keyword.as_str() {
            "$ref" => {
                check(api, resolve(api, schema), value, at, wrong);
                true
            }
            "type" => match stated.as_array() {
                Some(types) => types
                    .iter()
                    .any(|it| is_of(value, it.as_str().expect("a word"))),
                None => is_of(value, stated.as_str().expect("a word")),
            },
            "enum" => stated.as_array().expect("words").contains(value),
            "pattern" => {
                let pattern = stated.as_str().expect("a pattern");
                value.as_str().is_none_or(|text| matches(pattern, text))
            }
            "minLength" => least(length),
            "maxLength" => most(length),
            "minItems" => least(items),
            "maxItems" => most(items),
            "maxProperties" => most(value.as_object().map(Map::len)),
            "minimum" => value.as_f64().is_none_or(|value| value >= number()),
            "maximum" => value.as_f64().is_none_or(|value| value <= number()),
            "uniqueItems" => {
                let items = value.as_array().map_or(&[][..], Vec::as_slice);
                (1..items.len()).all(|index| !items[..index].contains(&items[index]))
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(api, stated, item, &format!("{at}[{index}]"), wrong);
                }
                true
            }
            "required" => {
                let names = stated.as_array().expect("names").iter();
                let mut names = names.map(|name| name.as_str().expect("a name"));
                value
                    .as_object()
                    .is_none_or(|object| names.all(|name| object.contains_key(name)))
            }
            "properties" => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    if let Some(schema) = stated.get(name) {
                        check(api, schema, value, &format!("{at}.{name}"), wrong);
                    }
                }
                true
            }
            "propertyNames" => {
                for name in value.as_object().into_iter().flat_map(Map::keys) {
                    check(
                        api,
                        stated,
                        &Value::from(name.as_str()),
                        &format!("{at}{{{name}}}"),
                        wrong,
                    );
                }
                true
            }
            "additionalProperties" => {
                let known = &schema["properties"];
                let others = value.as_object().into_iter().flatten();
                let mut others = others.filter(|(name, _)| known.get(name.as_str()).is_none());
                if *stated == Value::Bool(false) {
                    others.next().is_none()
                } else {
                    for (name, value) in others {
                        check(api, stated, value, &format!("{at}.{name}"), wrong);
                    }
                    true
                }
            }
            "oneOf" => {
                let parts = stated.as_array().expect("schemas").iter();
                let right = parts.filter(|part| errors(api, part, value).is_empty());
                right.count() == 1
            }
            "anyOf" => {
                let mut parts = stated.as_array().expect("schemas").iter();
                parts.any(|part| errors(api, part, value).is_empty())
            }
            "allOf" => {
                for part in stated.as_array().expect("schemas") {
                    check(api, part, value, at, wrong);
                }
                true
            }
            other => {
                assert!(
                    ANNOTATIONS.contains(&other),
                    "{at}: a keyword that is not known here: {other}"
                );
                true
            }
        };
        if !is_right {
            wrong.push(format!("{at}: {value} is not as {keyword} {stated} says"));
        }
    }
}
