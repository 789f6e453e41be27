//! What the log of a real server says, and what it does not.

use leasehold_testkit::wait;
use nix::sys::signal::Signal;

use crate::cli_support::{SOON, Server};

/// Waits for a line with all of these parts, whatever their order.
async fn says(server: &mut Server, parts: &[&str]) -> String {
    let found = |lines: &[String]| {
        let line = lines
            .iter()
            .find(|it| parts.iter().all(|part| it.contains(part)));
        line.cloned()
    };
    wait::until(SOON, &format!("a line with {parts:?}"), async || {
        found(&server.child.lines()).is_some()
    })
    .await;
    found(&server.child.lines()).expect("it was there")
}

#[tokio::test]
async fn the_log_tells_of_force_revocations_and_credentials_and_of_nothing_else() {
    let mut server = Server::start_with(&["--log", "info"]).await;
    let made = server
        .json(&[
            "credential",
            "create",
            "--name",
            "ci",
            "--scope",
            "leases:write",
            "--json",
        ])
        .await;
    let id = made["id"].as_str().expect("an id").to_owned();
    let changed = [
        "INFO",
        "credential changed",
        &format!("id=\"{id}\""),
        "name=\"ci\"",
    ];
    says(
        &mut server,
        &[&changed[..], &["change=\"created\""]].concat(),
    )
    .await;
    let ran = server.run(&["credential", "revoke", &id]).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let revoked = says(
        &mut server,
        &[&changed[..], &["change=\"revoked\""]].concat(),
    )
    .await;
    let secret = made["token"].as_str().expect("a secret");
    assert!(!revoked.contains(secret), "{revoked}");

    let first = ["lease", "acquire", "job:a", "--holder", "first", "--json"];
    server.json(&first).await;
    let reason = "the first one hangs";
    let force = [
        "lease", "acquire", "job:a", "--holder", "second", "--force", reason,
    ];
    let ran = server.run(&force).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let revoke = ["lease", "revoke", "job:a", "--reason", "maintenance"];
    let ran = server.run(&revoke).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let forced = [
        "INFO",
        "lease taken by force",
        "key=job:a",
        "the first one hangs",
    ];
    says(&mut server, &forced).await;
    says(
        &mut server,
        &["INFO", "lease revoked", "key=job:a", "maintenance"],
    )
    .await;

    server.child.signal(Signal::SIGTERM);
    assert!(server.child.wait(SOON).await.success());
    let lines = server.child.lines();
    for wrong in ["WARN", "ERROR", "lease lost", "{ ", "Some(", "\u{1b}["] {
        let found: Vec<_> = lines.iter().filter(|it| it.contains(wrong)).collect();
        assert!(found.is_empty(), "{wrong}: {found:#?}");
    }
}

#[tokio::test]
async fn many_leases_that_expire_together_are_one_line() {
    let mut server = Server::start_with(&["--log", "info"]).await;
    let keys: Vec<String> = (0..30).map(|n| format!("job:{n}")).collect();
    let mut acquire = vec!["lease", "acquire", "--ttl", "1s"];
    acquire.extend(keys.iter().map(String::as_str));
    let ran = server.run(&acquire).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    says(
        &mut server,
        &["INFO", "many leases expired together", "count=30"],
    )
    .await;
}
