//! The examples of the specification are right: by their schemas, and by the server.

use serde_json::Value;

use super::{
    schema::{errors, resolve},
    stage::{Stage, operations},
};

/// Its body is a picture.
const NO_JSON: &str = "cameras_keep_picture";

#[test]
fn every_example_is_as_its_schema_says() {
    let api = leasehold_server::openapi();
    let mut seen = 0;
    for (name, schema) in api["components"]["schemas"].as_object().unwrap() {
        for example in schema["examples"].as_array().into_iter().flatten() {
            assert_eq!(
                errors(&api, schema, example),
                Vec::<String>::new(),
                "{name}"
            );
            seen += 1;
        }
    }
    for operation in operations(&api) {
        for parameter in &operation.parameters {
            if let Some(example) = parameter.get("example") {
                let wrong = errors(&api, &parameter["schema"], example);
                assert_eq!(wrong, Vec::<String>::new(), "{} {parameter}", operation.id);
                seen += 1;
            }
            let is_path = parameter["in"] == "path";
            assert!(
                !is_path || parameter.get("example").is_some(),
                "{} {parameter}",
                operation.id
            );
        }
    }
    assert!(seen > 100, "{seen}");
}

#[tokio::test]
async fn every_example_of_a_body_is_accepted() {
    let api = leasehold_server::openapi();
    let with_body = operations(&api);
    let with_body = with_body
        .iter()
        .filter(|it| it.body.is_some() && it.id != NO_JSON);
    let mut sent = 0;
    for operation in with_body {
        assert!(
            !operation.bodies.is_empty(),
            "{} has no example",
            operation.id
        );
        let stage = Stage::of(&api, operation).await;
        for body in &operation.bodies {
            let mut body = stage.own(body);
            if operation.id == "sessions_intent" && body["type"] == "stream.stop" {
                body["session_id"] = started(&stage, &api).await;
            }
            let (status, answer) = stage.send(operation, Some(&body)).await;
            assert!(
                status.is_success(),
                "{} {body}: {status} {answer}",
                operation.id
            );
            let schema =
                &operation.responses[status.as_str()]["content"]["application/json"]["schema"];
            assert!(
                !schema.is_null(),
                "{}: {status} has no schema",
                operation.id
            );
            let wrong = errors(&api, schema, &answer);
            assert_eq!(wrong, Vec::<String>::new(), "{}: {answer}", operation.id);
            sent += 1;
        }
    }
    assert!(sent >= 27, "{sent}");
}

/// A session that can be stopped.
async fn started(stage: &Stage, api: &Value) -> Value {
    let all = operations(api);
    let intent = all.iter().find(|it| it.id == "sessions_intent");
    let intent = intent.expect("an operation");
    let (_, answer) = stage.send(intent, Some(&intent.bodies[0])).await;
    answer["session_id"].clone()
}

/// Texts in bodies that may be anything, and why.
const ANY_TEXT: [(&str, &str, &str); 8] = [
    (
        "CameraStatus",
        "state",
        "anything but two words means that nothing is known yet",
    ),
    ("CameraStatus", "error", "shortened when it is kept"),
    ("IntentRequest", "idempotency_key", "ignored"),
    (
        "IntentRequest",
        "session_id",
        "an id that no session has is unknown",
    ),
    (
        "RunnerHeartbeatRequest",
        "active_leases",
        "an id that no lease has is lost",
    ),
    (
        "RunnerHeartbeatRequest",
        "incarnation",
        "compared with the one that is registered",
    ),
    ("TargetDocument", "url", "whatever the poller takes"),
    ("ZoneDocument", "kind", "a word of its own schema"),
];

#[test]
fn every_text_in_a_body_says_what_it_may_be() {
    let api = leasehold_server::openapi();
    let mut schemas: Vec<&str> = Vec::new();
    let mut open: Vec<&Value> = Vec::new();
    let all = operations(&api);
    open.extend(all.iter().filter_map(|it| it.body.as_ref()));
    let mut free = Vec::new();
    while let Some(schema) = open.pop() {
        let named = schema["$ref"]
            .as_str()
            .or_else(|| schema["oneOf"][0]["$ref"].as_str());
        let Some(name) = named.and_then(|it| it.rsplit('/').next()) else {
            continue;
        };
        if schemas.contains(&name) {
            continue;
        }
        schemas.push(name);
        for (field, schema) in resolve(&api, schema)["properties"]
            .as_object()
            .into_iter()
            .flatten()
        {
            let parts = [schema, &schema["items"], &schema["additionalProperties"]];
            for part in parts {
                open.push(part);
                let types = part["type"].to_string();
                let is_stated = part.get("enum").is_some() || part.get("pattern").is_some();
                if types.contains("string") && !is_stated {
                    free.push((name, field.as_str()));
                }
            }
        }
    }
    assert!(schemas.len() > 20, "{schemas:?}");
    for (name, field) in free {
        let known = ANY_TEXT
            .iter()
            .any(|(schema, it, _)| (*schema, *it) == (name, field));
        assert!(known, "{name}.{field} says nothing about its text");
    }
}
