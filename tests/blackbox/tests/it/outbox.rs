//! Events on their way to a consumer, with everything real: the broker goes away under load, and the
//! server is killed while it publishes.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_consumer::{Applied, Outcome, Settings, Store};
use leasehold_testkit::{Child, Dir, Postgres, RabbitMq, length, port, wait};
use serde_json::{Value, json};

use crate::cli_support::{SOON, plain};

/// How long the broker is away in an ordinary run and in a soak;
/// `LEASEHOLD_TEST_BROKER_AWAY_SECONDS` decides for it alone.
const AWAY_SECONDS: (u64, u64) = (5, 60);
/// Kills of the server while the backlog is on its way.
const KILLS: usize = 3;
/// Clients that acquire and release all the time, each with keys of its own.
const CLIENTS: usize = 4;
const KEYS_PER_CLIENT: usize = 3;
/// A pause of each client, so that the load is a load and no benchmark.
const BREATH: Duration = Duration::from_millis(15);
/// How long the last event may take: a killed server's leadership must lapse first, and the
/// backlog of a minute is long.
const DRAIN: Duration = Duration::from_secs(180);

struct World {
    dir: Dir,
    address: SocketAddr,
    postgres: Postgres,
    broker: RabbitMq,
    http: reqwest::Client,
}

impl World {
    async fn start() -> Self {
        let (postgres, broker) = tokio::join!(Postgres::start(), RabbitMq::start());
        Self {
            dir: Dir::new("outbox"),
            address: SocketAddr::from(([127, 0, 0, 1], port::free())),
            postgres,
            broker,
            http: reqwest::Client::builder().timeout(SOON).build().unwrap(),
        }
    }

    /// The server, as a process; again on the same address after it was killed.
    async fn serve(&self) -> Child {
        let mut child = plain(&["serve", "--log", "warn", "--store", &self.postgres.url()])
            .args(["--amqp", &self.broker.url()])
            .args(["--listen", &self.address.to_string(), "--data-dir"])
            .arg(self.dir.join("data"))
            .spawn();
        child.wait_for_line("listening on", SOON).await;
        child
    }

    fn settings(&self) -> Settings {
        Settings {
            amqp: self.broker.url(),
            queue: "test.outbox".to_owned(),
        }
    }

    fn api(&self) -> Api {
        let token = std::fs::read_to_string(self.dir.join("data").join("admin.token")).unwrap();
        Api {
            http: self.http.clone(),
            url: format!("http://{}/api/v1", self.address),
            token: token.trim().to_owned(),
        }
    }
}

/// Waits until more events have taken effect at the consumer, and returns how many.
async fn applied_more_than(store: &Store, count: u64) -> u64 {
    let what = format!("more than {count} events have arrived");
    wait::until_some(DRAIN, &what, async || {
        let (now, _) = store.progress().unwrap();
        (now > count).then_some(now)
    })
    .await
}

#[derive(Clone)]
struct Api {
    http: reqwest::Client,
    url: String,
    token: String,
}

impl Api {
    /// `None` when the server is away, or fails.
    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Option<Value> {
        let method = method.parse().unwrap();
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.url))
            .bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.ok()?;
        if !response.status().is_success() {
            return None;
        }
        response.json().await.ok()
    }

    /// What the server answers, as soon as it does: one that was just started may ask for patience.
    async fn read(&self, path: &str) -> Value {
        wait::until_some(SOON, path, async || self.call("GET", path, None).await).await
    }

    async fn newest(&self) -> u64 {
        let page = self.read("/events?limit=1").await;
        page["newest"].as_u64().unwrap()
    }

    /// The whole history up to a revision, but for the cursor's own record, which is not published.
    async fn history(&self, newest: u64) -> Vec<Applied> {
        let mut events = Vec::new();
        let mut after = 0;
        loop {
            let path = format!("/events?limit=1000&after={after}");
            let page = self.read(&path).await;
            assert_eq!(page["gap"], false, "the history is whole");
            for event in page["events"].as_array().unwrap() {
                if event["revision"].as_u64().unwrap() <= newest && event["kind"] != "outbox" {
                    events.push(Applied {
                        message_id: event["event_id"].as_str().unwrap().to_owned(),
                        key: event["key"].as_str().unwrap().to_owned(),
                        revision: event["revision"].as_u64().unwrap(),
                        token: event["token"].as_u64(),
                        event_type: event["event_type"].as_str().unwrap().to_owned(),
                    });
                }
            }
            after = page["next_after"].as_u64().unwrap();
            if page["more"] == false || after >= newest {
                return events;
            }
        }
    }
}

