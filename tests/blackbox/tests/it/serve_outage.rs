//! A server whose store goes away: it says so, stays alive, and comes back with its store.

use leasehold_testkit::{Child, Dir, Redis, port, wait};
use reqwest::Method;
use serde_json::{Value, json};

use crate::cli_support::{SOON, boot_ms, plain};

const TOKEN: &str = "the-token-of-this-test";

struct Case {
    redis: Redis,
    url: String,
    _server: Child,
    _dir: Dir,
}

impl Case {
    async fn start(limits: &str) -> Self {
        let redis = Redis::options().persistent().start().await;
        let dir = Dir::new("outage");
        let listen = format!("127.0.0.1:{}", port::free());
        let config = format!(
            "server:\n  listen: {listen}\n  store: '{}'\n  limits: {limits}\nlog: {{level: error}}\n",
            redis.url()
        );
        let config = dir.write("leasehold.yaml", &config).expect("written");
        let tokens = json!([{"token": TOKEN, "scopes": ["leases:write"]}]).to_string();
        let mut server = plain(&["serve", "--config"])
            .arg(config)
            .arg("--data-dir")
            .arg(dir.join("data"))
            .env("LEASEHOLD_TOKENS", tokens)
            .spawn();
        server.wait_for_line("listening on", SOON).await;
        Self {
            redis,
            url: format!("http://{listen}"),
            _server: server,
            _dir: dir,
        }
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
        let mut request = reqwest::Client::new()
            .request(method, format!("{}{path}", self.url))
            .timeout(SOON)
            .bearer_auth(TOKEN);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.expect("the server answers");
        let status = response.status().as_u16();
        if status >= 400 {
            let media = response.headers().get("content-type").cloned();
            assert_eq!(media.expect("said"), "application/problem+json");
        }
        let text = response.text().await.expect("a whole answer");
        (
            status,
            serde_json::from_str(&text).unwrap_or(Value::String(text)),
        )
    }

    async fn acquire(&self, id: &str) -> (u16, Value) {
        let body = json!({"kind": "job", "id": id, "holder": "h", "ttl_seconds": 60});
        self.call(Method::POST, "/api/v1/leases/acquire/", Some(body))
            .await
    }

    async fn until_back(&self) {
        wait::until(SOON, "the server is ready again", async || {
            self.call(Method::GET, "/readyz", None).await.0 == 200
        })
        .await;
    }
}

#[tokio::test]
async fn a_store_that_is_gone_is_503_and_the_server_lives_until_it_is_back() {
    let mut case = Case::start("{request_timeout: 2s}").await;
    let (status, lease) = case.acquire("before").await;
    assert_eq!(status, 200, "{lease}");
    case.redis.kill9();
    let (status, problem) = case.acquire("during").await;
    assert_eq!(status, 503, "{problem}");
    assert_eq!(problem["code"], "STORE_UNAVAILABLE", "{problem}");
    assert!(
        !problem.to_string().contains(&case.redis.port().to_string()),
        "not where it is: {problem}"
    );
    assert_eq!(case.call(Method::GET, "/healthz", None).await.0, 200);
    assert_eq!(case.call(Method::GET, "/readyz", None).await.0, 503);
    assert_eq!(case.call(Method::GET, "/metrics", None).await.0, 200);
    case.redis.restart().await;
    case.until_back().await;
    let renew = format!(
        "/api/v1/leases/{}/renew/",
        lease["lease_id"].as_str().expect("an id")
    );
    let (status, renewed) = case.call(Method::PUT, &renew, Some(json!({}))).await;
    assert_eq!(
        (status, &renewed["token"]),
        (200, &lease["token"]),
        "{renewed}"
    );
}

#[tokio::test]
async fn a_store_that_hangs_is_503_within_the_time_limit() {
    let case = Case::start("{request_timeout: 700ms}").await;
    assert_eq!(case.acquire("before").await.0, 200);
    case.redis.pause();
    let calls = [case.acquire("during"), case.acquire("during")];
    let began_ms = boot_ms();
    for (status, problem) in futures_util::future::join_all(calls).await {
        assert_eq!(status, 503, "{problem}");
        let code = problem["code"].as_str().expect("a code");
        assert!(
            ["REQUEST_TIMEOUT", "STORE_UNAVAILABLE"].contains(&code),
            "{problem}"
        );
    }
    let took_ms = boot_ms() - began_ms;
    assert!(took_ms < 8_000, "{took_ms} ms");
    assert_eq!(case.call(Method::GET, "/healthz", None).await.0, 200);
    case.redis.resume();
    case.until_back().await;
    assert_eq!(case.acquire("after").await.0, 200);
}
