//! What the specification states about values is what the server checks: a value just beyond is refused
//! with its field named, and one just within is not. The values come from the specification itself, so
//! that a new field is tried without anybody writing a test for it.

use serde_json::{Map, Value, json};

use super::{
    schema::{examples, matches, resolve},
    stage::{Operation, Stage, operations},
};

/// Where a value may not be tried as if it stood alone: the operation, the field, and why.
type Exception = (&'static str, &'static str, &'static str);

/// Values within the limits that are refused for another reason.
const MUST_FIT: [Exception; 16] = [
    ("cameras_update", "camera_uuid", "as in the path"),
    ("cameras_update", "tenant_id", "as in the path"),
    ("cameras_update", "site_id", "as in the path"),
    ("cameras_update_by_name", "camera_uuid", "as in the path"),
    ("cameras_update_by_name", "tenant_id", "as it is kept"),
    ("cameras_update_by_name", "site_id", "as it is kept"),
    ("cameras_create", "tenant_id", "as in the path"),
    ("cameras_create", "site_id", "as in the path"),
    ("zones_update", "zone_id", "as in the path"),
    ("targets_change", "id", "as in the path"),
    ("leases_renew", "token", "the lease's own"),
    ("sessions_intent", "profile", "one that is configured"),
    ("*", "polygon", "edges must not cross"),
    ("*", "cursor", "the end of a page"),
    ("*", "key", "a kind and an id, each of its own length"),
    ("leases_acquire", "wait_seconds", "it waits"),
];

/// Operations that answer something else before they look at a parameter.
const LOOKED_AT_LATER: [Exception; 2] = [
    ("holders_stream", "*", "426 unless it is a WebSocket"),
    (
        "cameras_keep_picture",
        "camera_uuid",
        "415 unless it is a picture",
    ),
];

/// Fields of which only one may be there: the one that is tried, and the one that makes room.
const INSTEAD: [(&str, &str, &str); 1] = [("leases_renew_many", "runner_id", "holder")];

fn is_excepted(list: &[Exception], operation: &str, path: &str) -> bool {
    let stem = |part: &str| part.split('[').next().unwrap_or_default().to_owned();
    list.iter().any(|(of, field, _)| {
        (*of == "*" || *of == operation)
            && (*field == "*" || path.split('.').any(|it| stem(it) == *field))
    })
}

/// A field of a body: its path as the server writes it, its schema, and a body in which it stands.
struct Field {
    path: String,
    schema: Value,
    body: Value,
    /// As a JSON pointer.
    pointer: String,
}

impl Field {
    /// A body with another value in its place.
    fn with(&self, body: &Value, value: Value) -> Value {
        let mut body = body.clone();
        *body.pointer_mut(&self.pointer).expect("its place") = value;
        body
    }
}

/// Every field of an operation's body.
fn fields(api: &Value, operation: &Operation) -> Vec<Field> {
    let mut found = Vec::new();
    let Some(schema) = &operation.body else {
        return found;
    };
    for (name, schema) in resolve(api, schema)["properties"]
        .as_object()
        .into_iter()
        .flatten()
    {
        let has_it = operation
            .bodies
            .iter()
            .find(|body| body.get(name).is_some());
        let mut body = has_it.unwrap_or(&operation.bodies[0]).clone();
        for (of, field, other) in INSTEAD {
            if of == operation.id && field == name {
                body.as_object_mut().expect("an object").remove(other);
            }
        }
        walk(api, schema, name, &format!("/{name}"), &body, &mut found);
    }
    found
}

/// A field and what is inside it.
fn walk(
    api: &Value,
    schema: &Value,
    path: &str,
    pointer: &str,
    body: &Value,
    found: &mut Vec<Field>,
) {
    let schema = resolve(api, schema);
    let mut body = body.clone();
    place(&mut body, pointer, plausible(api, schema));
    found.push(Field {
        path: path.to_owned(),
        schema: schema.clone(),
        body: body.clone(),
        pointer: pointer.to_owned(),
    });
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        let (path, pointer) = (format!("{path}.{name}"), format!("{pointer}/{name}"));
        walk(api, inner, &path, &pointer, &body, found);
    }
    if schema["items"].is_object() {
        let (path, pointer) = (format!("{path}[0]"), format!("{pointer}/0"));
        walk(api, &schema["items"], &path, &pointer, &body, found);
    }
    if schema["additionalProperties"].is_object() {
        let (path, pointer) = (format!("{path}.some"), format!("{pointer}/some"));
        walk(
            api,
            &schema["additionalProperties"],
            &path,
            &pointer,
            &body,
            found,
        );
    }
}

/// Puts a value where there is none.
fn place(body: &mut Value, pointer: &str, value: Value) {
    let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
    match body.pointer_mut(parent).expect("its parent") {
        Value::Object(parent) => {
            parent.entry(name).or_insert(value);
        }
        Value::Array(parent) if parent.is_empty() => parent.push(value),
        _ => {}
    }
}

