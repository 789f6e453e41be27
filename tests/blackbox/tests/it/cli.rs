//! The verbs for people and programs, against a real server.

use leasehold_testkit::{Binary, Dir};

use crate::cli_support::{SOON, Server, run};

#[tokio::test]
async fn a_lease_from_acquire_to_history() {
    let server = Server::start().await;
    let granted = server
        .json(&[
            "lease", "acquire", "job:a", "--ttl", "1m", "--holder", "me", "--label", "site=x",
            "--json",
        ])
        .await;
    let token = granted["token"].to_string();
    assert_eq!(granted["site_id"], "x");

    let refused = server.run(&["lease", "acquire", "job:a"]).await;
    assert_eq!(refused.code, 75);
    assert!(
        refused
            .stderr
            .contains(&format!("job:a is held by me under token {token}")),
        "{}",
        refused.stderr
    );

    let shown = server.run(&["lease", "get", "job:a"]).await;
    assert!(shown.stdout.starts_with("KEY"), "{}", shown.stdout);
    assert!(
        shown.stdout.contains(&token) && shown.stdout.contains("active"),
        "{}",
        shown.stdout
    );
    assert!(!shown.stdout.contains('\u{1b}'), "no colour");

    let wrong = server
        .run(&["lease", "renew", "job:a", "--token", "1"])
        .await;
    assert_eq!(wrong.code, 66, "{}", wrong.stderr);
    let renewed = server
        .json(&[
            "lease", "renew", "job:a", "--token", &token, "--ttl", "2m", "--json",
        ])
        .await;
    assert_eq!(
        renewed["token"].to_string(),
        token,
        "renewals never change it (L3)"
    );
    assert_eq!(renewed["ttl_seconds"], 120);

    for said in ["released job:a", "nothing to release"] {
        let released = server
            .run(&["lease", "release", "job:a", "--token", &token])
            .await;
        assert_eq!(
            (released.code, released.stdout.as_str()),
            (0, ""),
            "twice is fine (L16)"
        );
        assert!(released.stderr.contains(said), "{}", released.stderr);
    }
    assert_eq!(server.run(&["lease", "get", "job:a"]).await.code, 66);

    let history = server.json(&["lease", "history", "job:a", "--json"]).await;
    assert_eq!(history["ended_by"], "lease_released");
    assert_eq!(history["holder"], "me");
    let nobody = server
        .run(&["lease", "history", "job:a", "--at", "2020-01-01T00:00:00Z"])
        .await;
    assert_eq!(nobody.code, 66, "{}", nobody.stdout);
    let verified = server.json(&["lease", "verify", "--json"]).await;
    assert_eq!(verified["faults"], serde_json::json!([]));
    assert!(verified["events"].as_u64() >= Some(2));
}

#[tokio::test]
async fn l4_l5_several_keys_and_pools() {
    let server = Server::start().await;
    let any = ["lease", "acquire", "--any", "tuner:0", "tuner:1", "--json"];
    assert_eq!(server.json(&any).await["id"], "0");
    assert_eq!(server.json(&any).await["id"], "1");
    assert_eq!(server.run(&any).await.code, 75, "the pool is empty");
    let both = server.run(&["lease", "acquire", "job:b", "tuner:0"]).await;
    assert_eq!(both.code, 75, "all or nothing");
    assert_eq!(server.run(&["lease", "get", "job:b"]).await.code, 66);
    let listed = server
        .run(&["lease", "ls", "--kind", "tuner", "--json"])
        .await;
    assert_eq!(listed.stdout.lines().count(), 2);
    // Reserved kinds are shown to whoever asks for them.
    let count = async |arguments: &[&str]| {
        let listed = server.run(arguments).await;
        listed.stdout.matches("\"kind\":\"tuner\"").count()
    };
    assert_eq!(count(&["lease", "ls", "--json"]).await, 0);
    assert_eq!(count(&["lease", "ls", "--all", "--json"]).await, 2);
    let several = ["lease", "acquire", "job:c", "job:d", "--json"];
    assert_eq!(server.json(&several).await["leases"][1]["id"], "d");
}

