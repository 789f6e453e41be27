//! `scripts/setup`, on machines where something is missing.

use std::{fs, os::unix::fs::PermissionsExt as _, os::unix::fs::symlink, path::Path};

use leasehold_testkit::{Dir, Program};

use crate::cli_support::SOON;

/// What the script itself is written with.
const TOOLS: [&str; 11] = [
    "bash", "cat", "cut", "dirname", "env", "head", "mktemp", "printf", "rm", "sed", "sort",
];

/// A machine that has nothing but what is put there.
struct Machine {
    dir: Dir,
}

impl Machine {
    fn new() -> Self {
        let dir = Dir::new("setup");
        let machine = Self { dir };
        for tool in TOOLS {
            let found = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(tool));
            let found = found.iter().find(|it| it.exists()).expect("a usual tool");
            symlink(found, machine.dir.join(tool)).expect("a link");
        }
        // An ordinary user, with a current Rust.
        machine
            .with("id", "echo 1000")
            .with("cargo", "")
            .with("rustc", "echo rustc 1.95.0")
    }

    /// The same with a program of this name.
    fn with(self, name: &str, script: &str) -> Self {
        let text = format!("#!/bin/sh\n{script}\n");
        let path = self.dir.write(name, &text).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("executable");
        self
    }

    fn without(self, name: &str) -> Self {
        fs::remove_file(self.dir.join(name)).expect("it was there");
        self
    }

    /// What the script for building prints, and whether it succeeds.
    async fn setup(&self) -> (bool, String) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/setup");
        let mut child = Program::new("env")
            .args(["-i", &format!("PATH={}", self.dir.path().display())])
            .arg("/bin/bash")
            .arg(script)
            .arg("run")
            .spawn();
        let success = child.wait(SOON).await.success();
        (success, child.lines().join("\n"))
    }

    fn said_to_sudo(&self) -> String {
        fs::read_to_string(self.dir.join("sudo.log")).unwrap_or_default()
    }
}

#[tokio::test]
async fn sudo_is_asked_for_packages_and_for_nothing_else() {
    let machine = Machine::new()
        .with("apt-get", "exit 1")
        .with("sudo", "echo \"$@\" >> \"$(dirname \"$0\")/sudo.log\"");
    let (success, said) = machine.setup().await;
    assert!(success, "{said}");
    assert!(said.contains("installing: build-essential"), "{said}");
    let asked = machine.said_to_sudo();
    assert_eq!(asked.lines().count(), 1, "{asked}");
    let packages = asked.trim().split_once("scripts/install-packages ");
    assert_eq!(
        packages.map(|it| it.1),
        Some("build-essential pkg-config"),
        "{asked}"
    );
}

#[tokio::test]
async fn what_is_missing_is_named_where_it_cannot_be_installed() {
    let (success, said) = Machine::new().with("apt-get", "exit 1").setup().await;
    assert!(!success, "{said}");
    assert!(
        said.contains("missing commands: cc make pkg-config"),
        "{said}"
    );
    assert!(
        said.contains("apt-get install build-essential pkg-config"),
        "{said}"
    );
    let (success, said) = Machine::new().setup().await;
    assert!(!success, "{said}");
    assert!(said.contains("missing commands: cc make"), "{said}");
    assert!(said.contains("Debian packages only"), "{said}");
}

#[tokio::test]
async fn a_missing_or_old_rust_is_named_with_the_version_that_is_needed() {
    let (success, said) = Machine::new().without("cargo").setup().await;
    assert!(!success, "{said}");
    assert!(said.contains("cargo is missing"), "{said}");
    assert!(said.contains("1.95 or newer"), "{said}");
    let old = Machine::new().with("rustc", "echo rustc 1.80.1");
    let (success, said) = old.setup().await;
    assert!(!success, "{said}");
    assert!(said.contains("Rust 1.80.1 is too old"), "{said}");
    assert!(said.contains("1.95 or newer"), "{said}");
}
