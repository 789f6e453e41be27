//! The life of leases over HTTP.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lease::{Answer, Authority, Capabilities, Command, Outcome, Query, View, Watch, Watching};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::support::{
    self, ADMIN, LONG, READER, TENANT_A, TENANT_B, WRITER, clock, guarded::Counted, memory,
    options, start, start_on,
};

#[tokio::test]
async fn what_a_server_granted_itself_is_given_back_without_a_look() {
    let clock = clock();
    let counted = Counted::new(memory(&clock));
    let server = start_on(options(), clock, counted.clone()).await;
    let looks = || counted.looks.load(Ordering::SeqCst);
    let lease = server.acquire("job", "nightly", "worker-1").await;
    let id = lease["lease_id"].as_str().unwrap().to_owned();
    let release = format!("/api/v1/leases/{id}/release");
    // Another tenant's caller learns nothing and ends nothing, whatever this server remembers.
    let (status, _) = server.call(TENANT_B, "DELETE", &release, Value::Null).await;
    assert_eq!(status, 404);
    let show = format!("/api/v1/leases/{id}");
    let (_, shown) = server.call(READER, "GET", &show, Value::Null).await;
    assert_eq!(shown["status"], "active");
    // That took it out of memory: the same holder asks again, and is remembered again.
    server.acquire("job", "nightly", "worker-1").await;
    let before = looks();
    let (status, _) = server.call(WRITER, "DELETE", &release, Value::Null).await;
    assert_eq!((status.as_u16(), looks()), (200, before));
    let (_, shown) = server.call(READER, "GET", &show, Value::Null).await;
    assert_eq!(shown["status"], "released");
    // A second time it is looked for, and known from the history.
    let before = looks();
    let (status, _) = server.call(WRITER, "DELETE", &release, Value::Null).await;
    assert_eq!((status.as_u16(), looks()), (200, before + 1));
}

/// Holds releases back until it is asked to go on.
struct Slow {
    inner: Arc<dyn Authority>,
    began: Notify,
    goes_on: Notify,
    is_done: AtomicBool,
}

impl Authority for Slow {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn decide(&self, command: Command) -> Answer<'_, Outcome> {
        Box::pin(async move {
            let is_release = matches!(command, Command::Release(_));
            if is_release {
                self.began.notify_one();
                self.goes_on.notified().await;
            }
            let outcome = self.inner.decide(command).await;
            if is_release {
                self.is_done.store(true, Ordering::SeqCst);
                self.began.notify_one();
            }
            outcome
        })
    }

    fn look(&self, query: Query) -> Answer<'_, View> {
        self.inner.look(query)
    }

    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        self.inner.watch(watching)
    }
}

#[tokio::test]
async fn a_release_whose_caller_went_away_runs_to_its_end() {
    let clock = clock();
    let slow = Arc::new(Slow {
        inner: memory(&clock),
        began: Notify::new(),
        goes_on: Notify::new(),
        is_done: AtomicBool::new(false),
    });
    let server = start_on(options(), clock, slow.clone()).await;
    let lease = server.acquire("job", "nightly", "worker-1").await;
    let id = lease["lease_id"].as_str().unwrap();
    let call = server
        .http
        .delete(format!("{}/api/v1/leases/{id}/release", server.url))
        .bearer_auth(WRITER)
        .timeout(Duration::from_millis(200));
    let (answer, ()) = tokio::join!(call.send(), slow.began.notified());
    assert!(answer.is_err(), "it gave up");
    slow.goes_on.notify_one();
    tokio::time::timeout(LONG, slow.began.notified())
        .await
        .expect("the release ends");
    assert!(slow.is_done.load(Ordering::SeqCst));
    let (_, free) = server
        .call(READER, "GET", &format!("/api/v1/leases/{id}"), Value::Null)
        .await;
    assert_eq!(free["status"], "released");
}

