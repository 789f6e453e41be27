//! Versions, conditions and pages of cameras and zones: both are documents, and both keep the same rules.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use futures_util::future::join_all;
use reqwest::{Method, header::HeaderValue};
use serde_json::{Value, json};

use crate::support::{ADMIN, Running, start};

/// One sort of document: where it lives, how it is made, and a field of it to change.
struct Sort {
    path: &'static str,
    list: &'static str,
    name: &'static str,
    make: fn(u32) -> Value,
    field: &'static str,
    other: (&'static str, f64),
}

const SORTS: [Sort; 2] = [
    Sort {
        path: "/api/v1/tenants/t/sites/s/cameras/",
        list: "cameras",
        name: "camera_uuid",
        make: |n| json!({"camera_uuid": format!("cam-{n}"), "rtsp_url": "rtsp://x/y"}),
        field: "min_score",
        other: ("iou_threshold", 0.75),
    },
    Sort {
        path: "/api/v1/tenants/t/sites/s/zones/",
        list: "zones",
        name: "zone_id",
        make: |n| json!({"zone_id": n, "name": format!("zone {n}"), "kind": "include", "polygon": [[0, 0], [9, 0], [9, 9]]}),
        field: "min_score",
        other: ("priority", 7.0),
    },
];

impl Sort {
    fn at(&self, document: &Value) -> String {
        let name = match &document[self.name] {
            Value::String(name) => name.clone(),
            number => number.to_string(),
        };
        format!("{}{name}/", self.path)
    }

