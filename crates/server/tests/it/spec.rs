//! The specification is what the routes are, and the routes answer only what it says.

mod examples;
mod limits;
mod schema;
mod stage;

use leasehold_api::sessions::{HLS, STREAM_FILES};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{ADMIN, POWERLESS, READER, start};

#[test]
fn the_specification_changes_only_on_purpose() {
    insta::assert_json_snapshot!("openapi", leasehold_server::openapi());
}

#[test]
fn every_file_of_a_stream_has_a_documented_media_type() {
    let api = serde_json::to_value(leasehold_server::openapi()).unwrap();
    let content = &api["paths"][HLS]["get"]["responses"]["200"]["content"];
    for (extension, media, _) in STREAM_FILES {
        assert!(content[media].is_object(), "{extension}: {media}");
    }
}

#[tokio::test]
async fn every_route_answers_only_documented_statuses() {
    let server = start().await;
    let lease = server.acquire("job", "x", "h").await;
    let (_, api) = server
        .call("", "GET", "/api/openapi.json", Value::Null)
        .await;
    let mut asked = 0;
    for (path, item) in api["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let documented: Vec<&str> = operation["responses"]
                .as_object()
                .unwrap()
                .keys()
                .map(String::as_str)
                .collect();
            let method: Method = method.to_uppercase().parse().unwrap();
            let ids = [lease["lease_id"].as_str().unwrap(), "unknown", "%20"];
            for (token, id) in ["", POWERLESS, READER, ADMIN]
                .into_iter()
                .flat_map(|token| ids.map(|id| (token, id)))
            {
                let path = path
                    .replace("{lease_id}", id)
                    .replace("{name}", id)
                    .replace("{runner_id}", id)
                    .replace("{camera_uuid}", id)
                    .replace("{method}", if id == "unknown" { id } else { "now" });
                for body in [
                    None,
                    Some(json!({})),
                    Some(json!({"nonsense": 1})),
                    Some(json!({"reason": "r"})),
                ] {
                    if body.is_some() && method == Method::GET {
                        continue;
                    }
                    // Only the head of the answer: streams do not end.
                    let response = server
                        .send(token, method.clone(), &path, body.clone())
                        .await;
                    let status = response.status().as_u16().to_string();
                    asked += 1;
                    assert!(
                        documented.contains(&status.as_str()),
                        "{method} {path} with {token:?} and {body:?}: {status} is not in {documented:?}"
                    );
                }
            }
        }
    }
    assert!(asked > 300, "{asked}");
}

#[tokio::test]
async fn what_is_not_in_the_specification_is_not_there() {
    let server = start().await;
    for path in [
        "/api/v1",
        "/api/v1/lease",
        "/api/v2/leases",
        "/api/v1/leases/x/y/z",
        "/metrics/x",
        "/../etc/passwd",
    ] {
        let (status, _) = server.call(ADMIN, "GET", path, Value::Null).await;
        assert_eq!(status, 404, "{path}");
    }
}