#[tokio::test]
async fn everything_of_a_holder_is_kept_with_one_answer() {
    let server = start().await;
    for (tenant, id) in [(ADMIN, "1"), (ADMIN, "2"), (TENANT_A, "3"), (TENANT_B, "4")] {
        let asked =
            json!({"kind": "job", "id": id, "holder": "w", "incarnation": "1", "ttl_seconds": 30});
        let (status, _) = server
            .call(tenant, "POST", "/api/v1/leases/acquire", asked)
            .await;
        assert_eq!(status, 200);
    }
    server.clock.advance(10_000);
    let brief = json!({"holder": "w", "incarnation": "1", "brief": true});
    // A tenant's caller keeps what its tenant has.
    let path = "/api/v1/leases/renew";
    let (status, kept) = server.call(TENANT_A, "POST", path, brief.clone()).await;
    assert_eq!(status, 200, "{kept}");
    let expires = "2027-01-15T08:00:40.000Z";
    assert_eq!(
        kept,
        json!({"results": [], "kept": 1, "expires_at": expires})
    );
    let (_, other) = server
        .call(ADMIN, "GET", "/api/v1/leases?kind=job&id=4", Value::Null)
        .await;
    assert_eq!(other["leases"][0]["expires_at"], "2027-01-15T08:00:30.000Z");
    let (_, kept) = server.call(ADMIN, "POST", path, brief).await;
    assert_eq!(
        kept,
        json!({"results": [], "kept": 4, "expires_at": expires})
    );
    let named = json!({"holder": "w", "incarnation": "1", "brief": true, "leases": []});
    let (status, problem) = server.call(ADMIN, "POST", path, named).await;
    assert_eq!(status, 400, "{problem}");
    assert_eq!(problem["errors"][0]["field"], "brief");
    let text = server.send(ADMIN, Method::GET, "/metrics", None).await;
    let text = text.text().await.unwrap();
    assert!(
        text.contains("leasehold_events_total{event=\"lease_renewed\"} 5"),
        "{text}"
    );
}

#[tokio::test]
async fn a_lease_lives_and_ends_through_the_door() {
    let server = start().await;
    let lease = server.acquire("job", "nightly", "worker-1").await;
    let id = lease["lease_id"].as_str().unwrap().to_owned();
    assert_eq!(lease["kind"], "job");
    assert_eq!(lease["ttl_seconds"], 30);
    assert_eq!(lease["status"], "active");
    assert_eq!(lease["expires_at"], "2027-01-15T08:00:30.000Z");

    // The same holder gets the same lease again.
    let again = server.acquire("job", "nightly", "worker-1").await;
    assert_eq!(again["token"], lease["token"]);
    assert_eq!(again["lease_id"], lease["lease_id"]);

    server.clock.advance(10_000);
    let (status, renewed) = server
        .call(
            WRITER,
            "PUT",
            &format!("/api/v1/leases/{id}/renew/"),
            json!({"processing_stats": {"frames": 7}}),
        )
        .await;
    assert_eq!(status, 200, "{renewed}");
    assert_eq!(renewed["expires_at"], "2027-01-15T08:00:40.000Z");
    assert_eq!(renewed["processing_stats"]["frames"], 7);

    server.clock.advance(1_000);
    let (status, beat) = server
        .call(
            WRITER,
            "POST",
            &format!("/api/v1/leases/{id}/heartbeat/"),
            json!({"camera_status": "ok"}),
        )
        .await;
    assert_eq!(status, 200, "{beat}");
    assert_eq!(beat["success"], true);
    assert_eq!(beat["lease_expires_at"], "2027-01-15T08:00:41.000Z");
    assert_eq!(beat["next_heartbeat_due"], "2027-01-15T08:00:21.000Z");

    let validate = format!("/api/v1/leases/{id}/validate/");
    let (_, valid) = server
        .call(READER, "POST", &validate, json!({"token": lease["token"]}))
        .await;
    assert_eq!(
        (&valid["active"], &valid["token"]),
        (&json!(true), &lease["token"])
    );
    let (_, other) = server
        .call(READER, "POST", &validate, json!({"token": 1}))
        .await;
    assert_eq!(other["active"], false);

    for _ in 0..2 {
        let (status, released) = server
            .call(
                WRITER,
                "DELETE",
                &format!("/api/v1/leases/{id}/release/"),
                Value::Null,
            )
            .await;
        assert_eq!((status.as_u16(), &released["success"]), (200, &json!(true)));
    }
    let (status, gone) = server
        .call(
            WRITER,
            "PUT",
            &format!("/api/v1/leases/{id}/renew"),
            json!({}),
        )
        .await;
    assert_eq!(status, 410, "{gone}");
    assert_eq!(gone["code"], "LEASE_RELEASED");
    assert_eq!(gone["loss"]["reason"], "released");
    let (_, valid) = server.call(READER, "POST", &validate, json!({})).await;
    assert_eq!(valid["active"], false);
}

