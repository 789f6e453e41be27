//! A camera's login reaches the camera and nothing else.

use std::fs;

use leasehold_testkit::{Dir, Program};

use crate::{
    camera::world::{Entry, Shard, Start, camera, moving},
    cli_support::SOON,
};

const SECRET: &str = "s3cr3t-w0rd";

#[tokio::test]
async fn a_login_is_in_no_argument_no_environment_and_no_log() {
    let dir = Dir::new("video");
    let url = moving(&dir).await;
    let path = url.strip_prefix("file://").unwrap().to_owned();
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/it/camera/rtsp_server.py"
    );
    let mut server = Program::new("python3")
        .args([script, &path, "ann", SECRET])
        .spawn();
    let port = server.wait_for_line("", SOON).await;
    let address = format!("127.0.0.1:{}/stream", port.trim());
    let entries = [
        Entry::new(
            camera("right", &format!("rtsp://ann:{SECRET}@{address}")),
            91,
        ),
        Entry::new(
            camera("wrong", &format!("rtsp://ann:{SECRET}x@{address}")),
            92,
        ),
    ];
    let shard = Shard::start(Start::reference(), &entries).await;
    shard.event("right", "online").await;
    let offline = shard.event("wrong", "offline").await;
    assert!(
        offline["error"].as_str().unwrap().contains("401"),
        "{offline}"
    );
    shard.event("right", "motion_started").await;

    // While both are read: nothing that other users can see has it. The camera itself is ours.
    let mut looked = 0;
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let own = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let pid: Option<u32> = entry.file_name().to_str().and_then(|it| it.parse().ok());
        if pid.is_none() || pid == Some(server.pid()) {
            continue;
        }
        for bytes in [own("cmdline"), own("environ")] {
            let text = String::from_utf8_lossy(&bytes);
            assert!(!text.contains(SECRET), "{entry:?}: {text}");
        }
        looked += 1;
    }
    assert!(looked > 3, "{looked}");
    let said = shard.child.lines().join("\n");
    assert!(said.contains("ffmpeg: "), "it logs what ffmpeg says");
    assert!(!said.contains(SECRET), "{said}");
    let (_, figures) = shard.get("/metrics").await;
    assert!(!figures.contains(SECRET));
}
