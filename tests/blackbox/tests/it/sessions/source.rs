//! Streams from a configured source: what a caller names fills its place in the URL and nothing else,
//! and real ffmpeg plays a real stream.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold_testkit::{Dir, Program};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::cli_support::{SOON, run};
use crate::sessions::api::Api;

/// How long the clip is, and how much of it is sent at once.
const CLIP_SECONDS: usize = 40;
const AHEAD_SECONDS: usize = 6;

/// Serves the files of a folder as a receiver does: a stream comes in real time.
struct Receiver {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    /// What the requests said about who asks.
    logins: Arc<Mutex<Vec<String>>>,
}

impl Receiver {
    async fn start(folder: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let logins = Arc::new(Mutex::new(Vec::new()));
        let (folder, heard, noted) = (folder.to_owned(), asked.clone(), logins.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = answer(stream, folder.clone(), heard.clone(), noted.clone());
                tokio::spawn(answer);
            }
        });
        Self {
            address,
            asked,
            logins,
        }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn answer(
    mut stream: TcpStream,
    folder: std::path::PathBuf,
    asked: Arc<Mutex<Vec<String>>>,
    logins: Arc<Mutex<Vec<String>>>,
) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") && request.len() < 8192 {
        request.push(stream.read_u8().await?);
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    asked.lock().unwrap().push(path.clone());
    let login = request
        .lines()
        .find_map(|line| line.strip_prefix("Authorization: "));
    logins.lock().unwrap().extend(login.map(str::to_owned));
    if login.is_none() && path.starts_with("/guarded") {
        let ask = b"HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Basic realm=\"x\"\r\n\
            content-length: 0\r\nconnection: close\r\n\r\n";
        return stream.write_all(ask).await;
    }
    let Ok(bytes) = tokio::fs::read(folder.join(path.trim_start_matches('/'))).await else {
        let none = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        return stream.write_all(none).await;
    };
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        .await?;
    let per_second = if path.starts_with("/list") {
        bytes.len()
    } else {
        bytes.len() / CLIP_SECONDS
    };
    let (first, rest) = bytes.split_at(bytes.len().min(per_second * AHEAD_SECONDS));
    stream.write_all(first).await?;
    for part in rest.chunks(per_second.max(1)) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stream.write_all(part).await?;
    }
    Ok(())
}

async fn ffmpeg(folder: &Dir, arguments: &[&str]) {
    let quiet = ["-nostdin", "-hide_banner", "-loglevel", "error", "-y"];
    Program::new("ffmpeg")
        .args(quiet)
        .args(arguments.iter().copied())
        .current_dir(folder.path())
        .run()
        .await
        .unwrap();
}

const PICTURE: [&str; 5] = ["-f", "lavfi", "-i", "testsrc=size=128x72:rate=10", "-t"];
const CODEC: [&str; 4] = ["-c:v", "mpeg2video", "-g", "10"];

/// A clip under the name of a service.
async fn clip(folder: &Dir, service: &str) {
    let length = CLIP_SECONDS.to_string();
    let file = format!("file:{service}");
    let clip = [&PICTURE[..], &[&length], &CODEC, &["-f", "mpegts", &file]].concat();
    ffmpeg(folder, &clip).await;
}

#[tokio::test]
async fn heavy_the_login_of_a_source_is_in_no_argument() {
    const SECRET: &str = "s3ss10n-w0rd";
    let folder = Dir::new("receiver");
    clip(&folder, "guarded").await;
    let receiver = Receiver::start(folder.path()).await;
    let template = format!("http://ann:{SECRET}@{}/{{service_ref}}", receiver.address);
    let file = format!("sessions: {{source_template: '{template}'}}\n");
    let api = Api::start_with(None, &[], Some(&file)).await;

    let id = api.start_session("guarded", "low").await;
    api.reaches(&id, "running", SOON).await;
    assert!(!receiver.logins.lock().unwrap().is_empty(), "it logged in");
    // While it runs: nothing that other users can see has it.
    let mut programs = 0;
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let bytes = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains(SECRET), "{entry:?}: {text}");
        programs += usize::from(text.contains(&id));
    }
    assert!(
        programs >= 2,
        "guardian and ffmpeg were looked at: {programs}"
    );
    api.stop(&id).await;
    api.reaches(&id, "stopped", SOON).await;

    let id = api.start_session("none", "low").await;
    let failed = api.reaches(&id, "failed", SOON).await;
    assert!(!failed.to_string().contains(SECRET), "{failed}");
    assert!(!api.child.lines().join("\n").contains(SECRET));
}