    /// Makes one and returns it with its path and tag.
    async fn made(&self, server: &Running, n: u32) -> (Value, String, HeaderValue) {
        let made = server
            .send(ADMIN, Method::POST, self.path, Some((self.make)(n)))
            .await;
        assert_eq!(made.status(), 201);
        let tag = made.headers()["etag"].clone();
        let document: Value = made.json().await.unwrap();
        let path = self.at(&document);
        (document, path, tag)
    }
}

/// A call with a condition: the status, the new tag and the body.
async fn with_tag(
    server: &Running,
    method: Method,
    path: &str,
    tag: &HeaderValue,
    body: Option<Value>,
) -> (u16, Option<HeaderValue>, Value) {
    let mut request = server
        .http
        .request(method, format!("{}{path}", server.url))
        .bearer_auth(ADMIN)
        .header("If-Match", tag);
    if let Some(body) = body {
        request = request.json(&body);
    }
    let response = request.send().await.unwrap();
    let (status, tag) = (
        response.status().as_u16(),
        response.headers().get("etag").cloned(),
    );
    (status, tag, response.json().await.unwrap_or(Value::Null))
}

async fn a_tag_names_one_version() {
    let server = start().await;
    for sort in &SORTS {
        let (made, path, first) = sort.made(&server, 1).await;
        let read = server.send(ADMIN, Method::GET, &path, None).await;
        assert_eq!(
            read.headers()["etag"],
            first,
            "a read shows the same version"
        );
        assert_eq!(
            read.json::<Value>().await.unwrap()[sort.name],
            made[sort.name]
        );
        let change = json!({sort.field: 0.9});
        let (status, second, _) =
            with_tag(&server, Method::PUT, &path, &first, Some(change.clone())).await;
        let second = second.unwrap();
        assert_eq!(status, 200);
        assert_ne!(second, first, "a change is another version");
        for (method, body) in [(Method::PUT, Some(change.clone())), (Method::DELETE, None)] {
            let (status, _, problem) = with_tag(&server, method.clone(), &path, &first, body).await;
            assert_eq!(status, 412, "{method} {path}: {problem}");
        }
        let any = HeaderValue::from_static("*");
        let (status, third, _) = with_tag(&server, Method::PUT, &path, &any, Some(change)).await;
        assert_eq!(status, 200, "a star is any version");
        let (status, _, _) = with_tag(&server, Method::DELETE, &path, &third.unwrap(), None).await;
        assert_eq!(status, 200);
        for (method, body) in [
            (Method::PUT, Some(json!({sort.field: 0.9}))),
            (Method::DELETE, None),
        ] {
            let (status, _, _) = with_tag(&server, method, &path, &any, body).await;
            assert_eq!(status, 404, "what is gone has no version");
        }
        // The same name again is a new document: an old tag does not fit it.
        let (_, path, fresh) = sort.made(&server, 1).await;
        assert_ne!(fresh, second);
        let (status, _, _) = with_tag(&server, Method::DELETE, &path, &second, None).await;
        assert_eq!(status, 412);
        for wrong in ["nonsense", "\"x\"", ""] {
            let tag = HeaderValue::from_static(wrong);
            let (status, _, problem) = with_tag(&server, Method::DELETE, &path, &tag, None).await;
            assert_eq!(status, 400, "{wrong:?}: {problem}");
            assert_eq!(problem["errors"][0]["field"], "If-Match");
        }
    }
}

async fn of_many_edits_of_one_version_one_is_taken() {
    let server = start().await;
    for sort in &SORTS {
        let (_, path, tag) = sort.made(&server, 1).await;
        let edits = (0..10).map(|n| {
            // None of them is what it has already: that would be no new version.
            let change = json!({sort.field: f64::from(n) / 10.0 + 0.03});
            with_tag(&server, Method::PUT, &path, &tag, Some(change))
        });
        let mut taken = Vec::new();
        for (status, _, body) in join_all(edits).await {
            match status {
                200 => taken.push(body[sort.field].clone()),
                412 => {}
                other => panic!("{other}: {body}"),
            }
        }
        assert_eq!(taken.len(), 1, "{path}");
        let (_, now) = server.call(ADMIN, "GET", &path, Value::Null).await;
        assert_eq!(now[sort.field], taken[0], "and it is the one that counts");
    }
}

async fn edits_without_a_condition_lose_nothing() {
    let server = start().await;
    for sort in &SORTS {
        let (_, path, _) = sort.made(&server, 1).await;
        let edits = (0..8).map(|n| {
            let (field, value) = if n % 2 == 0 {
                (sort.field, 0.75)
            } else {
                sort.other
            };
            // Whole numbers are written as such.
            let value = if value.fract() == 0.0 {
                json!(7)
            } else {
                json!(value)
            };
            server.call(ADMIN, "PUT", &path, json!({field: value}))
        });
        for (status, body) in join_all(edits).await {
            assert_eq!(status, 200, "{body}");
        }
        let (_, now) = server.call(ADMIN, "GET", &path, Value::Null).await;
        assert_eq!(now[sort.field], json!(0.75));
        assert_eq!(now[sort.other.0].as_f64(), Some(sort.other.1));
    }
}

async fn a_wrong_edit_leaves_the_version_alone() {
    let server = start().await;
    for sort in &SORTS {
        let (made, path, tag) = sort.made(&server, 1).await;
        for wrong in [
            json!({sort.field: 2}),
            json!({"no_such_field": 1}),
            json!({sort.name: "other"}),
        ] {
            let (status, _, problem) =
                with_tag(&server, Method::PUT, &path, &tag, Some(wrong.clone())).await;
            assert_eq!(status, 400, "{wrong}: {problem}");
        }
        let read = server.send(ADMIN, Method::GET, &path, None).await;
        assert_eq!(read.headers()["etag"], tag);
        assert_eq!(read.json::<Value>().await.unwrap(), made);
    }
}

async fn pages_are_in_order_and_survive_changes_in_between() {
    let server = start().await;
    for sort in &SORTS {
        let mut made = Vec::new();
        for n in [5, 3, 9, 1, 7] {
            made.push(sort.made(&server, n).await.0[sort.name].clone());
        }
        let (status, first) = server
            .call(ADMIN, "GET", &format!("{}?limit=2", sort.path), Value::Null)
            .await;
        assert_eq!(status, 200);
        let shown = |page: &Value| -> Vec<Value> {
            let items = page[sort.list].as_array().unwrap();
            items.iter().map(|it| it[sort.name].clone()).collect()
        };
        assert_eq!(
            shown(&first),
            [made[3].clone(), made[1].clone()],
            "in the order of their names"
        );
        // One that was shown goes, one before and one behind the cursor come.
        let gone = sort.at(&json!({sort.name: made[1]}));
        assert_eq!(
            server.call(ADMIN, "DELETE", &gone, Value::Null).await.0,
            200
        );
        sort.made(&server, 2).await;
        let late = sort.made(&server, 8).await.0[sort.name].clone();
        let mut seen = Vec::new();
        let mut cursor = first["next_cursor"].as_str().map(str::to_owned);
        while let Some(next) = cursor {
            let path = format!("{}?limit=2&cursor={next}", sort.path);
            let (status, page) = server.call(ADMIN, "GET", &path, Value::Null).await;
            assert_eq!(status, 200, "{page}");
            seen.extend(shown(&page));
            assert!(seen.len() < 20, "pages end");
            cursor = page["next_cursor"].as_str().map(str::to_owned);
        }
        assert_eq!(
            seen,
            [made[0].clone(), made[4].clone(), late, made[2].clone()]
        );
        for wrong in ["limit=0", "limit=1001", "limit=x", "cursor=!", "page=2"] {
            let path = format!("{}?{wrong}", sort.path);
            let (status, problem) = server.call(ADMIN, "GET", &path, Value::Null).await;
            assert_eq!(status, 400, "{wrong}: {problem}");
        }
    }
}

async fn a_change_that_is_taken_back_gives_the_version_back() {
    let server = start().await;
    let version = async || {
        let path = "/api/v1/tenants/t/sites/s/config/version";
        let (status, body) = server.call(ADMIN, "GET", path, Value::Null).await;
        assert_eq!(status, 200, "{body}");
        (body["config_version"].clone(), body["zone_version"].clone())
    };
    for sort in &SORTS {
        let (made, path, _) = sort.made(&server, 1).await;
        let before = version().await;
        let other = json!({sort.field: 0.875});
        assert_eq!(server.call(ADMIN, "PUT", &path, other).await.0, 200);
        assert_ne!(version().await, before, "{path}");
        let back = json!({sort.field: made[sort.field]});
        assert_eq!(server.call(ADMIN, "PUT", &path, back).await.0, 200);
        assert_eq!(
            version().await,
            before,
            "equal configurations have equal versions"
        );
    }
}

on_every_backend!(
    a_tag_names_one_version,
    of_many_edits_of_one_version_one_is_taken,
    edits_without_a_condition_lose_nothing,
    a_wrong_edit_leaves_the_version_alone,
    pages_are_in_order_and_survive_changes_in_between,
    a_change_that_is_taken_back_gives_the_version_back,
);
