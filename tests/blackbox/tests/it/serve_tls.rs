//! `leasehold serve` with a certificate of one's own, and whom the command line believes.

use std::{net::SocketAddr, path::PathBuf};

use leasehold_testkit::{Child, Dir, port};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::cli_support::{Ran, SOON, plain, run};

/// A folder with an authority's certificate, and a server's certificate that it issued with its key.
struct Papers {
    dir: Dir,
}

impl Papers {
    fn issue() -> Self {
        let dir = Dir::new("tls");
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let ca = authority.self_signed(&key).expect("an authority");
        let issuer = Issuer::new(authority, key);
        let names = vec!["localhost".to_owned()];
        let server_key = KeyPair::generate().expect("a key");
        let server = CertificateParams::new(names)
            .and_then(|params| params.signed_by(&server_key, &issuer))
            .expect("a certificate");
        let other_key = KeyPair::generate().expect("a key");
        for (name, text) in [
            ("ca.pem", ca.pem()),
            ("cert.pem", server.pem()),
            ("key.pem", server_key.serialize_pem()),
            ("other-key.pem", other_key.serialize_pem()),
            ("text.pem", "not a certificate at all\n".to_owned()),
        ] {
            dir.write(name, &text).expect("written");
        }
        Self { dir }
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    async fn serve(&self, address: SocketAddr) -> Child {
        let mut child = plain(&["serve", "--listen", &address.to_string(), "--data-dir"])
            .arg(self.data())
            .args([
                "--tls-cert",
                &self.file("cert.pem"),
                "--tls-key",
                &self.file("key.pem"),
            ])
            .spawn();
        child.wait_for_line("listening on https://", SOON).await;
        child
    }

    /// What becomes of a server with these files.
    async fn refused(&self, cert: &str, key: &str) -> Ran {
        let listen = format!("127.0.0.1:{}", port::free());
        let data = self.data().display().to_string();
        let (cert, key) = (self.file(cert), self.file(key));
        run(
            &[
                "serve",
                "--listen",
                &listen,
                "--data-dir",
                &data,
                "--tls-cert",
                &cert,
                "--tls-key",
                &key,
            ],
            &[],
        )
        .await
    }
}

fn free() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port::free()))
}

#[tokio::test]
async fn a_certificate_of_one_s_own_is_served_to_those_who_trust_its_authority() {
    let papers = Papers::issue();
    let address = free();
    let _server = papers.serve(address).await;
    let data = ("LEASEHOLD_DATA_DIR", papers.data().display().to_string());
    let https = |host: &str| format!("https://{host}:{}", address.port());

    let (ca, url) = (papers.file("ca.pem"), https("localhost"));
    let ran = run(
        &[
            "lease",
            "acquire",
            "job:x",
            "--server",
            &url,
            "--ca-file",
            &ca,
        ],
        std::slice::from_ref(&data),
    )
    .await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let by_environment = [
        data.clone(),
        ("LEASEHOLD_CA_FILE", ca.clone()),
        ("LEASEHOLD_URL", url),
    ];
    let ran = run(&["lease", "ls", "--json"], &by_environment).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("\"id\":\"x\""), "{}", ran.stdout);

    // Without the authority, with another one, and under a name that it does not have: nothing is sent.
    let other = Papers::issue();
    for (url, ca) in [
        (https("localhost"), None),
        (https("localhost"), Some(other.file("ca.pem"))),
        (https("127.0.0.1"), Some(ca)),
    ] {
        let mut arguments = vec!["lease", "ls", "--server", &url];
        if let Some(ca) = &ca {
            arguments.extend(["--ca-file", ca]);
        }
        let ran = run(&arguments, std::slice::from_ref(&data)).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (69, ""), "{}", ran.stderr);
        assert!(ran.stderr.contains("certificate"), "{}", ran.stderr);
    }
    let plain_text = format!("http://{address}");
    let ran = run(&["lease", "ls", "--server", &plain_text], &[data]).await;
    assert_eq!(ran.code, 69, "not in plain text: {}", ran.stderr);
}