#[tokio::test]
async fn heavy_ffmpeg_plays_a_configured_source() {
    let folder = Dir::new("receiver");
    clip(&folder, "live:1:0").await;
    // Without its end, a playlist is a live one: players wait for more.
    let hls = [
        "-hls_time",
        "2",
        "-hls_flags",
        "omit_endlist",
        "-hls_list_size",
        "0",
        "-f",
        "hls",
    ];
    let list = [&PICTURE[..], &["12"], &CODEC, &hls, &["list.m3u8"]].concat();
    ffmpeg(&folder, &list).await;
    let receiver = Receiver::start(folder.path()).await;
    let template = format!("http://{}/{{service_ref}}", receiver.address);
    let settings = [("LEASEHOLD_SESSIONS_SOURCE_TEMPLATE", template.as_str())];
    let api = Api::start(None, &settings).await;

    for service in ["live:1:0", "list.m3u8"] {
        let id = api.start_session(service, "low").await;
        let running = api.reaches(&id, "running", SOON).await;
        assert!(
            receiver.asked().contains(&format!("/{service}")),
            "{:?}",
            receiver.asked()
        );
        // What comes out is a stream again.
        let playlist = running["playback_url"].as_str().unwrap();
        let (status, text) = api.call("GET", playlist, None).await;
        assert_eq!(status, 200);
        let segment = text
            .as_str()
            .unwrap()
            .lines()
            .find(|line| line.starts_with("seg"));
        let segment = api.output().join(&id).join(segment.unwrap());
        let bytes = std::fs::read(segment).unwrap();
        assert!(bytes.windows(4).any(|four| four == b"moof"), "not a stream");
        api.stop(&id).await;
        api.reaches(&id, "stopped", SOON).await;
    }

    // Nothing of this is a command, an option or another place.
    let mark = folder.join("injected");
    let shell = format!("$(touch${{IFS}}{0});`touch${{IFS}}{0}`|x&", mark.display());
    for service in [
        shell.as_str(),
        "-f",
        "../../etc/passwd",
        "x?y=1#z",
        "file:///etc/passwd",
    ] {
        let before = receiver.asked().len();
        let id = api.start_session(service, "low").await;
        let failed = api.reaches(&id, "failed", SOON).await;
        assert_eq!(failed["reason"], "R_PIPELINE_FAILED", "{failed}");
        let asked = receiver.asked()[before..].to_vec();
        assert!(!asked.is_empty(), "{service} never reached the receiver");
        for path in asked {
            let rest = path.strip_prefix('/').unwrap();
            assert!(
                !rest.contains(['/', '?', '#']),
                "{service} left its place: {path}"
            );
        }
    }
    assert!(!mark.exists(), "a shell ran");
    api.is_clean(SOON).await;
}

#[tokio::test]
async fn a_source_that_no_stream_may_come_from_is_refused_at_the_start() {
    for template in [
        "file:///etc/{service_ref}",
        "/etc/{service_ref}",
        "{service_ref}",
        "concat:{service_ref}",
        "pipe:0",
        "-i",
        "http://receiver/a b",
        "http:///{service_ref}",
        "gopher://receiver/{service_ref}",
    ] {
        let dir = Dir::new("refused");
        let settings = [
            ("LEASEHOLD_SESSIONS_SOURCE_TEMPLATE", template.to_owned()),
            ("LEASEHOLD_DATA_DIR", dir.join("data").display().to_string()),
        ];
        let ran = run(&["serve", "--listen", "127.0.0.1:0"], &settings).await;
        assert_ne!(ran.code, 0, "{template}");
        assert!(ran.stderr.contains("source"), "{template}: {}", ran.stderr);
    }
}
