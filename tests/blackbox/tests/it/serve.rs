//! `leasehold serve`: from nothing to a server, and what it refuses.

use std::{fs, os::unix::fs::PermissionsExt};

use leasehold_testkit::{Dir, port};
use nix::sys::signal::Signal;

use crate::cli_support::{SOON, Server, plain, run};

#[tokio::test]
async fn from_an_empty_folder_to_a_lease_in_two_commands() {
    let server = Server::start().await;
    let token = server.data().join("admin.token");
    let mode = fs::metadata(&token)
        .expect("made at the first start")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600, "for the owner only");
    let mode = fs::metadata(server.data())
        .expect("made")
        .permissions()
        .mode();
    assert_eq!(mode & 0o077, 0, "and so is the folder");
    let lease = server
        .json(&["lease", "acquire", "job:first", "--json"])
        .await;
    assert_eq!(
        (&lease["kind"], &lease["id"]),
        (&"job".into(), &"first".into())
    );
    let said = server.child.lines();
    let said: Vec<&String> = said.iter().filter(|line| !line.is_empty()).collect();
    assert_eq!(said.len(), 4, "four lines: {said:?}");
    let url = format!("http://{}", server.address);
    assert!(said[0].contains(&url), "{said:?}");
    assert!(said[1].ends_with(&format!("{url}/")), "the page: {said:?}");
    // What it says to type works as it stands, in a shell that knows nothing else.
    let advice = said[3].strip_prefix("try").expect("a command").trim();
    let typed = std::process::Command::new("sh")
        .args(["-c", advice])
        .env_clear()
        .output()
        .expect("a shell");
    assert!(
        typed.status.success(),
        "{advice}: {}",
        String::from_utf8_lossy(&typed.stderr)
    );
    let secret = fs::read_to_string(token).expect("readable");
    assert!(
        !said.iter().any(|line| line.contains(secret.trim())),
        "never the token itself"
    );
}

#[tokio::test]
async fn without_a_credential_nothing_is_open() {
    let server = Server::start().await;
    let url = format!("http://{}", server.address);
    let ran = run(&["lease", "ls", "--server", &url], &[]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (77, ""), "{}", ran.stderr);
    let wrong = [("LEASEHOLD_API_TOKEN", "wrong-wrong".to_owned())];
    let ran = run(&["lease", "ls", "--server", &url], &wrong).await;
    assert_eq!(ran.code, 77, "{}", ran.stderr);
    assert!(!ran.stderr.contains("wrong-wrong"), "{}", ran.stderr);
}

#[tokio::test]
async fn l14_an_orderly_stop_keeps_leases_and_their_time() {
    let mut server = Server::start().await;
    let lease = server
        .json(&["lease", "acquire", "job:kept", "--ttl", "1m", "--json"])
        .await;
    server.child.signal(Signal::SIGTERM);
    assert_eq!(
        server.child.wait(SOON).await.code(),
        Some(0),
        "{}",
        server.child.tail()
    );
    server.restart().await;
    let kept = server.json(&["lease", "get", "job:kept", "--json"]).await;
    assert_eq!(kept["token"], lease["token"]);
    let token = kept["token"].to_string();
    let renewed = server
        .run(&["lease", "renew", "job:kept", "--token", &token])
        .await;
    assert_eq!(renewed.code, 0, "{}", renewed.stderr);
}

#[tokio::test]
async fn a_second_server_on_the_same_folder_is_refused() {
    let server = Server::start().await;
    let listen = format!("127.0.0.1:{}", port::free());
    let data = server.data().display().to_string();
    let ran = run(&["serve", "--listen", &listen, "--data-dir", &data], &[]).await;
    assert_ne!(ran.code, 0);
    assert!(
        ran.stderr.contains(&data),
        "names the folder: {}",
        ran.stderr
    );
    assert_eq!(
        server.run(&["lease", "ls"]).await.code,
        0,
        "the first is not disturbed"
    );
}

