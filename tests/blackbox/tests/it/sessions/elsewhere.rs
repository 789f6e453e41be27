//! A worker with folders of its own, as on another machine.

use leasehold_testkit::{Dir, port, wait};

use super::api::Api;
use crate::cli_support::SOON;

const SECRET: &str = "a-secret-of-server-and-worker";

#[tokio::test]
async fn streams_of_a_worker_elsewhere_are_played_through_the_server() {
    let settings = [
        ("LEASEHOLD_SESSIONS_WORKER", "false"),
        ("LEASEHOLD_SESSIONS_WORKER_SECRET", SECRET),
    ];
    let api = Api::start(None, &settings).await;
    let elsewhere = Dir::new("elsewhere");
    let listen = format!("127.0.0.1:{}", port::free());
    let url = format!("http://{listen}");
    let program = api.worker_program(Some("tuner-1"));
    let mut worker = program
        .env("LEASEHOLD_DATA_DIR", elsewhere.join("data"))
        .env("LEASEHOLD_SESSIONS_OUTPUT_DIR", elsewhere.join("streams"))
        .env("LEASEHOLD_SESSIONS_WORKER_LISTEN", &listen)
        .env("LEASEHOLD_SESSIONS_WORKER_URL", &url)
        .env("LEASEHOLD_SESSIONS_WORKER_SECRET", SECRET)
        .spawn();
    worker.wait_for_line("takes sessions", SOON).await;

    let id = api
        .start_session("1:0:1:445D:453:1:C00000:0:0:0:", "low")
        .await;
    wait::until(3 * SOON, "the session runs", async || {
        api.session(&id).await["state"] == "running"
    })
    .await;
    let path = |file: &str| format!("/api/v3/sessions/{id}/hls/{file}");
    let get = async |file: &str, token: Option<&str>| {
        let mut request = api.http.get(format!("{}{}", api.url, path(file)));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.bytes().await.unwrap())
    };
    let (status, playlist) = get("index.m3u8", Some(&api.token)).await;
    let playlist = String::from_utf8_lossy(&playlist).into_owned();
    assert_eq!(status, 200, "{playlist}");
    assert!(playlist.starts_with("#EXTM3U"), "{playlist}");
    let segment = playlist
        .lines()
        .find(|line| line.rsplit_once('.').is_some_and(|(_, end)| end == "m4s"))
        .unwrap();
    let (status, video) = get(segment, Some(&api.token)).await;
    assert_eq!(status, 200);
    // What ffmpeg wrote there: fragments of an MP4.
    assert!(
        video.windows(4).any(|it| it == b"moof"),
        "{} bytes",
        video.len()
    );
    assert!(
        !api.dir.join("data/sessions").join(&id).exists(),
        "it was not written here"
    );

    // Rights are checked at the server, names of files everywhere, and the worker wants its secret.
    assert_eq!(get(segment, None).await.0, 401);
    assert_eq!(get("nothing.m4s", Some(&api.token)).await.0, 404);
    let at_worker = async |path: String, token: &str| {
        let request = api.http.get(format!("{url}{path}")).bearer_auth(token);
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
    worker.kill9();
    let (status, _) = get(segment, Some(&api.token)).await;
    assert!(matches!(status, 404 | 410 | 503), "{status}");
    assert_eq!(api.call("GET", "/api/v3/sessions", None).await.0, 200);
}
