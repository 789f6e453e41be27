//! `make demo`: something is killed, ownership moves, and Ctrl-C leaves nothing behind.

use std::{fs, time::Duration};

use leasehold_testkit::{Binary, Dir, Program};
use nix::sys::signal::Signal;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/demo");
const PATIENCE: Duration = Duration::from_secs(60);

/// Processes that have this text among their arguments.
fn mentioning(text: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").expect("Linux has /proc").flatten();
    entries
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "))
        .filter(|words| words.contains(text))
        .collect()
}

#[tokio::test]
async fn ownership_moves_and_ctrl_c_leaves_nothing_behind() {
    let dir = Dir::new("demo");
    let mut demo = Program::new("python3")
        .arg(SCRIPT)
        .arg("--binary")
        .arg(Binary::leasehold_path())
        .args(["--every", "1", "--no-cameras"])
        .env("TMPDIR", dir.path())
        .spawn();
    demo.wait_for_line("the page:", PATIENCE).await;
    let killed = demo.wait_for_line("kill -9 of poller-", PATIENCE).await;
    let victim = killed.split(" of ").nth(1).expect("a name").to_owned();
    demo.wait_for_line(&format!("{victim} -> poller-"), PATIENCE)
        .await;
    let folder = dir.path().display().to_string();
    // The one that was killed may not be back yet.
    assert!(mentioning(&folder).len() >= 3, "a server and its pollers");
    demo.signal(Signal::SIGINT);
    let status = demo.wait(PATIENCE).await;
    assert!(status.success(), "{status:?}: {}", demo.tail());
    assert_eq!(mentioning(&folder), Vec::<String>::new());
    let left = fs::read_dir(dir.path()).expect("the folder is there");
    assert_eq!(left.count(), 0, "the demo's own folder is gone");
}
