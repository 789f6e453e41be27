//! `leasehold doctor`: each thing that commonly goes wrong is found, and each line says what to do.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use lease::{Acquire, Authority as _, Holder, Key, Transaction, Ttl, Write};
use leasehold_client::Remote;
use leasehold_testkit::{Dir, Postgres, port, wait};
use nix::time::{ClockId, clock_gettime};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::cli_support::{SOON, Server, run};

const DAY: Duration = Duration::from_secs(86_400);

/// The findings about one thing.
async fn found(server: &Server, check: &str, environment: &[(&str, String)]) -> Vec<Value> {
    let mut all = vec![
        ("LEASEHOLD_DATA_DIR", server.data().display().to_string()),
        ("LEASEHOLD_URL", format!("http://{}", server.address)),
    ];
    all.extend(environment.iter().cloned());
    let ran = run(&["doctor", "--json"], &all).await;
    let findings: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let findings = findings.as_array().expect("a list");
    for finding in findings {
        // Whatever is not fine says what to do, and alone what is wrong fails the command.
        let fine = finding["verdict"] == "fine";
        assert_eq!(fine, finding["advice"].is_null(), "{finding}");
    }
    let wrong = findings.iter().any(|it| it["verdict"] == "wrong");
    assert_eq!(ran.code, if wrong { 80 } else { 0 }, "{}", ran.stderr);
    let mut findings = findings.clone();
    findings.retain(|it| it["check"] == check);
    findings
}

async fn verdict(server: &Server, check: &str, environment: &[(&str, String)]) -> Value {
    let findings = found(server, check, environment).await;
    let first = findings.first();
    first
        .unwrap_or_else(|| panic!("nothing about {check}"))
        .clone()
}

fn text<'a>(finding: &'a Value, field: &str) -> &'a str {
    finding[field].as_str().unwrap_or_default()
}

/// A certificate that is valid from a month ago until so long from now.
fn certificate(dir: &Dir, name: &str, left: Duration) -> (PathBuf, PathBuf) {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_REALTIME).expect("a clock"));
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.not_before = rcgen::date_time_ymd(1970, 1, 1) + now.saturating_sub(30 * DAY);
    params.not_after = rcgen::date_time_ymd(1970, 1, 1) + now + left;
    let key = KeyPair::generate().expect("a key");
    let signed = params.self_signed(&key).expect("signed");
    let write = |suffix: &str, text: &str| {
        let name = format!("{name}.{suffix}");
        let file = dir.write(&name, text).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its owner's");
        file
    };
    (
        write("pem", &signed.pem()),
        write("key", &key.serialize_pem()),
    )
}

#[tokio::test]
async fn certificates_disk_and_files_are_looked_at() {
    let server = Server::start().await;
    let dir = Dir::new("doctor");
    let disk = verdict(&server, "disk", &[]).await;
    assert!(text(&disk, "detail").contains("free in"), "{disk}");
    assert_eq!(verdict(&server, "files", &[]).await["verdict"], "fine");
    assert!(found(&server, "certificate", &[]).await.is_empty());
    for (name, left, expected, words) in [
        ("good", 90 * DAY, "fine", "is valid until"),
        ("soon", 5 * DAY, "note", "expires on"),
        ("over", Duration::ZERO, "wrong", "expired on"),
    ] {
        let (certificate, key) = certificate(&dir, name, left);
        let environment = [
            (
                "LEASEHOLD_TLS_CERTIFICATE",
                certificate.display().to_string(),
            ),
            ("LEASEHOLD_TLS_KEY", key.display().to_string()),
        ];
        let finding = verdict(&server, "certificate", &environment).await;
        assert_eq!(finding["verdict"], expected, "{finding}");
        assert!(text(&finding, "detail").contains(words), "{finding}");
        // A private key that others can read.
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("opened");
        let files = verdict(&server, "files", &environment).await;
        assert_eq!(files["verdict"], "wrong", "{files}");
        let chmod = format!("chmod 600 {}", key.display());
        assert_eq!(text(&files, "advice"), chmod);
        assert!(text(&files, "detail").contains("(0644)"), "{files}");
    }
    // And one in the data folder.
    let credential = server.data().join("admin.token");
    fs::set_permissions(&credential, fs::Permissions::from_mode(0o640)).expect("opened");
    let files = verdict(&server, "files", &[]).await;
    assert!(
        text(&files, "detail").contains("admin.token (0640)"),
        "{files}"
    );
}

