//! The kernel's own interface over HTTP: every method, in the kernel's own values.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use lease::{
    Acquire, Acquired, Capabilities, Command, Committed, Departure, EventPage, EventQuery,
    HandoffState, HandoffStep, Holder, Key, Lease, LeaseQuery, LeaseRef, Page, Query, Record,
    RecordQuery, Renew, Renewals, Renewed, Revision, Revoke, Ttl, UnixMillis, Verdict, Write,
};
use leasehold_api::authority::{CAPABILITIES, Frame, WATCH};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::support::{self, ADMIN, READER, Running, start};

async fn call<T: DeserializeOwned>(server: &Running, method: &str, body: &impl Serialize) -> T {
    let body = serde_json::to_value(body).unwrap();
    let response = server
        .http
        .post(format!("{}/api/v1/authority/{method}", server.url))
        .bearer_auth(ADMIN)
        .json(&body)
        .send()
        .await
        .unwrap();
    let status = response.status();
    let text = response.text().await.unwrap();
    assert_eq!(status, 200, "{method}: {text}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{method}: {error} in {text}"))
}

fn holder(name: &str) -> Holder {
    Holder::new(name, "i1").unwrap()
}

#[tokio::test]
async fn every_method_of_the_authority_answers_in_the_kernel_s_values() {
    let server = start().await;
    let key: Key = "job:x".parse().unwrap();
    let ttl = Ttl::from_millis(1500).unwrap();
    let stores: Capabilities = call(&server, "capabilities", &()).await;
    assert_eq!(stores, server.authority.capabilities());
    let now: UnixMillis = call(&server, "now", &()).await;
    assert_eq!(now, server.authority.now().await.unwrap());

    let acquired: Acquired = call(
        &server,
        "acquire",
        &Acquire::one(key.clone(), holder("a"), ttl),
    )
    .await;
    let Acquired::Granted {
        leases,
        fresh: true,
    } = acquired
    else {
        panic!("{acquired:?}")
    };
    let lease = leases[0].clone();
    assert_eq!(lease.ttl, ttl);
    let refused: Acquired = call(
        &server,
        "acquire",
        &Acquire::one(key.clone(), holder("b"), ttl),
    )
    .await;
    assert!(matches!(refused, Acquired::Refused(_)));
    let renewed: Vec<Renewed> = call(
        &server,
        "renew",
        &Renew {
            holder: holder("a"),
            leases: Renewals::All,
        },
    )
    .await;
    assert_eq!(renewed[0].outcome.as_ref().unwrap().token, lease.token);
    let found: Option<Lease> = call(&server, "lease", &key).await;
    assert_eq!(found.unwrap().id, lease.id);
    let found: Option<Lease> = call(&server, "lease_by_id", &lease.id).await;
    assert_eq!(found.unwrap().key, key);
    let page: Page<Lease> = call(
        &server,
        "leases",
        &LeaseQuery {
            limit: 10,
            ..LeaseQuery::default()
        },
    )
    .await;
    assert_eq!((page.items.len(), page.more), (1, false));
    let verdicts: Vec<Verdict> = call(&server, "check", &vec![(key.clone(), lease.token)]).await;
    assert_eq!(verdicts, [Verdict::Current]);

    let offer = HandoffStep::Offer {
        lease: LeaseRef::from(&lease),
        successor: holder("b"),
        prepare_ms: 1000,
        drain_ms: 1000,
        confirm_ms: 1000,
    };
    let state: HandoffState = call(&server, "handoff", &offer).await;
    assert!(matches!(state, HandoffState::Open(_)));

    let record: Key = "doc:1".parse().unwrap();
    let transaction = lease::Transaction {
        writes: vec![Write {
            key: record.clone(),
            value: Some("{}".into()),
            note: None,
        }],
        ..lease::Transaction::default()
    };
    let committed: Committed = call(&server, "commit", &transaction).await;
    assert!(matches!(committed, Committed::Done { .. }));
    let read: Option<Record> = call(&server, "record", &record).await;
    assert_eq!(&*read.unwrap().value, "{}");
    let query = RecordQuery {
        kind: "doc".into(),
        prefix: String::new(),
        after: None,
        limit: 10,
    };
    let records: Page<Record> = call(&server, "records", &query).await;
    assert_eq!(records.items.len(), 1);

    let released: bool = call(&server, "release", &LeaseRef::from(&lease)).await;
    assert!(released);
    let revoked: Option<Lease> = call(
        &server,
        "revoke",
        &Revoke {
            id: lease.id,
            reason: "late".into(),
        },
    )
    .await;
    assert_eq!(revoked, None);
    let departed: Vec<Lease> = call(&server, "depart", &Departure::Left(holder("a"))).await;
    assert_eq!(departed, []);
    let events: EventPage = call(
        &server,
        "events",
        &EventQuery {
            limit: 100,
            ..EventQuery::default()
        },
    )
    .await;
    let direct = server
        .authority
        .events(EventQuery {
            limit: 100,
            ..EventQuery::default()
        })
        .await
        .unwrap();
    assert_eq!(events, direct);
}

