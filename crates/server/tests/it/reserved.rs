//! Kinds that belong to the server's own agents, and callers that are more than one process.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use lease::{Acquire, Acquired, Holder, Lease, RESERVED_KINDS, Ttl};
use serde_json::{Value, json};

use crate::support::{self, ADMIN, TENANT_A, WRITER, start};

/// An agent's lease, as the server's own worker takes it.
async fn owned(server: &support::Running, key: &str) -> Lease {
    let holder = Holder::new("agent", "1").unwrap();
    let ttl = Ttl::from_millis(60_000).unwrap();
    let request = Acquire::one(key.parse().unwrap(), holder, ttl);
    match server.authority.acquire(request).await.unwrap() {
        Acquired::Granted { leases, .. } => leases.into_iter().next().unwrap(),
        Acquired::Refused(refusal) => panic!("{refusal:?}"),
    }
}

async fn reserved_kinds_belong_to_the_servers_own_agents() {
    let server = start().await;
    let holder = json!({"name": "thief", "incarnation": "1"});
    for kind in RESERVED_KINDS {
        let lease = owned(&server, &format!("{kind}:taken")).await;
        let free = format!("{kind}:free");
        for credential in [WRITER, TENANT_A] {
            let tries = [
                (
                    "POST",
                    "/api/v1/leases/acquire".to_owned(),
                    json!({"kind": kind, "id": "free", "holder": "thief"}),
                ),
                (
                    "POST",
                    "/api/v1/leases/acquire".to_owned(),
                    json!({"keys": [{"kind": "job", "id": "1"}, {"kind": kind, "id": "free"}], "holder": "thief"}),
                ),
                (
                    "POST",
                    "/api/v1/leases/acquire".to_owned(),
                    json!({"pool": {"kind": kind, "ids": ["free"]}, "holder": "thief"}),
                ),
                (
                    "POST",
                    "/api/v1/authority/acquire".to_owned(),
                    json!({"want": {"all": [free]}, "holder": holder, "ttl": 60_000}),
                ),
                (
                    "POST",
                    "/api/v1/authority/release".to_owned(),
                    json!({"key": lease.key, "token": lease.token, "holder": lease.holder}),
                ),
                (
                    "POST",
                    "/api/v1/authority/handoff".to_owned(),
                    json!({"step": "commit", "lease": {"key": lease.key, "token": lease.token, "holder": lease.holder}}),
                ),
            ];
            for (method, path, body) in tries {
                let (status, problem) = server.call(credential, method, &path, body.clone()).await;
                assert_eq!(status, 403, "{credential} {path} {body}: {problem}");
                assert_eq!(problem["code"], "AUTHORIZATION_FAILED");
            }
        }
        // By its id, and by departing in its holder's name.
        let path = format!("/api/v1/leases/{}/release", lease.id);
        let (status, problem) = server.call(WRITER, "DELETE", &path, Value::Null).await;
        assert_eq!(status, 403, "{problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            detail.contains("leases:admin") && detail.contains(kind),
            "{detail}"
        );
        let left = json!({"left": lease.holder});
        let (status, _) = server
            .call(WRITER, "POST", "/api/v1/authority/depart", left)
            .await;
        if kind != "node" {
            assert_eq!(status, 403, "{kind}");
            let live = server.authority.lease(lease.key.clone()).await.unwrap();
            assert_eq!(live.map(|live| live.id), Some(lease.id));
        }
        assert!(
            server
                .authority
                .lease(free.parse().unwrap())
                .await
                .unwrap()
                .is_none()
        );

        // Workers and pollers behind HTTP have an unbound leases:admin.
        let ask = json!({"want": {"all": [free]}, "holder": holder, "ttl": 60_000});
        let (status, granted) = server
            .call(ADMIN, "POST", "/api/v1/authority/acquire", ask)
            .await;
        assert_eq!(status, 200, "{granted}");
    }
    assert!(
        server
            .authority
            .lease("job:1".parse().unwrap())
            .await
            .unwrap()
            .is_none()
    );
}

async fn nobody_announces_itself_as_a_poller_without_the_right() {
    let server = start().await;
    let body = json!({"labels": {"weight": "9"}});
    let path = "/api/v1/holders/phantom/";
    assert_eq!(server.call(WRITER, "PUT", path, body.clone()).await.0, 403);
    assert_eq!(
        server.call(TENANT_A, "PUT", path, body.clone()).await.0,
        403
    );
    assert_eq!(server.call(WRITER, "PUT", path, json!({})).await.0, 200);
    assert_eq!(
        server
            .call(ADMIN, "PUT", "/api/v1/holders/poller/", body)
            .await
            .0,
        200
    );
}

async fn two_callers_with_one_name_are_two_holders() {
    let server = start().await;
    let body = json!({"kind": "job", "id": "x", "holder": "copy-paste", "ttl_seconds": 30});
    let path = "/api/v1/leases/acquire/";
    let (status, first) = server.call(WRITER, "POST", path, body.clone()).await;
    assert_eq!(status, 200, "{first}");
    let (status, problem) = server.call(WRITER, "POST", path, body.clone()).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (409, &json!("LEASE_ALREADY_HELD"))
    );
    // The incarnation that was made up is in the answer, and makes it the same holder again.
    let mut same = body;
    same["incarnation"] = first["incarnation"].clone();
    let (status, again) = server.call(WRITER, "POST", path, same).await;
    assert_eq!(status, 200, "{again}");
    assert_eq!(again["token"], first["token"]);
}

async fn a_runner_without_an_incarnation_is_known_by_its_address() {
    let server = start().await;
    let register = |host: &str, port: u16| {
        let body = json!({"runner_id": "r", "tenant_id": "t", "site_id": "s", "deployment_group": "g",
            "deployment_version": "1", "host": host, "port": port});
        server.call(ADMIN, "POST", "/api/v1/runners/register/", body)
    };
    server.camera("t", "s", "cam").await;
    assert!(register("one.example", 8080).await.0.is_success());
    assert!(
        register("one.example", 8080).await.0.is_success(),
        "it came back"
    );
    for (host, port) in [
        ("two.example", 8080),
        ("one.example", 8081),
        ("2001:db8::1", 8080),
    ] {
        let (status, problem) = register(host, port).await;
        assert_eq!(
            (status.as_u16(), &problem["code"]),
            (409, &json!("RUNNER_ALREADY_REGISTERED")),
            "{host}:{port}"
        );
    }
    let (status, lease) = server.lease_camera("cam", "r").await;
    assert_eq!(status, 200, "{lease}");
    // Neither does it need to know its incarnation to keep what it has.
    let all = json!({"runner_id": "r"});
    let (status, renewed) = server
        .call(ADMIN, "POST", "/api/v1/leases/renew/", all)
        .await;
    assert_eq!(status, 200, "{renewed}");
    let kept = renewed["results"].as_array().unwrap();
    assert!(
        kept.iter()
            .any(|it| it["id"] == "cam" && it["renewed"] == true),
        "{renewed}"
    );
}

on_every_backend!(
    reserved_kinds_belong_to_the_servers_own_agents,
    nobody_announces_itself_as_a_poller_without_the_right,
    two_callers_with_one_name_are_two_holders,
    a_runner_without_an_incarnation_is_known_by_its_address,
);