#[tokio::test]
async fn l20_a_watch_tells_changes_and_resumes() {
    let server = Server::start().await;
    server.json(&["lease", "acquire", "job:w", "--json"]).await;
    let mut watch = server
        .cli(&["lease", "watch", "--from", "0", "--json"])
        .spawn();
    watch.wait_for_line("\"lease_acquired\"", SOON).await;
    server
        .run(&["lease", "revoke", "job:w", "--reason", "for a test"])
        .await;
    let line = watch.wait_for_line("\"lease_revoked\"", SOON).await;
    assert!(line.contains("for a test"), "{line}");
}

#[tokio::test]
async fn tokens_are_made_listed_and_revoked() {
    let server = Server::start().await;
    let made = server
        .run(&["token", "create", "--name", "ci", "--scope", "leases:read"])
        .await;
    assert_eq!(made.code, 0, "{}", made.stderr);
    let secret = made.stdout.trim().to_owned();
    assert_eq!(made.stdout.lines().count(), 1, "only the token");
    let url = format!("http://{}", server.address);
    let credential = [("LEASEHOLD_API_TOKEN", secret.clone())];
    let look = ["lease", "ls", "--server", &url];
    assert_eq!(run(&look, &credential).await.code, 0, "let in at once");
    let take = ["lease", "acquire", "job:t", "--server", &url];
    assert_eq!(run(&take, &credential).await.code, 77, "only for looking");

    let listed = server.run(&["token", "ls"]).await;
    assert!(
        listed.stdout.contains("ci") && listed.stdout.contains("leases:read"),
        "{}",
        listed.stdout
    );
    assert!(!listed.stdout.contains(&secret));
    let row = listed
        .stdout
        .lines()
        .find(|line| line.contains("ci"))
        .expect("listed");
    let id = row.split_whitespace().next().expect("an id");
    assert_eq!(server.run(&["token", "revoke", id]).await.code, 0);
    assert_eq!(server.run(&["token", "revoke", id]).await.code, 66);
    leasehold_testkit::wait::until(SOON, "it is refused", async || {
        run(&look, &credential).await.code == 77
    })
    .await;
}

#[tokio::test]
async fn tokens_expire_are_rotated_and_are_there_when_the_server_is_not() {
    let mut server = Server::start().await;
    let create = ["token", "create", "--name", "ci", "--scope", "leases:read"];
    let mut lasting = create.to_vec();
    lasting.extend(["--expires", "30d"]);
    let made = server.run(&lasting).await;
    assert_eq!(made.code, 0, "{}", made.stderr);
    let first = made.stdout.trim().to_owned();
    let listed = server.run(&["token", "ls"]).await.stdout;
    let row = |name: &str| {
        let row = listed.lines().find(|line| line.contains(name));
        row.expect("listed").to_owned()
    };
    assert!(
        row("admin").ends_with("never") && row("ci").ends_with('Z'),
        "{listed}"
    );
    let look = async |server: &Server, secret: &str| {
        let url = format!("http://{}", server.address);
        let credential = [("LEASEHOLD_API_TOKEN", secret.to_owned())];
        run(&["lease", "ls", "--server", &url], &credential)
            .await
            .code
    };
    let rotated = server
        .run(&["token", "rotate", "ci", "--grace", "1h"])
        .await;
    assert_eq!(rotated.code, 0, "{}", rotated.stderr);
    let second = rotated.stdout.trim().to_owned();
    assert_eq!(look(&server, &first).await, 0);
    assert_eq!(look(&server, &second).await, 0);
    let third = server.run(&["token", "rotate", "ci"]).await;
    let third = third.stdout.trim().to_owned();
    assert_eq!(look(&server, &second).await, 77, "there was no grace");
    assert_eq!(look(&server, &third).await, 0);
    assert_eq!(server.run(&["token", "rotate", "nobody"]).await.code, 66);

    // Without a server the same verbs open its store.
    server.child.sigterm();
    server.child.wait(SOON).await;
    let data = [("LEASEHOLD_DATA_DIR", server.data().display().to_string())];
    let listen = ("LEASEHOLD_LISTEN", server.address.to_string());
    let offline = [data[0].clone(), listen];
    let made = run(
        &["token", "create", "--name", "ci", "--scope", "v3:read"],
        &offline,
    )
    .await;
    assert_eq!(made.code, 0, "{}", made.stderr);
    let ambiguous = run(&["token", "revoke", "ci"], &offline).await;
    assert_eq!(ambiguous.code, 2, "{}", ambiguous.stderr);
    server.restart().await;
    assert_eq!(look(&server, &third).await, 0);
    assert_eq!(look(&server, made.stdout.trim()).await, 77, "other rights");
}