#[tokio::test]
async fn l2_a_held_key_names_its_holder_and_when_to_come_back() {
    let server = start().await;
    let lease = server.acquire("job", "x", "first").await;
    let body = json!({"kind": "job", "id": "x", "holder": "second"});
    let response = server
        .send(
            WRITER,
            reqwest::Method::POST,
            "/api/v1/leases/acquire",
            Some(body),
        )
        .await;
    assert_eq!(response.status(), 409);
    assert_eq!(response.headers()["retry-after"], "30");
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
    let problem: Value = response.json().await.unwrap();
    assert_eq!(problem["code"], "LEASE_ALREADY_HELD");
    assert_eq!(problem["error_code"], "LEASE_ALREADY_HELD");
    assert_eq!(problem["holder"], "first");
    assert_eq!(problem["held"]["token"], lease["token"]);
    assert_eq!(problem["retry_after_seconds"], 30);
}

#[tokio::test]
async fn l4_l5_several_keys_and_pools_are_one_step() {
    let server = start().await;
    let acquire = |body: Value| server.call(WRITER, "POST", "/api/v1/leases/acquire/", body);
    let keys = json!([{"kind": "a", "id": "1"}, {"kind": "b", "id": "2"}]);
    let (status, both) = acquire(json!({"keys": keys, "holder": "h"})).await;
    assert_eq!(status, 200, "{both}");
    assert_eq!(both["leases"].as_array().unwrap().len(), 2);
    let (status, _) = acquire(
        json!({"keys": [{"kind": "c", "id": "3"}, {"kind": "b", "id": "2"}], "holder": "other"}),
    )
    .await;
    assert_eq!(status, 409);
    let (_, free) = server
        .call(READER, "GET", "/api/v1/leases/?kind=c", Value::Null)
        .await;
    assert_eq!(free["leases"], json!([]));

    let pool = json!({"pool": {"kind": "slot", "ids": ["0", "1"]}, "holder": "p"});
    let (_, first) = acquire(pool.clone()).await;
    let (_, second) = acquire(pool.clone()).await;
    assert_eq!((&first["id"], &second["id"]), (&json!("0"), &json!("1")));
    assert_eq!(acquire(pool).await.0, 409);
}

#[tokio::test]
async fn l6_a_wait_is_pending_and_ends_with_the_release() {
    let server = start().await;
    let lease = server.acquire("job", "x", "first").await;
    let body = json!({"kind": "job", "id": "x", "holder": "second", "wait_seconds": 20});
    let waiting = server.call(WRITER, "POST", "/api/v1/leases/acquire/", body);
    let freed = async {
        leasehold_testkit::wait::until(support::LONG, "the wait is seen", async || {
            let (_, list) = server
                .call(READER, "GET", "/api/v1/leases?status=pending", Value::Null)
                .await;
            list["leases"]
                .as_array()
                .is_some_and(|leases| !leases.is_empty())
        })
        .await;
        let path = format!(
            "/api/v1/leases/{}/release/",
            lease["lease_id"].as_str().unwrap()
        );
        server.call(WRITER, "DELETE", &path, Value::Null).await
    };
    let ((status, granted), _) = tokio::join!(waiting, freed);
    assert_eq!(status, 200, "{granted}");
    assert_eq!(granted["holder"], "second");
    assert!(granted["token"].as_u64() > lease["token"].as_u64());
}