#[tokio::test]
async fn a_taken_address_is_a_clear_error() {
    let server = Server::start().await;
    let dir = Dir::new("serve");
    let listen = server.address.to_string();
    let data = dir.path().display().to_string();
    let ran = run(&["serve", "--listen", &listen, "--data-dir", &data], &[]).await;
    assert_ne!(ran.code, 0);
    assert!(ran.stderr.contains(&listen), "{}", ran.stderr);
}

#[tokio::test]
async fn plain_text_on_an_address_of_others_is_refused_unless_told_so() {
    let dir = Dir::new("serve");
    let data = dir.join("data").display().to_string();
    let listen = format!("0.0.0.0:{}", port::free());
    let ran = run(&["serve", "--listen", &listen, "--data-dir", &data], &[]).await;
    assert_eq!(ran.code, 78, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("--insecure-listen"),
        "says what to do: {}",
        ran.stderr
    );
    let reported = [
        "serve",
        "--listen",
        &listen,
        "--data-dir",
        &data,
        "--insecure-listen",
    ];
    let mut server = plain(&reported).spawn();
    server.wait_for_line("listening on", SOON).await;
    server.kill9();
    let mut server = plain(&[
        "serve",
        "--listen",
        &listen,
        "--data-dir",
        &data,
        "--tls-self-signed",
    ])
    .spawn();
    server.wait_for_line("listening on https://", SOON).await;
}

#[tokio::test]
async fn a_self_signed_certificate_is_made_and_trusted_by_the_local_command_line() {
    let server = Server::start_with(&["--tls-self-signed"]).await;
    let data = server.data().display().to_string();
    let listen = server.address.to_string();
    let environment = [
        ("LEASEHOLD_DATA_DIR", data),
        ("LEASEHOLD_LISTEN", listen),
        ("LEASEHOLD_TLS_SELF_SIGNED", "true".to_owned()),
    ];
    let ran = run(&["lease", "acquire", "job:tls"], &environment).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

#[tokio::test]
async fn tokens_from_the_environment_are_enough() {
    let dir = Dir::new("serve");
    let data = dir.join("data").display().to_string();
    let listen = format!("127.0.0.1:{}", port::free());
    let tokens = r#"[{"token":"look-only-token","scopes":["leases:read"]}]"#;
    let arguments = [
        "serve",
        "--listen",
        &listen,
        "--data-dir",
        &data,
        "--store",
        "memory:",
    ];
    let mut server = plain(&arguments).env("LEASEHOLD_TOKENS", tokens).spawn();
    server.wait_for_line("listening on", SOON).await;
    let url = format!("http://{listen}");
    let credential = [("LEASEHOLD_API_TOKEN", "look-only-token".to_owned())];
    let ran = run(&["lease", "ls", "--server", &url], &credential).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let ran = run(
        &["lease", "acquire", "job:x", "--server", &url],
        &credential,
    )
    .await;
    assert_eq!(ran.code, 77, "{}", ran.stderr);
}

#[tokio::test]
async fn a_wrong_configuration_starts_nothing() {
    let dir = Dir::new("serve");
    let file = dir
        .write("leasehold.yaml", "server:\n  lisen: 127.0.0.1:1\n")
        .expect("written");
    let file = file.display().to_string();
    let ran = run(&["serve", "--config", &file], &[]).await;
    assert_eq!(ran.code, 78);
    assert_eq!(
        ran.stderr,
        format!("error: {file}:2:3: unknown key `lisen`\nhint: did you mean `listen`?\n")
    );
    let ran = run(&["serve"], &[("LEASEHOLD_LISEN", "x".to_owned())]).await;
    assert_eq!(ran.code, 78);
    assert!(
        ran.stderr.contains("did you mean LEASEHOLD_LISTEN?"),
        "{}",
        ran.stderr
    );
    let ran = run(&["serve", "--store", "cassandra://x"], &[]).await;
    assert_eq!(ran.code, 78);
    assert!(
        ran.stderr.contains("embedded:"),
        "says what there is: {}",
        ran.stderr
    );
}
