//! A worker with folders of its own, as on another machine.

use leasehold_testkit::{Child, Dir, Issuer, port, wait};
use nix::sys::signal::Signal;

use super::api::Api;
use crate::cli_support::SOON;

const SECRET: &str = "a-secret-of-server-and-worker";

/// A server, and a worker with its own folders.
struct Pair {
    api: Api,
    worker: Child,
    url: String,
    _elsewhere: Dir,
}

impl Pair {
    /// Starts both, each with settings of its own. `scheme` is how the worker serves.
    async fn start(scheme: &str, server: &[(&str, &str)], worker: &[(&str, &str)]) -> Self {
        let shared = [
            ("LEASEHOLD_SESSIONS_WORKER", "false"),
            ("LEASEHOLD_SESSIONS_WORKER_SECRET", SECRET),
        ];
        let api = Api::start(None, &[&shared[..], server].concat()).await;
        let elsewhere = Dir::new("elsewhere");
        let port = port::free();
        let url = format!("{scheme}://localhost:{port}");
        let mut program = api
            .worker_program(Some("tuner-1"))
            .env("LEASEHOLD_DATA_DIR", elsewhere.join("data"))
            .env("LEASEHOLD_SESSIONS_OUTPUT_DIR", elsewhere.join("streams"))
            .env(
                "LEASEHOLD_SESSIONS_WORKER_LISTEN",
                format!("127.0.0.1:{port}"),
            )
            .env("LEASEHOLD_SESSIONS_WORKER_URL", &url)
            .env("LEASEHOLD_SESSIONS_WORKER_SECRET", SECRET);
        for (name, value) in worker {
            program = program.env(name, value);
        }
        let mut worker = program.spawn();
        worker.wait_for_line("takes sessions", SOON).await;
        Self {
            api,
            worker,
            url,
            _elsewhere: elsewhere,
        }
    }

    /// A session that runs.
    async fn session(&self) -> String {
        let id = self
            .api
            .start_session("1:0:1:445D:453:1:C00000:0:0:0:", "low")
            .await;
        wait::until(3 * SOON, "the session runs", async || {
            self.api.session(&id).await["state"] == "running"
        })
        .await;
        id
    }

    /// A file of a session, asked for at the server.
    async fn get(&self, id: &str, file: &str, token: Option<&str>) -> (u16, Vec<u8>) {
        let url = format!("{}/api/v3/sessions/{id}/hls/{file}", self.api.url);
        let mut request = self.api.http.get(url);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.bytes().await.unwrap().to_vec())
    }
}

#[tokio::test]
async fn streams_of_a_worker_elsewhere_are_played_through_the_server() {
    let mut pair = Pair::start("http", &[], &[]).await;
    let id = pair.session().await;
    let token = pair.api.token.clone();
    let (status, playlist) = pair.get(&id, "index.m3u8", Some(&token)).await;
    let playlist = String::from_utf8_lossy(&playlist).into_owned();
    assert_eq!(status, 200, "{playlist}");
    assert!(playlist.starts_with("#EXTM3U"), "{playlist}");
    let segment = playlist
        .lines()
        .find(|line| line.rsplit_once('.').is_some_and(|(_, end)| end == "m4s"))
        .unwrap();
    let (status, video) = pair.get(&id, segment, Some(&token)).await;
    assert_eq!(status, 200);
    // What ffmpeg wrote there: fragments of an MP4.
    assert!(
        video.windows(4).any(|it| it == b"moof"),
        "{} bytes",
        video.len()
    );
    assert!(
        !pair.api.dir.join("data/sessions").join(&id).exists(),
        "it was not written here"
    );

    // Rights are checked at the server, names of files everywhere, and the worker wants its secret.
    assert_eq!(pair.get(&id, segment, None).await.0, 401);
    let (status, _) = pair.get(&id, "nothing.m4s", Some(&token)).await;
    assert_eq!(status, 404);
    let at_worker = async |path: String, token: &str| {
        let url = format!("{}{path}", pair.url);
        let request = pair.api.http.get(url).bearer_auth(token);
        let answer = request.send().await.unwrap();
        (
            answer.status().as_u16(),
            answer.text().await.unwrap_or_default(),
        )
    };
    assert_eq!(
        at_worker(format!("/streams/{id}/{segment}"), "wrong")
            .await
            .0,
        401
    );
    for wrong in ["..%2Fdata%2Fx.ts", ".owner", "../../data/x.ts"] {
        let (status, _) = at_worker(format!("/streams/{id}/{wrong}"), SECRET).await;
        assert_eq!(status, 404, "{wrong}");
    }
    let (status, figures) = at_worker("/metrics".to_owned(), "").await;
    assert_eq!(status, 200);
    assert!(figures.contains("v3_worker_start_total"), "{figures}");

    // Without its worker, the server says so and goes on.
    pair.worker.kill9();
    let (status, _) = pair.get(&id, segment, Some(&token)).await;
    assert!(matches!(status, 404 | 410 | 503), "{status}");
    assert_eq!(pair.api.call("GET", "/api/v3/sessions", None).await.0, 200);
}