#[tokio::test]
async fn replicas_of_different_versions_are_pointed_out() {
    let server = Server::start().await;
    wait::until(SOON, "the server is listed", async || {
        let overview = server.client().overview().await;
        overview.is_ok_and(|it| it.replicas.is_some_and(|it| it.len() == 1))
    })
    .await;
    assert_eq!(verdict(&server, "replicas", &[]).await["verdict"], "fine");
    assert!(found(&server, "versions", &[]).await.is_empty());
    // Another one announces itself as servers do.
    let authority = Remote::new(server.client());
    let key: Key = "replica:elsewhere:8740/00000000".parse().expect("a key");
    let holder = Holder::new("elsewhere:8740", "1").expect("a holder");
    let ttl = Ttl::from_secs(600).expect("a ttl");
    let acquired = authority.acquire(Acquire::one(key.clone(), holder.clone(), ttl));
    acquired.await.expect("announced");
    let now = authority.now().await.expect("the time");
    let value = json!({
        "created_at": now, "updated_at": now,
        "value": {"holder": holder, "address": "http://elsewhere:8740", "version": "0.0.1", "store_writable": true},
    });
    let written = authority.commit(Transaction {
        writes: vec![Write {
            key,
            value: Some(value.to_string().into()),
            note: None,
        }],
        ..Transaction::default()
    });
    written.await.expect("written");
    let versions = verdict(&server, "versions", &[]).await;
    assert_eq!(versions["verdict"], "note");
    assert!(
        text(&versions, "detail").contains("elsewhere:8740 has 0.0.1"),
        "{versions}"
    );
    assert!(
        text(&versions, "advice").contains("finish the upgrade"),
        "{versions}"
    );
}

#[tokio::test]
async fn a_broker_out_of_reach_is_pointed_out() {
    let nobody = format!("amqp://127.0.0.1:{}", port::free());
    let server = Server::start_with(&["--amqp", &nobody]).await;
    wait::until(SOON, "the server is listed", async || {
        let overview = server.client().overview().await;
        overview.is_ok_and(|it| it.replicas.is_some_and(|it| it.len() == 1))
    })
    .await;
    let broker = verdict(&server, "broker", &[]).await;
    assert_eq!(broker["verdict"], "wrong", "{broker}");
    assert!(text(&broker, "detail").contains("out of reach"), "{broker}");
}

#[tokio::test]
async fn a_changed_history_is_pointed_out() {
    let database = Postgres::shared().await;
    let server = Server::start_with(&["--store", &database.url()]).await;
    let acquired = server.run(&["lease", "acquire", "job:sealed"]).await;
    assert_eq!(acquired.code, 0, "{}", acquired.stderr);
    let sealed = "SELECT count(*) FROM lease_events e JOIN lease_seals s \
        ON e.revision BETWEEN s.first AND s.last WHERE e.key = 'job:sealed'";
    wait::until(SOON, "the event is sealed", async || {
        database.psql(sealed).await.trim() != "0"
    })
    .await;
    assert_eq!(verdict(&server, "seals", &[]).await["verdict"], "fine");
    let eve = "UPDATE lease_events SET runner_id = 'eve' WHERE key = 'job:sealed'";
    database.psql(eve).await;
    let seals = verdict(&server, "seals", &[]).await;
    assert_eq!(seals["verdict"], "wrong", "{seals}");
    assert!(
        text(&seals, "detail").contains("was changed after it was sealed"),
        "{seals}"
    );
    assert!(text(&seals, "advice").contains("lease verify"), "{seals}");
}
