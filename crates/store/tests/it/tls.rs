//! Encrypted ways to the databases, with a certificate authority of one's own; and a proxy that must
//! not stand in between.

use std::sync::Arc;

use lease::{Acquire, Acquired, Holder, Ttl};
use leasehold_clock::System;
use leasehold_store::{Options, Store};
use leasehold_testkit::{Dir, Issuer, PgBouncer, Postgres, Redis, port};

async fn open(url: &str) -> Result<Store, String> {
    let url = url.parse().expect("a store's URL");
    leasehold_store::open(&url, Options::default(), Arc::new(System))
        .await
        .map_err(|error| error.to_string())
}

async fn grants(store: &Store) {
    let holder = Holder::new("worker", "1").expect("a holder");
    let ttl = Ttl::from_secs(30).expect("a ttl");
    let request = Acquire::one("job:a".parse().expect("a key"), holder, ttl);
    let acquired = store.authority().acquire(request).await;
    let acquired = acquired.expect("an answer");
    assert!(matches!(acquired, Acquired::Granted { .. }), "{acquired:?}");
}

/// Two authorities, one of which nobody should trust.
struct Trust {
    dir: Dir,
    ours: Issuer,
}

impl Trust {
    fn new() -> Self {
        let dir = Dir::new("trust");
        let ours = Issuer::new();
        dir.write("ours.pem", ours.pem()).expect("written");
        dir.write("other.pem", Issuer::new().pem())
            .expect("written");
        Self { dir, ours }
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_reached_with_tls_and_only_with_the_right_authority() {
    let trust = Trust::new();
    let issued = trust.ours.issue(&["localhost", "127.0.0.1"]);
    let (certificate, key) = issued.write(trust.dir.path()).expect("written");
    let port = port::free();
    let _server = Redis::options()
        .set("tls-port", port.to_string())
        .set("tls-cert-file", certificate.display().to_string())
        .set("tls-key-file", key.display().to_string())
        .set("tls-ca-cert-file", trust.file("ours.pem"))
        .set("tls-auth-clients", "no")
        .start()
        .await;
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("rediss://{host}:{port}/?ca={}", trust.file("ours.pem"));
        let store = open(&url)
            .await
            .unwrap_or_else(|error| panic!("{host}: {error}"));
        grants(&store).await;
    }
    // Another authority, the system's own, and none at all.
    for (url, said) in [
        (
            format!("rediss://127.0.0.1:{port}/?ca={}", trust.file("other.pem")),
            "certificate",
        ),
        (format!("rediss://127.0.0.1:{port}/"), "certificate"),
        (
            format!(
                "rediss://127.0.0.1:{port}/?ca={}",
                trust.file("missing.pem")
            ),
            "missing.pem",
        ),
    ] {
        let Err(error) = open(&url).await else {
            panic!("{url} must not be trusted")
        };
        assert!(error.contains(said), "{url}: {error}");
    }
    let plain: Result<leasehold_store::StoreUrl, _> = "redis://h?ca=/x.pem".parse();
    let error = plain.expect_err("without TLS there is nobody to trust");
    assert!(error.to_string().contains("rediss://"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_reached_with_tls_and_only_with_the_right_authority() {
    let trust = Trust::new();
    let issued = trust.ours.issue(&["localhost", "127.0.0.1"]);
    let server = Postgres::options().tls(issued).start().await;
    let port = server.port();
    let base = |host: &str, mode: &str, file: &str| {
        let file = trust.file(file);
        format!("postgres://postgres@{host}:{port}/postgres?sslmode={mode}&sslrootcert={file}")
    };
    for (host, mode) in [
        ("127.0.0.1", "verify-full"),
        ("localhost", "verify-full"),
        ("127.0.0.1", "require"),
    ] {
        let store = open(&base(host, mode, "ours.pem")).await;
        let store = store.unwrap_or_else(|error| panic!("{host} {mode}: {error}"));
        grants(&store).await;
        let encrypted = server
            .psql("SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'leasehold'")
            .await;
        assert_eq!(encrypted, "t", "every connection is encrypted");
    }
    for mode in ["verify-full", "require"] {
        let Err(error) = open(&base("127.0.0.1", mode, "other.pem")).await else {
            panic!("{mode}: another authority must not be trusted")
        };
        assert!(error.contains("certificate"), "{mode}: {error}");
    }
    // A server without TLS is not talked to in the clear.
    let plain = Postgres::start().await;
    let url = format!("{}?sslmode=require", plain.url());
    let error = open(&url).await.err().expect("TLS was asked for");
    assert!(error.contains("TLS"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_behind_a_transaction_pooling_proxy_is_refused() {
    let server = Postgres::start().await;
    // As it comes, it refuses the settings of a session; told to swallow them, it is found out.
    let strict = PgBouncer::start(&server, "extra_float_digits").await;
    let error = open(&strict.url()).await.err().expect("it must be refused");
    assert!(error.contains("a pooling proxy stands before"), "{error}");
    let lenient = PgBouncer::start(&server, "extra_float_digits,options").await;
    for attempt in 1..=3 {
        let error = open(&lenient.url())
            .await
            .err()
            .expect("it must be refused");
        assert!(
            error.contains("a proxy that pools by transaction")
                && error.contains("leasehold_allow=pooling_proxy"),
            "attempt {attempt}: {error}"
        );
    }
    let tables = server
        .psql("SELECT count(*) FROM pg_tables WHERE tablename = 'leases'")
        .await;
    assert_eq!(tables, "0", "nothing was made through it");
    open(&server.url())
        .await
        .expect("the server itself is fine");
}