/// A certificate for `localhost`, in a folder, and the authority that issued it.
fn issue(name: &str) -> (Dir, [String; 3]) {
    let dir = Dir::new(name);
    let issuer = Issuer::new();
    let (certificate, key) = issuer.issue(&["localhost"]).write(dir.path()).unwrap();
    let ca = dir.write("ca.pem", issuer.pem()).unwrap();
    let files = [certificate, key, ca].map(|file| file.display().to_string());
    (dir, files)
}

#[tokio::test]
async fn streams_of_a_worker_elsewhere_are_fetched_over_https() {
    let (_dir, [certificate, key, ca]) = issue("tls");
    let trusts = [("LEASEHOLD_SESSIONS_WORKER_CA_FILE", ca.as_str())];
    let serves = [
        ("LEASEHOLD_TLS_CERTIFICATE", certificate.as_str()),
        ("LEASEHOLD_TLS_KEY", key.as_str()),
    ];
    let pair = Pair::start("https", &trusts, &serves).await;
    let id = pair.session().await;
    let (status, playlist) = pair.get(&id, "index.m3u8", Some(&pair.api.token)).await;
    let playlist = String::from_utf8_lossy(&playlist).into_owned();
    assert_eq!(status, 200, "{playlist}");
    assert!(playlist.starts_with("#EXTM3U"), "{playlist}");

    // Everything there is encrypted, also for callers that would rather speak HTTP/2.
    let authority = std::fs::read(&ca).unwrap();
    let authority = reqwest::Certificate::from_pem(&authority).unwrap();
    let client = reqwest::Client::builder().tls_certs_only([authority]);
    let metrics = client.build().unwrap().get(format!("{}/metrics", pair.url));
    let answer = metrics.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(
        answer
            .text()
            .await
            .unwrap()
            .contains("v3_worker_start_total")
    );
    let unencrypted = pair.url.replace("https://", "http://");
    let answer = pair.api.http.get(format!("{unencrypted}/metrics")).send();
    assert!(answer.await.is_err());
}

#[tokio::test]
async fn a_workers_renewed_certificate_is_served_after_sighup_and_a_wrong_one_is_not() {
    let (_dir, [certificate, key, ca]) = issue("tls");
    let serves = [
        ("LEASEHOLD_TLS_CERTIFICATE", certificate.as_str()),
        ("LEASEHOLD_TLS_KEY", key.as_str()),
    ];
    let mut pair = Pair::start("https", &[], &serves).await;
    // A client of its own each time: a connection keeps the certificate that it began with.
    let url = format!("{}/healthz", pair.url);
    let trusts = async |ca: &str| {
        let authority = reqwest::Certificate::from_pem(&std::fs::read(ca).unwrap()).unwrap();
        let client = reqwest::Client::builder().tls_certs_only([authority]);
        client.build().unwrap().get(&url).send().await.is_ok()
    };
    assert!(trusts(&ca).await);
    let (_renewed, [new_certificate, new_key, new_ca]) = issue("renewed");
    // A key that does not belong to the certificate changes nothing.
    std::fs::copy(&new_key, &key).unwrap();
    pair.worker.signal(Signal::SIGHUP);
    pair.worker
        .wait_for_line("certificate not reloaded", SOON)
        .await;
    assert!(trusts(&ca).await);
    std::fs::copy(&new_certificate, &certificate).unwrap();
    pair.worker.signal(Signal::SIGHUP);
    pair.worker
        .wait_for_line("certificate reloaded", SOON)
        .await;
    assert!(trusts(&new_ca).await);
    assert!(!trusts(&ca).await);
}

#[tokio::test]
async fn a_worker_with_a_foreign_certificate_gets_no_secret_and_plays_nothing() {
    let (_dir, [certificate, key, _]) = issue("tls");
    let (_other, [_, _, ca]) = issue("other");
    let trusts = [("LEASEHOLD_SESSIONS_WORKER_CA_FILE", ca.as_str())];
    let serves = [
        ("LEASEHOLD_TLS_CERTIFICATE", certificate.as_str()),
        ("LEASEHOLD_TLS_KEY", key.as_str()),
    ];
    let pair = Pair::start("https", &trusts, &serves).await;
    let id = pair.session().await;
    let (status, answer) = pair.get(&id, "index.m3u8", Some(&pair.api.token)).await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert_eq!(status, 503, "{answer}");
}
