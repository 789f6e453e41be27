//! A server on which the example of an operation can be carried out, and the requests that do it.

use std::collections::BTreeMap;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::schema::examples;
use crate::support::{Running, options, start_with};

/// May do everything.
const EVERYTHING: &str = "everything-secret";

/// What is there before an operation is tried, but for its own work, in this order.
const BEFORE: [&str; 7] = [
    "cameras_create",
    "zones_create",
    "runners_register",
    "targets_create",
    "credentials_create",
    "leases_acquire",
    "sessions_intent",
];

/// Ids that only a server gives: the field of the answer, and the parameter or field that takes it.
const GIVEN: [(&str, &str, &str); 3] = [
    ("credentials_create", "id", "credential_id"),
    ("leases_acquire", "lease_id", "lease_id"),
    ("sessions_intent", "session_id", "session_id"),
];

/// An operation of the specification.
#[derive(Clone)]
pub struct Operation {
    pub id: String,
    pub method: Method,
    pub path: String,
    pub parameters: Vec<Value>,
    /// The JSON schema of its body.
    pub body: Option<Value>,
    /// Bodies to send.
    pub bodies: Vec<Value>,
    pub responses: Value,
}

/// All of them.
pub fn operations(api: &Value) -> Vec<Operation> {
    let mut all = Vec::new();
    for (path, item) in api["paths"].as_object().expect("paths") {
        for (method, it) in item.as_object().expect("operations") {
            let json = &it["requestBody"]["content"]["application/json"];
            let body = json.get("schema").cloned();
            let mut bodies = body
                .as_ref()
                .map_or(Vec::new(), |body| examples(api, body).to_vec());
            bodies.extend(json.get("example").cloned());
            all.push(Operation {
                id: it["operationId"].as_str().expect("a name").to_owned(),
                method: method.to_uppercase().parse().expect("a method"),
                path: path.clone(),
                parameters: it["parameters"].as_array().cloned().unwrap_or_default(),
                body,
                bodies,
                responses: it["responses"].clone(),
            });
        }
    }
    all
}

/// A server with everything in place.
pub struct Stage {
    pub server: Running,
    given: BTreeMap<&'static str, String>,
}

impl Stage {
    /// For one operation.
    pub async fn of(api: &Value, operation: &Operation) -> Self {
        let mut options = options();
        let everything = json!({"token": EVERYTHING,
            "scopes": ["leases:*", "runners:*", "v3:*", "credentials:*"]});
        options
            .tokens
            .push(serde_json::from_value(everything).expect("a credential"));
        let mut stage = Self {
            server: start_with(options).await,
            given: BTreeMap::new(),
        };
        let all = operations(api);
        for name in BEFORE.into_iter().filter(|name| *name != operation.id) {
            let first = all.iter().find(|it| it.id == name).expect("an operation");
            let (status, answer) = stage.send(first, Some(&first.bodies[0])).await;
            assert!(status.is_success(), "{name}: {status} {answer}");
            if let Some((_, field, parameter)) = GIVEN.iter().find(|(from, ..)| *from == name) {
                let id = answer[field].as_str().expect("an id");
                stage.given.insert(parameter, id.to_owned());
            }
        }
        stage
    }

    /// A body with the ids that this server gave.
    pub fn own(&self, body: &Value) -> Value {
        let mut body = body.clone();
        for (name, id) in &self.given {
            if let Some(field) = body.get_mut(name) {
                *field = id.as_str().into();
            }
        }
        body
    }

    /// Sends a body with the parameters of the examples.
    pub async fn send(&self, operation: &Operation, body: Option<&Value>) -> (StatusCode, Value) {
        self.send_with(operation, body, None).await
    }

    /// The same with one parameter changed.
    pub async fn send_with(
        &self,
        operation: &Operation,
        body: Option<&Value>,
        changed: Option<(&str, &str)>,
    ) -> (StatusCode, Value) {
        let mut path = operation.path.clone();
        let mut query = Vec::new();
        let mut headers = Vec::new();
        for parameter in &operation.parameters {
            let name = parameter["name"].as_str().expect("a name");
            let example = match &parameter["example"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let example = self.given.get(name).cloned().unwrap_or(example);
            let ours = changed.filter(|(changed, _)| *changed == name);
            let value = ours.map_or(example, |(_, value)| value.to_owned());
            let is_sent = ours.is_some() || parameter["required"] == true;
            match parameter["in"].as_str() {
                Some("path") => path = path.replace(&format!("{{{name}}}"), &encoded(&value)),
                Some("query") if is_sent => query.push(format!("{name}={}", encoded(&value))),
                Some("header") if is_sent => headers.push((name.to_owned(), value)),
                _ => {}
            }
        }
        if !query.is_empty() {
            path = format!("{path}?{}", query.join("&"));
        }
        let url = format!("{}{path}", self.server.url);
        let request = self.server.http.request(operation.method.clone(), url);
        let mut request = request
            .bearer_auth(EVERYTHING)
            .timeout(crate::support::LONG);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.expect("an answer");
        let status = response.status();
        let media = response.headers().get("content-type").cloned();
        let is_json = media.is_some_and(|it| it.to_str().is_ok_and(|it| it.contains("json")));
        // Streams do not end.
        if !is_json {
            return (status, Value::Null);
        }
        (status, response.json().await.expect("JSON"))
    }

    /// What a change would show in: the newest revision, and every live lease.
    pub async fn state(&self) -> [Value; 2] {
        let look = |path: &'static str| self.server.call(EVERYTHING, "GET", path, Value::Null);
        let (_, events) = look("/api/v1/events?limit=1").await;
        let (_, leases) = look("/api/v1/leases?limit=1000").await;
        [events["newest"].clone(), leases]
    }
}

fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    text.bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}
