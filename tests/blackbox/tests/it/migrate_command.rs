//! `leasehold migrate` as people use it: stop, look, move, start; also killed in the middle.

use std::time::Duration;

use lease::{
    Acquire, Acquired, Authority, Holder, Key, Lease, Renew, Renewal, Renewals, Token, Ttl, Want,
};
use leasehold_client::{Client, Options, Remote};
use leasehold_testkit::{Postgres, Proxy, Redis};

use crate::cli_support::{Ran, SOON, Server, plain, run};

/// How many leases the store has that is moved: several pages.
const LEASES: usize = 2_560;

fn remote(server: &Server) -> Remote {
    let token = std::fs::read_to_string(server.data().join("admin.token")).expect("made");
    let options = Options::new(format!("http://{}", server.address)).token(token.trim());
    Remote::new(Client::new(options).expect("a client"))
}

/// Leases with a long life.
async fn fill(remote: &Remote, leases: usize) -> Vec<Lease> {
    let holder = Holder::new("worker", "1").expect("a holder");
    let ttl = Ttl::from_secs(600).expect("a ttl");
    let mut held = Vec::new();
    let keys: Vec<Key> = (0..leases)
        .map(|number| Key::new("job", &format!("{number:05}")).expect("a key"))
        .collect();
    for keys in keys.chunks(Acquire::MAX_KEYS) {
        let request = Acquire::of(Want::All(keys.to_vec()), holder.clone(), ttl);
        match remote.acquire(request).await.expect("an answer") {
            Acquired::Granted { leases, .. } => held.extend(leases),
            Acquired::Refused(refusal) => panic!("{refusal:?}"),
        }
    }
    held
}

/// Everything can be renewed under its token.
async fn check(remote: &Remote, held: &[Lease]) {
    let renew = Renew {
        holder: held[0].holder.clone(),
        leases: Renewals::These(held.iter().map(Renewal::of).collect()),
    };
    let renewed = remote.renew(renew).await.expect("an answer");
    assert_eq!(renewed.len(), held.len());
    for (renewed, before) in renewed.iter().zip(held) {
        let kept = renewed.outcome.as_ref();
        let kept = kept.unwrap_or_else(|loss| panic!("{}: {loss:?}", before.key));
        assert_eq!((kept.token, kept.id), (before.token, before.id));
    }
}

async fn stop(server: &mut Server) {
    server.child.sigterm();
    server.child.wait(SOON).await;
}

async fn migrate(from: &str, to: &str, more: &[&str]) -> Ran {
    let mut arguments = vec!["migrate", "--from", from, "--to", to];
    arguments.extend(more);
    run(&arguments, &[]).await
}

async fn serve_is_refused(store: &str, because: &str) {
    let dir = leasehold_testkit::Dir::new("refused");
    let data = dir.path().display().to_string();
    let address = format!("127.0.0.1:{}", leasehold_testkit::port::free());
    let arguments = [
        "serve",
        "--store",
        store,
        "--data-dir",
        &data,
        "--listen",
        &address,
    ];
    let refused = run(&arguments, &[]).await;
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains(because), "{}", refused.stderr);
}