#[tokio::test]
async fn a_watch_over_http_tells_what_the_authority_s_own_watch_tells() {
    let server = start().await;
    server.acquire("a", "1", "h").await;
    let mut response = server
        .http
        .post(format!("{}/api/v1/authority/watch", server.url))
        .bearer_auth(ADMIN)
        .json(&json!({"from": Revision::ZERO, "kinds": ["a"]}))
        .send()
        .await
        .unwrap();
    let mut text = String::new();
    let mut frames = Vec::new();
    while frames.len() < 2 {
        let chunk = tokio::time::timeout(support::LONG, response.chunk())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        text.push_str(std::str::from_utf8(&chunk).unwrap());
        frames = text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(|data| serde_json::from_str::<Frame>(data).unwrap())
            .collect();
    }
    assert_eq!(frames[0], Frame::Open);
    assert!(
        matches!(&frames[1], Frame::Event(event) if event.key.as_str() == "a:1"),
        "{frames:?}"
    );
}

#[tokio::test]
async fn failures_of_the_kernel_keep_their_meaning() {
    let server = start().await;
    let body =
        json!({"want": {"all": []}, "holder": {"name": "h", "incarnation": "i"}, "ttl": 1000});
    let (status, problem) = server
        .call(ADMIN, "POST", "/api/v1/authority/acquire", body)
        .await;
    assert_eq!(
        (status.as_u16(), &problem["errors"][0]["field"]),
        (400, &json!("keys"))
    );
    let (status, problem) = server
        .call(
            ADMIN,
            "POST",
            "/api/v1/authority/acquire",
            json!({"want": 1}),
        )
        .await;
    assert_eq!(
        (status.as_u16(), &problem["errors"][0]["field"]),
        (400, &json!("want"))
    );
    // Taking by force is an administrator's right.
    let force = json!({"want": {"all": ["a:1"]}, "holder": {"name": "h", "incarnation": "i"}, "ttl": 1000, "force": "now"});
    assert_eq!(
        server
            .call(
                support::WRITER,
                "POST",
                "/api/v1/authority/acquire",
                force.clone()
            )
            .await
            .0,
        403
    );
    assert_eq!(
        server
            .call(ADMIN, "POST", "/api/v1/authority/acquire", force)
            .await
            .0,
        200
    );
    let verbs = Command::NAMES.iter().chain(Query::NAMES);
    let (_, spec) = server
        .call(READER, "GET", "/api/openapi.json", Value::Null)
        .await;
    let documented = spec["paths"]["/api/v1/authority/{method}"].to_string();
    for method in verbs.chain(&[CAPABILITIES, WATCH]) {
        assert!(documented.contains(method), "{method} is not documented");
        let (status, _) = server
            .call(
                READER,
                "POST",
                &format!("/api/v1/authority/{method}"),
                Value::Null,
            )
            .await;
        assert_ne!(status, 404, "{method}");
    }
}
