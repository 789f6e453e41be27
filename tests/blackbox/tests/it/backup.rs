//! `leasehold backup` beside a server under load, and `leasehold restore`.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use serde_json::Value;

use crate::cli_support::{SOON, Server};

/// Takes and releases for as long as it is let; answers how often, and the largest token.
async fn load(
    url: String,
    key: String,
    worker: usize,
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
) -> u64 {
    let http = reqwest::Client::new();
    let mut largest = 0;
    while !stop.load(Ordering::Acquire) {
        let body = serde_json::json!({"kind": "job", "id": format!("k{worker}"), "holder": format!("w{worker}"), "ttl_seconds": 30});
        let answer = http
            .post(format!("{url}/api/v1/leases/acquire"))
            .bearer_auth(&key)
            .json(&body)
            .send()
            .await
            .expect("an answer");
        let lease: Value = answer.json().await.expect("JSON");
        largest = largest.max(lease["token"].as_u64().unwrap_or_default());
        let id = lease["lease_id"].as_str().expect("a lease").to_owned();
        let path = format!("{url}/api/v1/leases/{id}/release");
        let released = http.delete(path).bearer_auth(&key).send().await;
        assert!(released.expect("an answer").status().is_success());
        rounds.fetch_add(1, Ordering::AcqRel);
    }
    largest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_made_under_load_is_restored_and_no_token_goes_back() {
    let mut server = Server::start().await;
    let kept = server
        .json(&["lease", "acquire", "job:kept", "--ttl", "10m", "--json"])
        .await;
    let key = std::fs::read_to_string(server.data().join("admin.token")).expect("a credential");
    let url = format!("http://{}", server.address);
    let (stop, rounds) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let (url, key) = (url.clone(), key.trim().to_owned());
            tokio::spawn(load(url, key, worker, stop.clone(), rounds.clone()))
        })
        .collect();
    let more = async |by: u64| {
        let until = rounds.load(Ordering::Acquire) + by;
        leasehold_testkit::wait::until(SOON, "leases are taken", async || {
            rounds.load(Ordering::Acquire) >= until
        })
        .await;
    };
    more(20).await;
    let copy = server.dir.join("copy");
    let path = copy.display().to_string();
    let copied = server.json(&["backup", &path, "--json"]).await;
    assert!(copied["leases"].as_u64() >= Some(1), "{copied}");
    more(20).await;
    stop.store(true, Ordering::Release);
    let mut largest = 0;
    for worker in workers {
        largest = largest.max(worker.await.expect("it ends"));
    }
    let verified = server.run(&["lease", "verify"]).await;
    assert_eq!(verified.code, 0, "{}", verified.stderr);

    let running = server.run(&["restore", &path, "--replace"]).await;
    assert_ne!(running.code, 0, "a server is at work: {}", running.stdout);
    assert!(running.stderr.contains("in use"), "{}", running.stderr);
    server.child.sigterm();
    server.child.wait(SOON).await;
    let there = server.run(&["restore", &path]).await;
    assert_ne!(there.code, 0, "there is a store: {}", there.stdout);
    let restored = server
        .json(&["restore", &path, "--replace", "--json"])
        .await;
    assert!(
        restored["token_floor"].as_u64() > Some(largest),
        "{restored}"
    );
    assert!(restored["revision"].as_u64() > copied["revision"].as_u64());

    server.restart().await;
    let verified = server.run(&["lease", "verify"]).await;
    assert_eq!(verified.code, 0, "{}", verified.stderr);
    let found = server.json(&["lease", "get", "job:kept", "--json"]).await;
    assert_eq!(found["token"], kept["token"]);
    let lease = server
        .json(&["lease", "acquire", "job:after", "--ttl", "10s", "--json"])
        .await;
    assert!(lease["token"].as_u64() > Some(largest), "{lease}");
}

#[tokio::test]
async fn other_stores_say_what_to_use() {
    let server = Server::start().await;
    for (store, hint) in [
        ("postgres://u@h/d", "pg_dump"),
        ("redis://h", "BGSAVE"),
        ("memory:", "gone"),
    ] {
        let ran = server.run(&["backup", "/nowhere", "--store", store]).await;
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains(hint), "{}", ran.stderr);
    }
}