#[tokio::test]
async fn l9_many_renewals_in_one_call_have_an_answer_each() {
    let server = start().await;
    let one = server.acquire("a", "1", "h").await;
    server.acquire("a", "2", "h").await;
    let body = json!({"holder": "h", "leases": [
        {"kind": "a", "id": "1", "token": one["token"]},
        {"kind": "a", "id": "2", "token": 5},
        {"kind": "a", "id": "3", "token": 5}]});
    let (status, answer) = server
        .call(WRITER, "POST", "/api/v1/leases/renew/", body)
        .await;
    assert_eq!(status, 200, "{answer}");
    let words: Vec<_> = answer["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| {
            (
                it["renewed"].as_bool().unwrap(),
                it["loss"]["reason"].as_str().unwrap_or("").to_owned(),
            )
        })
        .collect();
    assert_eq!(
        words,
        [
            (true, String::new()),
            (false, "stolen".into()),
            (false, "unknown".into())
        ]
    );
    let (_, all) = server
        .call(
            WRITER,
            "POST",
            "/api/v1/leases/renew/",
            json!({"holder": "h"}),
        )
        .await;
    assert_eq!(all["results"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn l17_revoke_needs_admin_and_a_reason() {
    let server = start().await;
    let lease = server.acquire("job", "x", "h").await;
    let path = format!(
        "/api/v1/leases/{}/revoke/",
        lease["lease_id"].as_str().unwrap()
    );
    let reason = json!({"reason": "maintenance"});
    assert_eq!(
        server.call(WRITER, "POST", &path, reason.clone()).await.0,
        403
    );
    let (status, problem) = server.call(ADMIN, "POST", &path, json!({})).await;
    assert_eq!(
        (status.as_u16(), &problem["errors"][0]["field"]),
        (400, &json!("reason"))
    );
    let (status, revoked) = server.call(ADMIN, "POST", &path, reason).await;
    assert_eq!(
        (status.as_u16(), &revoked["status"]),
        (200, &json!("revoked"))
    );
    let renew = path.replace("revoke", "renew");
    let (status, gone) = server.call(WRITER, "PUT", &renew, json!({})).await;
    assert_eq!(
        (status.as_u16(), &gone["code"]),
        (410, &json!("LEASE_REVOKED"))
    );
    assert_eq!(
        gone["loss"],
        json!({"reason": "revoked", "detail": "maintenance"})
    );
}

#[tokio::test]
async fn a_renewal_takes_a_token_and_a_ttl() {
    let server = start().await;
    let lease = server.acquire("job", "x", "h").await;
    let path = format!(
        "/api/v1/leases/{}/renew/",
        lease["lease_id"].as_str().unwrap()
    );
    let token = lease["token"].as_u64().unwrap();
    let body = json!({"token": token, "ttl_seconds": 90});
    let (status, kept) = server.call(WRITER, "PUT", &path, body).await;
    assert_eq!(
        (status.as_u16(), &kept["ttl_seconds"]),
        (200, &json!(90)),
        "{kept}"
    );
    let body = json!({"token": token + 1, "ttl_seconds": 0.001});
    let (status, wrong) = server.call(WRITER, "PUT", &path, body).await;
    assert_eq!(status, 400, "{wrong}");
    let fields: Vec<_> = wrong["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["field"])
        .collect();
    assert_eq!(fields, ["token", "ttl_seconds"], "{wrong}");
}

#[tokio::test]
async fn a_field_that_does_not_exist_is_answered_with_the_one_that_was_meant() {
    let server = start().await;
    let body = json!({"kind": "job", "id": "x", "holder": "h", "ttl": 30});
    let path = "/api/v1/leases/acquire/";
    let (status, problem) = server.call(WRITER, "POST", path, body).await;
    assert_eq!(status, 400, "{problem}");
    let error = &problem["errors"][0];
    assert_eq!(error["field"], "ttl", "{problem}");
    let expected = error["expected"].as_str().unwrap();
    assert!(
        expected.contains("did you mean `ttl_seconds`?"),
        "{problem}"
    );
}

/// The only metric of how punctual expiry is: it must say so when expiry is late.
#[tokio::test]
async fn l12_the_lateness_of_expiry_is_measured() {
    let server = start().await;
    let figure = async |name: &str| {
        let (_, text) = server.call("", "GET", "/metrics", Value::Null).await;
        let line = format!("leasehold_expiry_lateness_seconds_{name} ");
        let found = text.as_str().unwrap().lines();
        let mut found = found.filter_map(|it| it.strip_prefix(line.as_str()));
        found.next().and_then(|it| it.parse::<f64>().ok())
    };
    assert_eq!(figure("count").await, Some(0.0));
    let lease = server.acquire("job", "x", "h").await;
    let ttl_ms = lease["ttl_seconds"].as_u64().unwrap() * 1_000;
    // Nobody looks before a quarter of a second after its end. What the server has itself may lapse with it.
    server.clock.advance(ttl_ms + 250);
    leasehold_testkit::wait::until(LONG, "the expiry is counted", async || {
        figure("sum").await >= Some(0.25)
    })
    .await;
    assert!(figure("count").await >= Some(1.0));
}

#[tokio::test]
async fn l12_a_lapsed_lease_is_gone_for_its_holder() {
    let server = start().await;
    let lease = server.acquire("job", "x", "h").await;
    server.clock.advance(30_000);
    let path = format!(
        "/api/v1/leases/{}/heartbeat/",
        lease["lease_id"].as_str().unwrap()
    );
    let (status, gone) = server.call(WRITER, "POST", &path, json!({})).await;
    assert_eq!(
        (status.as_u16(), &gone["code"]),
        (410, &json!("LEASE_EXPIRED"))
    );
    assert_eq!(gone["loss"]["reason"], "expired", "{gone}");
    let unknown = "/api/v1/leases/00000000-0000-8000-8000-000000000000/heartbeat/";
    let (status, missing) = server.call(WRITER, "POST", unknown, json!({})).await;
    assert_eq!(
        (status.as_u16(), &missing["code"]),
        (404, &json!("LEASE_NOT_FOUND"))
    );
}

#[tokio::test]
async fn l21_history_says_who_owned_a_key_when() {
    let server = start().await;
    let first = server.acquire("job", "x", "first").await;
    server.clock.advance(5_000);
    let path = format!(
        "/api/v1/leases/{}/release/",
        first["lease_id"].as_str().unwrap()
    );
    server.call(WRITER, "DELETE", &path, Value::Null).await;
    server.clock.advance(5_000);
    server.acquire("job", "x", "second").await;
    let (status, history) = server
        .call(
            READER,
            "GET",
            "/api/v1/leases/history/?key=job:x",
            Value::Null,
        )
        .await;
    assert_eq!(status, 200, "{history}");
    assert_eq!(history["owners"].as_array().unwrap().len(), 2);
    assert_eq!(history["owners"][0]["ended_by"], "lease_released");
    let at = |time: &str| format!("/api/v1/leases/history/?key=job:x&at=2027-01-15T08:00:{time}Z");
    let (_, then) = server.call(READER, "GET", &at("03"), Value::Null).await;
    assert_eq!(then["owners"][0]["holder"], "first");
    let (_, between) = server.call(READER, "GET", &at("07"), Value::Null).await;
    assert_eq!(between["owners"], json!([]));
}

#[tokio::test]
async fn lists_page_and_filter() {
    let server = start().await;
    for id in ["1", "2", "3"] {
        server.acquire("a", id, "h").await;
    }
    server.acquire("b", "1", "other").await;
    let (_, page) = server
        .call(READER, "GET", "/api/v1/leases/?kind=a&limit=2", Value::Null)
        .await;
    assert_eq!(page["leases"].as_array().unwrap().len(), 2);
    let next = format!(
        "/api/v1/leases/?kind=a&limit=2&cursor={}",
        page["next_cursor"].as_str().unwrap()
    );
    let (_, rest) = server.call(READER, "GET", &next, Value::Null).await;
    assert_eq!(rest["leases"].as_array().unwrap().len(), 1);
    assert_eq!(rest["next_cursor"], Value::Null);
    let (_, others) = server
        .call(READER, "GET", "/api/v1/leases/?holder=other", Value::Null)
        .await;
    assert_eq!(others["leases"][0]["kind"], "b");
    for wrong in [
        "limit=0",
        "limit=1001",
        "cursor=%%%",
        "status=sleeping",
        "kinds=a",
    ] {
        let (status, _) = server
            .call(
                READER,
                "GET",
                &format!("/api/v1/leases/?{wrong}"),
                Value::Null,
            )
            .await;
        assert_eq!(status, 400, "{wrong}");
    }
}

#[tokio::test]
async fn cameras_speak_the_document_s_words() {
    let server = start().await;
    server
        .runner("tenant-1", "site-1", "runner-abc123", 16)
        .await;
    server.camera("tenant-1", "site-1", "cam-001").await;
    let body = json!({"camera_uuid": "cam-001", "runner_id": "runner-abc123", "shard_id": "shard-1", "tenant_id": "tenant-1",
        "site_id": "site-1", "ttl_seconds": 60, "config_version": "abc123", "zone_version": "def456",
        "on_outage": {"policy": "hold", "grace_seconds": 300}});
    let (status, lease) = server
        .call(WRITER, "POST", "/api/v1/leases/acquire/", body)
        .await;
    assert_eq!(status, 200, "{lease}");
    for (field, value) in [
        ("camera_uuid", "cam-001"),
        ("runner_id", "runner-abc123"),
        ("shard_id", "shard-1"),
        ("tenant_id", "tenant-1"),
        ("site_id", "site-1"),
        ("config_version", "abc123"),
        ("zone_version", "def456"),
    ] {
        assert_eq!(lease[field], value, "{field}");
    }
    assert_eq!(
        lease["on_outage"],
        json!({"policy": "hold", "grace_seconds": 300})
    );
    let (_, found) = server
        .call(READER, "GET", "/api/v1/leases/camera/cam-001/", Value::Null)
        .await;
    assert_eq!(found["lease_id"], lease["lease_id"]);
    let (_, none) = server
        .call(READER, "GET", "/api/v1/leases/camera/cam-002/", Value::Null)
        .await;
    assert_eq!(none, Value::Null);
    let (_, of_runner) = server
        .call(
            READER,
            "GET",
            "/api/v1/leases/runner/runner-abc123/",
            Value::Null,
        )
        .await;
    assert_eq!(of_runner.as_array().unwrap().len(), 1);
    let (_, renewed) = server
        .call(
            WRITER,
            "POST",
            "/api/v1/leases/renew/",
            json!({"runner_id": "runner-abc123"}),
        )
        .await;
    assert_eq!(renewed["results"][0]["renewed"], true);
}

#[tokio::test]
async fn tokens_are_checked_in_batches() {
    let server = start().await;
    let lease = server.acquire("a", "1", "h").await;
    let token = lease["token"].as_u64().unwrap();
    let body = json!({"tokens": [
        {"kind": "a", "id": "1", "token": token}, {"kind": "a", "id": "1", "token": token - 1}, {"kind": "a", "id": "2", "token": 1}]});
    let (status, answer) = server
        .call(READER, "POST", "/api/v1/fences/check/", body)
        .await;
    assert_eq!(status, 200, "{answer}");
    let words: Vec<_> = answer["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["verdict"].as_str().unwrap())
        .collect();
    assert_eq!(words, ["current", "stale", "unknown"]);
    assert_eq!(answer["results"][1]["latest"], token);
}

#[tokio::test]
async fn holders_are_there_until_their_ttl_is_over() {
    let server = start().await;
    let path = "/api/v1/holders/node-1/";
    let here = json!({"incarnation": "i1", "ttl_seconds": 10, "labels": {"zone": "x"}});
    let (status, presence) = server.call(WRITER, "PUT", path, here.clone()).await;
    assert_eq!(status, 200, "{presence}");
    assert_eq!(presence["labels"]["zone"], "x");
    server.clock.advance(5_000);
    assert_eq!(server.call(WRITER, "PUT", path, here).await.0, 200);
    let (status, _) = server
        .call(WRITER, "PUT", path, json!({"incarnation": "i2"}))
        .await;
    assert_eq!(status, 409);
    server.clock.advance(9_000);
    let (_, list) = server
        .call(READER, "GET", "/api/v1/holders/", Value::Null)
        .await;
    assert_eq!(list["holders"][0]["name"], "node-1");
    let (status, left) = server.call(WRITER, "DELETE", path, Value::Null).await;
    assert_eq!(
        (status.as_u16(), &left["leases_released"]),
        (200, &json!(1))
    );
    assert_eq!(
        server.call(WRITER, "DELETE", path, Value::Null).await.0,
        404
    );
}

#[tokio::test]
async fn a_process_ends_its_own_presence_and_never_its_successor_s() {
    let server = start().await;
    let path = "/api/v1/holders/node-1/";
    let present = async |incarnation: &str| {
        let body = json!({"incarnation": incarnation, "ttl_seconds": 5});
        server.call(WRITER, "PUT", path, body).await.0
    };
    assert_eq!(present("first").await, 200);
    let body = json!({"kind": "job", "id": "x", "holder": "node-1", "incarnation": "first"});
    let (status, _) = server
        .call(WRITER, "POST", "/api/v1/leases/acquire/", body)
        .await;
    assert_eq!(status, 200);
    assert_eq!(present("second").await, 409, "another incarnation is there");
    // The first one hangs, its presence lapses, and a successor takes over.
    server.clock.advance(5_000);
    assert_eq!(present("second").await, 200);
    let leave = async |query: &str| {
        server
            .call(WRITER, "DELETE", &format!("{path}{query}"), Value::Null)
            .await
    };
    // It wakes up and leaves: that is no business of its successor.
    let (status, problem) = leave("?incarnation=first").await;
    assert_eq!(status, 404, "{problem}");
    let (_, list) = server
        .call(READER, "GET", "/api/v1/holders/", Value::Null)
        .await;
    assert_eq!(list["holders"][0]["incarnation"], "second", "{list}");
    let (status, _) = leave("?incarnation=").await;
    assert_eq!(status, 400, "an empty one is none");
    let (status, _) = leave("?incarnatoin=second").await;
    assert_eq!(status, 400, "a slip must not end somebody else");
    let (status, gone) = leave("?incarnation=second").await;
    assert_eq!(
        (status.as_u16(), &gone["leases_released"]),
        (200, &json!(1))
    );
    assert_eq!(leave("?incarnation=second").await.0, 404);
    // Without one, whoever is there leaves.
    assert_eq!(present("third").await, 200);
    assert_eq!(leave("").await.0, 200);
}

#[tokio::test]
async fn l21_the_history_is_held_against_its_seals() {
    let server = start().await;
    let path = "/api/v1/leases/history/verify";
    let lease = server.acquire("job", "sealed", "h").await;
    let id = lease["lease_id"].as_str().unwrap();
    let release = format!("/api/v1/leases/{id}/release/");
    server.call(WRITER, "DELETE", &release, Value::Null).await;
    for query in ["", "?key=job:sealed", "?after=1"] {
        let (status, reported) = server
            .call(READER, "GET", &format!("{path}{query}"), Value::Null)
            .await;
        assert_eq!(status, 200, "{reported}");
        assert_eq!(reported["sound"], true, "{reported}");
        assert_eq!(reported["faults"], json!([]));
        assert_eq!(reported["unsealed"], 0);
        assert_eq!(reported["head"]["revision"], reported["newest"]);
        assert_eq!(reported["head"]["digest"].as_str().unwrap().len(), 64);
    }
    for (token, query, expected) in [
        (READER, "?key=nonsense", 400),
        (READER, "?after=x", 400),
        (READER, "?what=1", 400),
        // The seals are over everybody's changes.
        (TENANT_A, "", 403),
        ("", "", 401),
    ] {
        let (status, problem) = server
            .call(token, "GET", &format!("{path}{query}"), Value::Null)
            .await;
        assert_eq!(status.as_u16(), expected, "{query}: {problem}");
    }
}