#[tokio::test]
async fn the_doctor_finds_what_is_wrong_and_what_is_not() {
    let mut server = Server::start().await;
    let fine = server.run(&["doctor"]).await;
    assert_eq!(fine.code, 0, "{}{}", fine.stdout, fine.stderr);
    assert!(fine.stdout.contains("durable: yes"), "{}", fine.stdout);
    server.child.kill9();
    let gone = server.run(&["doctor", "--json"]).await;
    assert_eq!(gone.code, 80, "{}", gone.stdout);
    let findings: serde_json::Value = serde_json::from_str(&gone.stdout).expect("JSON");
    let wrong = findings
        .as_array()
        .expect("a list")
        .iter()
        .find(|one| one["verdict"] == "wrong");
    assert_eq!(wrong.expect("found")["check"], "server");
    let verb = server.run(&["lease", "ls"]).await;
    assert_eq!(verb.code, 69, "{}", verb.stderr);
    assert!(verb.stderr.contains("hint: "), "{}", verb.stderr);
}

#[tokio::test]
async fn the_configuration_is_layered_and_shown_without_secrets() {
    let dir = Dir::new("config");
    let yaml = "lease: {ttl: 40s}\nserver: {store: 'postgres://u:hush@h/d'}\nclient: {token: hush, url: 'http://file:1'}\n";
    let file = dir
        .write("leasehold.yaml", yaml)
        .expect("written")
        .display()
        .to_string();
    let environment = [
        ("LEASEHOLD_CONFIG", file),
        ("LEASEHOLD_URL", "http://env:2".to_owned()),
    ];
    let shown = run(&["config", "show"], &environment).await;
    assert!(
        shown.stdout.contains("ttl: 40s") && shown.stdout.contains("http://env:2"),
        "{}",
        shown.stdout
    );
    assert!(!shown.stdout.contains("hush"), "{}", shown.stdout);
    let shown = run(
        &["config", "show", "--server", "http://flag:3"],
        &environment,
    )
    .await;
    assert!(
        shown.stdout.contains("http://flag:3"),
        "the flag is strongest: {}",
        shown.stdout
    );
    assert_eq!(run(&["config", "check"], &environment).await.code, 0);
    let unsafe_timing = [("LEASEHOLD_RENEW_EVERY", "20s".to_owned())];
    let refused = run(&["config", "check"], &unsafe_timing).await;
    assert_eq!(refused.code, 78);
    assert!(
        refused.stderr.contains("Worst-case failover"),
        "{}",
        refused.stderr
    );
}

#[tokio::test]
async fn completions_and_manual_pages_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(&["completions", shell], &[]).await;
        assert!(ran.code == 0 && ran.stdout.contains("leasehold"), "{shell}");
        assert!(!ran.stdout.contains("__guardian"), "{shell}");
    }
    let ran = run(&["man"], &[]).await;
    assert!(
        ran.code == 0 && ran.stdout.starts_with(".ie"),
        "{}",
        ran.stdout
    );
    let dir = Dir::new("man");
    let ran = run(&["man", "--to", &dir.path().display().to_string()], &[]).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(dir.join("leasehold-run.1").exists());
}

#[tokio::test]
async fn a_reader_that_stops_reading_is_no_failure_to_talk_about() {
    for verb in ["completions bash", "man", "config show --variables"] {
        let script = format!("'{}' {verb} | true", Binary::leasehold_path().display());
        let ran = tokio::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .await
            .expect("there is a shell");
        let reported = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(reported, "", "{verb}");
    }
}