/// Acquires and releases until told to stop; returns every grant that was acknowledged.
async fn load(api: Api, number: usize, grants: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> Vec<u64> {
    let mut tokens = Vec::new();
    for turn in 0_usize.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let id = format!("c{number}.k{}", turn % KEYS_PER_CLIENT);
        let body =
            json!({"kind": "job", "id": id, "holder": format!("c{number}"), "ttl_seconds": 60});
        if let Some(lease) = api.call("POST", "/leases/acquire/", Some(body)).await {
            tokens.push(lease["token"].as_u64().unwrap());
            grants.fetch_add(1, Ordering::Relaxed);
            let path = format!("/leases/{}/release/", lease["lease_id"].as_str().unwrap());
            api.call("DELETE", &path, None).await;
        }
        tokio::time::sleep(BREATH).await;
    }
    tokens
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_a_consumer_has_every_event_once_and_in_order_after_outage_and_kills() {
    let (normal, soak) = AWAY_SECONDS;
    let away = length::pick_or("LEASEHOLD_TEST_BROKER_AWAY_SECONDS", normal, soak);
    let mut world = World::start().await;
    leasehold_consumer::declare(&world.settings())
        .await
        .unwrap();
    let open = || Store::open(&world.dir.join("consumer.sqlite3")).unwrap();
    let consumer = tokio::spawn(leasehold_consumer::run(world.settings(), open()));
    let store = open();
    let mut server = world.serve().await;
    let api = world.api();

    let (grants, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(load(api.clone(), number, grants.clone(), stop.clone())))
        .collect();
    applied_more_than(&store, 100).await;

    // The broker goes away, and nobody who wants a lease notices.
    world.broker.stop().await;
    let before = grants.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(away)).await;
    let granted = grants.load(Ordering::Relaxed) - before;
    assert!(
        granted > 20 * away,
        "only {granted} grants without a broker"
    );
    world.broker.restart().await;

    // The server dies in the middle of the backlog, and again in the middle of what is left.
    let (mut arrived, _) = store.progress().unwrap();
    let mut backlogs = Vec::new();
    for _ in 0..KILLS {
        arrived = applied_more_than(&store, arrived).await;
        // At once, with the rest of the batch unconfirmed.
        server.kill9();
        let (_, reached) = store.progress().unwrap();
        server = world.serve().await;
        backlogs.push(api.newest().await.saturating_sub(reached));
    }
    assert!(
        backlogs.iter().any(|backlog| *backlog > 100),
        "killed while publishing: {backlogs:?}"
    );
    stop.store(true, Ordering::Relaxed);
    let mut tokens = BTreeSet::new();
    for client in clients {
        tokens.extend(client.await.unwrap());
    }

    let newest = api.newest().await;
    let expected = api.history(newest).await;
    let last = expected.last().unwrap().revision;
    wait::until(DRAIN, "the last event arrives", async || {
        store.progress().unwrap().1 >= last
    })
    .await;
    let mut applied: Vec<Applied> = store
        .applied()
        .unwrap()
        .into_iter()
        .filter(|event| event.revision <= newest)
        .collect();
    let mut authorities = BTreeSet::new();
    for event in &mut applied {
        // The store's identity stands before the id that the history shows.
        let (authority, id) = event.message_id.rsplit_once('-').unwrap();
        authorities.insert(authority.to_owned());
        event.message_id = id.to_owned();
    }
    assert_eq!(authorities.len(), 1, "one store: {authorities:?}");
    assert_eq!(by_key(&applied), by_key(&expected));
    assert_eq!(applied.len(), expected.len(), "each once");
    let reported: BTreeSet<u64> = applied
        .iter()
        .filter(|event| event.event_type == "lease_acquired")
        .filter_map(|event| event.token)
        .collect();
    assert!(
        tokens.is_subset(&reported),
        "every acknowledged grant was told: {:?}",
        tokens.difference(&reported).collect::<Vec<_>>()
    );
    println!(
        "{} events, {} acknowledged grants ({granted} in {away} s without a broker), {} duplicates \
         dropped; backlog when killed: {backlogs:?}",
        applied.len(),
        tokens.len(),
        store.dropped(Outcome::Duplicate).unwrap(),
    );
    assert_eq!(
        store.dropped(Outcome::Stale).unwrap(),
        0,
        "the server sends none"
    );
    assert_eq!(
        store.dropped(Outcome::Late).unwrap(),
        0,
        "the server keeps the order"
    );
    assert!(!consumer.is_finished(), "it outlived everything");
    consumer.abort();
    drop(server);
}

/// The events of each key, in their order.
fn by_key(events: &[Applied]) -> BTreeMap<&str, Vec<&Applied>> {
    let mut keys: BTreeMap<&str, Vec<&Applied>> = BTreeMap::new();
    for event in events {
        keys.entry(&event.key).or_default().push(event);
    }
    keys
}