/// Some value as the schema says.
fn plausible(api: &Value, schema: &Value) -> Value {
    if let Some(example) = examples(api, schema).first() {
        return example.clone();
    }
    if let Some(word) = schema["enum"].as_array().and_then(|words| words.first()) {
        return word.clone();
    }
    let types = schema["type"].to_string();
    if types.contains("string") {
        filled(schema, 8)
    } else if types.contains("number") || types.contains("integer") {
        schema.get("minimum").cloned().unwrap_or(json!(1))
    } else if types.contains("array") {
        let least = schema["minItems"].as_u64().unwrap_or(1).max(1);
        list(api, schema, usize::try_from(least).expect("a length"))
    } else if types.contains("object") {
        json!({})
    } else {
        json!(true)
    }
}

/// A text of this length that the pattern allows.
fn filled(schema: &Value, length: usize) -> Value {
    let pattern = schema["pattern"].as_str().unwrap_or_default();
    let candidates = ["", "rtsp://", "kind:", "x.ts"]
        .into_iter()
        .filter(|it| it.len() <= length);
    let mut texts = candidates.flat_map(|it| {
        let rest = "x".repeat(length - it.len());
        [format!("{it}{rest}"), format!("{rest}{it}")]
    });
    let text = texts.find(|text| matches(pattern, text));
    text.unwrap_or_else(|| panic!("no text of {length} for {schema}"))
        .into()
}

/// A list of different items.
fn list(api: &Value, schema: &Value, length: usize) -> Value {
    let item = resolve(api, &schema["items"]);
    let one = plausible(api, item);
    let items = (0..length).map(|index| {
        let mut one = one.clone();
        match &mut one {
            Value::String(text) if item.get("enum").is_none() => *text = format!("x{index}"),
            Value::Object(fields) => {
                for (name, value) in [
                    ("id", json!(format!("x{index}"))),
                    ("zone_id", json!(index + 1)),
                ] {
                    if fields.contains_key(name) {
                        fields.insert(name.to_owned(), value);
                    }
                }
            }
            _ => {}
        }
        one
    });
    items.collect()
}

/// A map of so many entries.
fn map(api: &Value, schema: &Value, size: usize) -> Value {
    let one = plausible(api, resolve(api, &schema["additionalProperties"]));
    let entries = (0..size).map(|index| (format!("x{index}"), one.clone()));
    Value::Object(entries.collect::<Map<_, _>>())
}

fn length(stated: &Value) -> usize {
    usize::try_from(stated.as_u64().expect("a length")).expect("a length")
}

/// A number so much further.
fn moved(stated: &Value, by: i64) -> Value {
    match stated.as_i64() {
        Some(number) => json!(number + by),
        None => json!(stated.as_f64().expect("a number") + if by < 0 { -1.0 } else { 1.0 }),
    }
}

/// Values that are just wrong, and ones that are just right.
fn tried(api: &Value, schema: &Value) -> (Vec<Value>, Vec<Value>) {
    let (mut wrong, mut right) = (Vec::new(), Vec::new());
    for (keyword, stated) in schema.as_object().into_iter().flatten() {
        match keyword.as_str() {
            "maxLength" => {
                wrong.push(filled(schema, length(stated) + 1));
                right.push(filled(schema, length(stated)));
            }
            "minLength" if length(stated) > 0 => wrong.push("".into()),
            "pattern" => {
                let pattern = stated.as_str().expect("a pattern");
                let texts = ["a b", "a\u{7}b", " ", "%"];
                let other = texts.into_iter().find(|text| !matches(pattern, text));
                wrong.extend(other.map(Value::from));
            }
            "enum" => {
                wrong.push("no-such-word".into());
                right.extend(
                    stated
                        .as_array()
                        .expect("words")
                        .iter()
                        .filter(|it| !it.is_null())
                        .cloned(),
                );
            }
            "minimum" => {
                wrong.push(moved(stated, -1));
                right.push(stated.clone());
            }
            "maximum" => {
                wrong.push(moved(stated, 1));
                right.push(stated.clone());
            }
            "maxItems" => {
                wrong.push(list(api, schema, length(stated) + 1));
                right.push(list(api, schema, length(stated)));
            }
            "minItems" if length(stated) > 0 => {
                wrong.push(list(api, schema, length(stated) - 1));
                right.push(list(api, schema, length(stated)));
            }
            "uniqueItems" => {
                let one = list(api, schema, 1);
                wrong.push(json!([one[0], one[0]]));
            }
            "maxProperties" => {
                wrong.push(map(api, schema, length(stated) + 1));
                right.push(map(api, schema, length(stated)));
            }
            "propertyNames" => {
                let value = plausible(api, resolve(api, &schema["additionalProperties"]));
                for name in tried(api, stated).0 {
                    if let Some(name) = name.as_str() {
                        wrong.push(json!({name: value}));
                    }
                }
            }
            "type" => {
                let types = stated.to_string();
                let other = if types.contains("string") {
                    json!(7)
                } else {
                    json!("text")
                };
                wrong.push(other);
            }
            _ => {}
        }
    }
    (wrong, right)
}

