//! Folders, ports and waiting.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use leasehold_testkit::{Dir, dir, port, wait};

#[test]
fn a_folder_is_recognisable_open_to_all_and_gone_after_drop() {
    let folder = Dir::new("basics");
    let path = folder.path().to_path_buf();
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with(dir::PREFIX), "{name}");
    assert!(name.contains("basics"), "{name}");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    folder.write("file", "text").unwrap();
    folder.make("a/b").unwrap();
    drop(folder);
    assert!(!path.exists());
}

#[test]
fn ports_are_never_handed_out_twice_and_can_be_bound() {
    let ports: BTreeSet<u16> = (0..50).map(|_| port::free()).collect();
    assert_eq!(ports.len(), 50);
    for port in ports {
        std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    }
}

#[test]
fn a_port_that_was_handed_out_is_kept_from_other_processes() {
    let port = port::free();
    let folder = format!("leasehold-ports-{}", nix::unistd::getuid());
    let path = std::env::temp_dir().join(folder).join(port.to_string());
    let lock = std::fs::File::open(path).unwrap();
    assert!(lock.try_lock().is_err());
}

#[tokio::test]
async fn waiting_ends_with_the_value() {
    let mut count = 0;
    let value = wait::until_some(Duration::from_secs(30), "three tries", async || {
        count += 1;
        (count == 3).then_some(count)
    })
    .await;
    assert_eq!(value, 3);
}

#[tokio::test]
#[should_panic(expected = "waited 30ms in vain: pigs fly")]
async fn waiting_in_vain_names_what_was_waited_for() {
    wait::until(Duration::from_millis(30), "pigs fly", async || false).await;
}

#[tokio::test]
async fn a_probe_that_hangs_does_not_hang_the_wait() {
    let patience = Duration::from_millis(30);
    let nothing = wait::within(patience, async || {
        std::future::pending::<()>().await;
        Some(())
    })
    .await;
    assert_eq!(nothing, None);
}