/// Where a server without further words keeps its state.
fn source_of(server: &Server) -> String {
    format!("embedded:{}", server.data().display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_a_store_moves_to_postgres_and_on_to_redis_by_command() {
    let postgres = Postgres::start().await;
    let redis = Redis::start().await;
    let mut server = Server::start().await;
    let held = fill(&remote(&server), 20).await;
    let source = source_of(&server);
    let target = postgres.url();
    let busy = migrate(&source, &target, &[]).await;
    assert_eq!(busy.code, 1, "{}", busy.stderr);
    assert!(
        busy.stderr.contains("is in use by process"),
        "{}",
        busy.stderr
    );
    stop(&mut server).await;

    let look = migrate(&source, &target, &["--dry-run", "--json"]).await;
    assert_eq!(look.code, 0, "{}", look.stderr);
    let look: serde_json::Value = serde_json::from_str(&look.stdout).expect("JSON");
    assert_eq!(
        (&look["leases"], &look["dry_run"]),
        (&20.into(), &true.into())
    );
    let tables = "SELECT count(*) FROM pg_tables WHERE tablename = 'leases'";
    assert_eq!(postgres.psql(tables).await, "0", "a look changes nothing");

    let moved = migrate(&source, &target, &[]).await;
    assert_eq!(moved.code, 0, "{}", moved.stderr);
    assert!(
        moved.stdout.contains("with a live lease  20"),
        "{}",
        moved.stdout
    );
    assert!(moved.stderr.contains("keys "), "{}", moved.stderr);
    serve_is_refused(&source, "it was moved to postgres://").await;
    let again = migrate(&source, &target, &[]).await;
    assert_eq!(again.code, 80, "{}", again.stderr);
    assert!(again.stderr.contains("it was moved to"), "{}", again.stderr);

    let mut server = Server::start_with(&["--store", &target]).await;
    check(&remote(&server), &held).await;
    let secret = format!(
        "{}?leasehold_connections=4",
        target.replace("postgres@", "postgres:hunter2@")
    );
    let busy = migrate(&secret, &redis.url(), &[]).await;
    assert_eq!(busy.code, 80, "{}", busy.stderr);
    assert!(
        busy.stderr.contains("a server is at work"),
        "{}",
        busy.stderr
    );
    stop(&mut server).await;
    let moved = migrate(&secret, &redis.url(), &["--json"]).await;
    assert_eq!(moved.code, 0, "{}", moved.stderr);
    let report: serde_json::Value = serde_json::from_str(&moved.stdout).expect("JSON");
    assert_eq!(report["leases"], 20);
    assert!(!moved.stdout.contains("hunter2") && !moved.stderr.contains("hunter2"));
    let server = Server::start_with(&["--store", &redis.url()]).await;
    check(&remote(&server), &held).await;
}

/// Killed with what it copied half done, again and again; the same command finishes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_kill_9_in_the_middle_of_a_move_and_then_again() {
    let postgres = Postgres::start().await;
    let redis = Redis::start().await;
    let mut server = Server::start().await;
    let held = fill(&remote(&server), LEASES).await;
    stop(&mut server).await;
    let mut source = source_of(&server);
    // The second move reads through the proxy of the first.
    let (mut proxies, mut expected) = (Vec::new(), LEASES);
    for (address, scheme) in [(postgres.addr(), "postgres"), (redis.addr(), "redis")] {
        let proxy = Proxy::start(address).await;
        let target = match scheme {
            "postgres" => format!("postgres://postgres@{}/postgres", proxy.addr()),
            _ => format!("redis://{}", proxy.addr()),
        };
        for line in ["events 500", "events 2", "keys ", "keys 1"] {
            proxy.delay(Duration::from_millis(15));
            let mut child = plain(&["migrate", "--from", &source, "--to", &target]).spawn();
            child.wait_for_line(line, SOON).await;
            child.kill9();
            proxy.pass();
            serve_is_refused(&target, "is not finished").await;
            serve_is_refused(&source, "it is being moved to").await;
        }
        let moved = migrate(&source, &target, &["--json"]).await;
        assert_eq!(moved.code, 0, "{}", moved.stderr);
        let report: serde_json::Value = serde_json::from_str(&moved.stdout).expect("JSON");
        assert_eq!(
            (&report["leases"], &report["resumed"]),
            (&expected.into(), &true.into())
        );
        let mut server = Server::start_with(&["--store", &target]).await;
        let remote = remote(&server);
        check(&remote, &held).await;
        let fresh = fill_one(&remote, "job:fresh").await;
        assert!(held.iter().all(|lease| lease.token < fresh), "L3");
        stop(&mut server).await;
        source = target;
        expected += 1;
        proxies.push(proxy);
    }
}

async fn fill_one(remote: &Remote, name: &str) -> Token {
    let holder = Holder::new("late", "1").expect("a holder");
    let ttl = Ttl::from_secs(60).expect("a ttl");
    let request = Acquire::one(name.parse().expect("a key"), holder, ttl);
    match remote.acquire(request).await.expect("an answer") {
        Acquired::Granted { leases, .. } => leases[0].token,
        Acquired::Refused(refusal) => panic!("{refusal:?}"),
    }
}