/// Whether a problem names a field, or what it is a part of.
fn names(problem: &Value, path: &str) -> bool {
    let mut fields = problem["errors"].as_array().into_iter().flatten();
    fields.any(|error| {
        let field = error["field"].as_str().unwrap_or_default();
        let rest = path.strip_prefix(field);
        !field.is_empty()
            && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    })
}

fn shortened(value: &Value) -> String {
    value.to_string().chars().take(120).collect()
}

#[tokio::test]
async fn a_body_beyond_its_limits_is_refused_by_name_and_changes_nothing() {
    let api = leasehold_server::openapi();
    let mut sent = 0;
    let mut failed = Vec::new();
    for operation in operations(&api).iter().filter(|it| !it.bodies.is_empty()) {
        let stage = Stage::of(&api, operation).await;
        let before = stage.state().await;
        for field in fields(&api, operation) {
            for value in tried(&api, &field.schema).0 {
                let body = field.with(&stage.own(&field.body), value.clone());
                let (status, answer) = stage.send(operation, Some(&body)).await;
                sent += 1;
                if status != 400 || !names(&answer, &field.path) {
                    let value = shortened(&value);
                    failed.push(format!(
                        "{} {}: {value}: {status} {}",
                        operation.id, field.path, answer["errors"]
                    ));
                }
            }
        }
        if stage.state().await != before {
            failed.push(format!("{} changed something", operation.id));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(sent > 300, "{sent}");
}

#[tokio::test]
async fn a_body_within_its_limits_is_not_refused_for_them() {
    let api = leasehold_server::openapi();
    let mut sent = 0;
    let mut failed = Vec::new();
    for operation in operations(&api).iter().filter(|it| !it.bodies.is_empty()) {
        let stage = Stage::of(&api, operation).await;
        for field in fields(&api, operation) {
            if is_excepted(&MUST_FIT, &operation.id, &field.path) {
                continue;
            }
            for value in tried(&api, &field.schema).1 {
                let body = field.with(&stage.own(&field.body), value.clone());
                let (status, answer) = stage.send(operation, Some(&body)).await;
                sent += 1;
                if status.is_server_error()
                    || status == 429
                    || status == 413
                    || names(&answer, &field.path)
                {
                    let value = shortened(&value);
                    failed.push(format!(
                        "{} {}: {value}: {status} {}",
                        operation.id, field.path, answer["errors"]
                    ));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(sent > 150, "{sent}");
}

#[tokio::test]
async fn a_parameter_is_refused_by_name_exactly_beyond_its_limits() {
    let api = leasehold_server::openapi();
    let all = operations(&api);
    let any = all
        .iter()
        .find(|it| it.id == "leases_list")
        .expect("an operation");
    let stage = Stage::of(&api, any).await;
    let mut sent = 0;
    let mut failed = Vec::new();
    for operation in &all {
        // What is right may change something, and so comes last.
        let wrong_first = [true, false];
        let before = stage.state().await;
        for is_wrong in wrong_first {
            for parameter in &operation.parameters {
                let name = parameter["name"].as_str().expect("a name");
                let excepted = if is_wrong {
                    &LOOKED_AT_LATER[..]
                } else {
                    &MUST_FIT[..]
                };
                if is_excepted(excepted, &operation.id, name)
                    || (!is_wrong && operation.method != "GET")
                {
                    continue;
                }
                let in_path = parameter["in"] == "path";
                let (wrong, right) = tried(&api, &parameter["schema"]);
                for value in if is_wrong { wrong } else { right } {
                    let text = match &value {
                        Value::String(text) => text.clone(),
                        other => other.to_string(),
                    };
                    // Another path altogether; and every number is a text.
                    let is_text = parameter["schema"]["type"].to_string().contains("string");
                    if (in_path && text.is_empty()) || (is_text && value.is_number()) {
                        continue;
                    }
                    let body = operation.bodies.first();
                    let (status, answer) =
                        stage.send_with(operation, body, Some((name, &text))).await;
                    sent += 1;
                    let is_named = names(&answer, name);
                    let as_expected = if is_wrong {
                        // What a path cannot name is not there.
                        (status == 400 && is_named) || (in_path && status == 404)
                    } else {
                        !status.is_server_error() && !is_named
                    };
                    if !as_expected {
                        failed.push(format!(
                            "{} {name}={}: {status} {}",
                            operation.id,
                            shortened(&value),
                            answer["errors"]
                        ));
                    }
                }
            }
            if is_wrong && stage.state().await != before {
                failed.push(format!("{} changed something", operation.id));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(sent > 200, "{sent}");
}