#[tokio::test]
async fn wrong_words_are_refused_with_what_was_expected() {
    for (arguments, expected) in [
        (vec!["lease", "get", "nocolon"], "KIND:ID"),
        (vec!["run", "a:b", "--ttl", "soon", "--", "true"], "30s"),
        (
            vec!["run", "a:b", "--on-outage", "panic", "--", "true"],
            "fail_closed",
        ),
        // As over HTTP: no lease that would lapse before its answer is there.
        (vec!["lease", "acquire", "a:b", "--ttl", "1ms"], "1s to 1h"),
        (vec!["run", "a:b", "--ttl", "61m", "--", "true"], "1s to 1h"),
        (vec!["run", "a:b"], "CMD"),
        (
            vec!["lease", "release", "a:b", "--token", "x"],
            "whole number",
        ),
        (
            vec!["token", "create", "--name", "x", "--scope", "leases"],
            "leases",
        ),
    ] {
        let ran = run(&arguments, &[]).await;
        assert_eq!(ran.code, 2, "{arguments:?}: {}", ran.stderr);
        assert!(
            ran.stderr.contains(expected),
            "{arguments:?}: {}",
            ran.stderr
        );
    }
    let ran = run(
        &[
            "run",
            "a:b",
            "--ttl",
            "10s",
            "--stop-grace",
            "9s",
            "--",
            "true",
        ],
        &[],
    )
    .await;
    assert_eq!(ran.code, 78, "{}", ran.stderr);
}

#[tokio::test]
async fn mistakes_are_told_in_the_form_that_was_asked_for() {
    let server = Server::start().await;
    let granted = server.json(&["lease", "acquire", "job:p", "--json"]).await;
    let problem = |stderr: &str| -> serde_json::Value {
        serde_json::from_str(stderr.lines().last().unwrap_or_default()).expect("a problem")
    };
    let held = server.run(&["lease", "acquire", "job:p", "--json"]).await;
    let held = problem(&held.stderr);
    assert_eq!(
        (&held["code"], &held["exit_code"]),
        (&"LEASE_ALREADY_HELD".into(), &75.into())
    );
    let wrong = server.run(&["lease", "ls", "--json", "--colour"]).await;
    assert_eq!((wrong.code, wrong.stdout.as_str()), (2, ""));
    assert_eq!(problem(&wrong.stderr)["code"], "CONFIG_INVALID");

    // Why a lease is over, and the address that was asked.
    let token = granted["token"].to_string();
    let arguments = ["lease", "renew", "job:p", "--token", &token];
    server
        .run(&["lease", "revoke", "job:p", "--reason", "for a test"])
        .await;
    let lost = server.run(&arguments).await;
    assert!(
        lost.stderr.contains("lease revoked") && lost.stderr.contains("for a test"),
        "{}",
        lost.stderr
    );
    let nobody = format!("http://127.0.0.1:{}", leasehold_testkit::port::free());
    let away = server.run(&["lease", "ls", "--server", &nobody]).await;
    assert_eq!(away.code, 69);
    assert!(away.stderr.contains(&nobody), "{}", away.stderr);
    let tls = format!("https://{}", server.address);
    let mixed = server.run(&["lease", "ls", "--server", &tls]).await;
    assert!(mixed.stderr.contains("write http://"), "{}", mixed.stderr);
}

#[tokio::test]
async fn a_taken_port_is_named_with_another() {
    let server = Server::start().await;
    let dir = Dir::new("second");
    let taken = server.address.to_string();
    let folder = dir.path().display().to_string();
    let second = run(
        &[
            "serve",
            "--store",
            "memory:",
            "--data-dir",
            &folder,
            "--listen",
            &taken,
        ],
        &[],
    )
    .await;
    assert_eq!(second.code, 1, "{}", second.stderr);
    assert!(
        second.stderr.contains(&taken) && second.stderr.contains("--listen 127.0.0.1:"),
        "{}",
        second.stderr
    );
}