#[tokio::test]
async fn a_wrong_certificate_or_key_starts_nothing_and_is_named() {
    let papers = Papers::issue();
    for (cert, key, named, why) in [
        (
            "cert.pem",
            "other-key.pem",
            "other-key.pem",
            "does not belong to the certificate",
        ),
        ("cert.pem", "missing.pem", "missing.pem", "No such file"),
        ("missing.pem", "key.pem", "missing.pem", "No such file"),
        ("text.pem", "key.pem", "text.pem", "no certificate"),
        ("cert.pem", "text.pem", "text.pem", ""),
        ("key.pem", "cert.pem", "key.pem", "no certificate"),
    ] {
        let ran = papers.refused(cert, key).await;
        assert_eq!(ran.code, 78, "{cert} {key}: {}", ran.stderr);
        assert!(ran.stderr.contains(&papers.file(named)), "{}", ran.stderr);
        assert!(ran.stderr.contains(why), "{cert} {key}: {}", ran.stderr);
        assert!(!ran.stderr.contains("PRIVATE KEY"), "{}", ran.stderr);
    }
    // One without the other is a slip.
    let file = format!(
        "server:\n  tls: {{certificate: '{}'}}\n",
        papers.file("cert.pem")
    );
    let file = papers.dir.write("half.yaml", &file).expect("written");
    let data = papers.data().display().to_string();
    let file = file.display().to_string();
    let ran = run(&["serve", "--config", &file, "--data-dir", &data], &[]).await;
    assert_eq!(ran.code, 78, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("both certificate and key"),
        "{}",
        ran.stderr
    );
}

#[tokio::test]
async fn a_certificate_authority_that_cannot_be_read_is_named() {
    let papers = Papers::issue();
    for (name, why) in [
        ("missing.pem", "No such file"),
        ("text.pem", "no certificate"),
    ] {
        let file = papers.file(name);
        let url = "https://127.0.0.1:1";
        let ran = run(&["lease", "ls", "--server", url, "--ca-file", &file], &[]).await;
        assert_ne!(ran.code, 0);
        assert!(ran.stderr.contains(why), "{name}: {}", ran.stderr);
    }
}

#[tokio::test]
async fn targets_are_polled_over_https_by_those_who_trust_their_authority() {
    let papers = Papers::issue();
    let address = free();
    let _server = papers.serve(address).await;
    let targets = papers.dir.write("targets.json", r#"[{"id":"one"}]"#);
    let config = format!(
        "poll:\n  store: 'memory:'\n  url: 'https://localhost:{}/healthz'\n  targets_file: '{}'\n",
        address.port(),
        targets.expect("written").display()
    );
    let config = papers.dir.write("poll.yaml", &config).expect("written");
    let poll = || plain(&["poll", "--config"]).arg(&config);
    // The machine's certificates, which this variable replaces.
    let mut trusting = poll().env("SSL_CERT_FILE", papers.file("ca.pem")).spawn();
    trusting.wait_for_line("\"status\":200", SOON).await;
    let mut other = poll().spawn();
    let line = other.wait_for_line("poll_failed", SOON).await;
    assert!(line.contains("certificate"), "{line}");
}

#[tokio::test]
async fn a_renewed_certificate_is_served_after_sighup_and_a_wrong_one_is_not() {
    let papers = Papers::issue();
    let address = free();
    let mut server = papers.serve(address).await;
    let data = ("LEASEHOLD_DATA_DIR", papers.data().display().to_string());
    let url = format!("https://localhost:{}", address.port());
    let trusts = async |ca: &str| {
        let arguments = ["lease", "ls", "--server", &url, "--ca-file", ca];
        run(&arguments, std::slice::from_ref(&data)).await.code == 0
    };
    assert!(trusts(&papers.file("ca.pem")).await);
    let renewed = Papers::issue();
    let replace = |name: &str, from: &Papers| {
        std::fs::copy(from.file(name), papers.file(name)).expect("copied");
    };
    // A key that does not belong to the certificate changes nothing.
    replace("key.pem", &renewed);
    server.signal(nix::sys::signal::Signal::SIGHUP);
    server.wait_for_line("certificate not reloaded", SOON).await;
    assert!(trusts(&papers.file("ca.pem")).await);
    replace("cert.pem", &renewed);
    server.signal(nix::sys::signal::Signal::SIGHUP);
    server.wait_for_line("certificate reloaded", SOON).await;
    assert!(trusts(&renewed.file("ca.pem")).await);
    assert!(!trusts(&papers.file("ca.pem")).await);
}
