//! A fleet of coordinators on one store, and what must always hold for it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt as _;
use lease::{Authority, Key, Transaction, Write, polling::TARGET};
use leasehold_agents::poller::{Coordinator, Options, Targets};
use leasehold_clock::System;
use leasehold_server::Server;
use leasehold_store::embedded::{self, Embedded};
use leasehold_testkit::{Database, Dir, Postgres, Redis, wait};

/// Long enough that a busy machine loses nothing, short enough for a test.
pub const TTL_MS: u64 = 3_000;
/// For what needs some rounds of everybody.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A store, and what keeps it alive.
pub struct Backend {
    pub authority: Arc<dyn Authority>,
    _service: Option<Service>,
}

/// What must not end before its store.
enum Service {
    Dir { _dir: Dir },
    Redis { _redis: Redis },
    Postgres { _database: Database },
}

/// Which backend of the state.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Memory,
    Disk,
    Redis,
    Postgres,
    /// A server over the in-memory store; instances reach it over HTTP.
    Http,
}

pub async fn backend(kind: Kind) -> Backend {
    let clock = Arc::new(System);
    match kind {
        Kind::Memory => Backend {
            authority: Arc::new(Embedded::memory(embedded::Options::default(), clock).unwrap()),
            _service: None,
        },
        Kind::Disk => {
            let dir = Dir::new("poller");
            let options = embedded::Options::at(dir.path());
            Backend {
                authority: Arc::new(Embedded::open(options, clock).await.unwrap()),
                _service: Some(Service::Dir { _dir: dir }),
            }
        }
        Kind::Http => {
            let store = Embedded::memory(embedded::Options::default(), clock.clone()).unwrap();
            let token = serde_json::json!({"token": "secret", "scopes": ["leases:admin"]});
            let server = Server::builder()
                .options(leasehold_server::Options {
                    listen: ([127, 0, 0, 1], 0).into(),
                    tokens: vec![serde_json::from_value(token).unwrap()],
                    ..leasehold_server::Options::default()
                })
                .authority(Arc::new(store))
                .clock(clock)
                .bind()
                .await
                .unwrap();
            let options = leasehold_client::Options::new(server.url()).token("secret");
            tokio::spawn(server.run(std::future::pending()));
            let client = leasehold_client::Client::new(options).unwrap();
            Backend {
                authority: Arc::new(leasehold_client::Remote::new(client)),
                _service: None,
            }
        }
        Kind::Redis => {
            let redis = Redis::start().await;
            opened(&redis.url(), Some(Service::Redis { _redis: redis })).await
        }
        Kind::Postgres => {
            let database = Postgres::shared().await;
            let url = database.url();
            let service = Service::Postgres {
                _database: database,
            };
            opened(&url, Some(service)).await
        }
    }
}

/// A backend whose Redis can be paused.
pub async fn on_redis() -> (Backend, Redis) {
    let redis = Redis::start().await;
    let backend = opened(&redis.url(), None).await;
    (backend, redis)
}

async fn opened(url: &str, service: Option<Service>) -> Backend {
    let url = url.parse().unwrap();
    let options = leasehold_store::Options::default();
    let store = leasehold_store::open(&url, options, Arc::new(System))
        .await
        .unwrap();
    Backend {
        authority: store.authority(),
        _service: service,
    }
}

impl Backend {
    /// Writes target documents into the store.
    pub async fn put(&self, documents: impl IntoIterator<Item = (String, Option<String>)>) {
        let writes: Vec<Write> = documents
            .into_iter()
            .map(|(id, value)| Write {
                key: Key::new(TARGET, &id).unwrap(),
                value: value.map(Into::into),
                note: None,
            })
            .collect();
        for batch in writes.chunks(Transaction::MAX_ITEMS) {
            let transaction = Transaction {
                writes: batch.to_vec(),
                ..Transaction::default()
            };
            self.authority.commit(transaction).await.unwrap();
        }
    }

    pub async fn put_targets(&self, count: usize) {
        self.put((1..=count).map(|n| {
            let id = format!("session-{n}");
            let document = format!(r#"{{"id":"{id}","isPaused":false}}"#);
            (id, Some(document))
        }))
        .await;
    }

    pub async fn start(&self, options: Options) -> Coordinator {
        Coordinator::start(
            self.authority.clone(),
            Arc::new(System),
            Targets::Store,
            options,
        )
        .await
        .unwrap()
    }

    /// Starts one that hears no events about targets: it knows of their changes only by looking.
    pub async fn start_deaf_to_targets(&self, options: Options) -> Coordinator {
        let authority = Arc::new(Deaf(self.authority.clone()));
        Coordinator::start(authority, Arc::new(System), Targets::Store, options)
            .await
            .unwrap()
    }

    pub async fn start_many(&self, count: usize) -> Vec<Coordinator> {
        let starts = (0..count).map(|_| self.start(Options::with_ttl_ms(TTL_MS)));
        futures_util::future::join_all(starts).await
    }
}

/// How many targets each instance owns, smallest first.
pub fn loads(fleet: &[Coordinator]) -> Vec<usize> {
    let mut loads: Vec<usize> = fleet.iter().map(|it| it.owned().len()).collect();
    loads.sort_unstable();
    loads
}

/// Waits until the loads are these, smallest first.
pub async fn until_loads(fleet: &[Coordinator], expected: &[usize]) {
    let reached = wait::within(PATIENCE, async || (loads(fleet) == expected).then_some(())).await;
    assert!(
        reached.is_some(),
        "expected {expected:?}, found {:?}",
        loads(fleet)
    );
}

/// Watches all the time that no target has two owners. What is compared is what a poll would be
/// decided by.
pub struct Watchdog {
    doubles: Arc<AtomicUsize>,
    looks: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Watchdog {
    pub fn over(fleet: &[Coordinator]) -> Self {
        let fleet: Vec<Coordinator> = fleet.to_vec();
        let doubles = Arc::new(AtomicUsize::new(0));
        let looks = Arc::new(AtomicUsize::new(0));
        let (found, seen) = (doubles.clone(), looks.clone());
        let task = tokio::spawn(async move {
            loop {
                let mut owners: BTreeMap<String, usize> = BTreeMap::new();
                for (place, instance) in fleet.iter().enumerate() {
                    for target in instance.owned() {
                        // The lists are a moment apart: only two owners at one moment count.
                        if let Some(other) = owners.insert(target.clone(), place)
                            && fleet[other].is_owned(&target)
                            && fleet[place].is_owned(&target)
                            && fleet[other].is_owned(&target)
                        {
                            found.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                seen.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        Self {
            doubles,
            looks,
            task,
        }
    }

    /// Ends the watch; nothing may have been found.
    pub async fn finish(self) {
        let looked = async || self.looks.load(Ordering::Relaxed) > 20;
        wait::until(PATIENCE, "somebody watched", looked).await;
        self.task.abort();
        assert_eq!(
            self.doubles.load(Ordering::Relaxed),
            0,
            "two owners at once"
        );
    }
}

/// A store whose stream says nothing about targets, as Redis' does when a foreign program writes them.
struct Deaf(Arc<dyn Authority>);

impl Authority for Deaf {
    fn capabilities(&self) -> lease::Capabilities {
        self.0.capabilities()
    }

    fn watch(&self, watching: lease::Watching) -> lease::Answer<'_, lease::Watch> {
        Box::pin(async move {
            let heard = self.0.watch(watching).await?.filter(|notice| {
                let of_target = matches!(
                    notice,
                    Ok(lease::Notice::Event(event)) if event.key.kind() == TARGET
                );
                std::future::ready(!of_target)
            });
            Ok(Box::pin(heard) as lease::Watch)
        })
    }

    fn decide(&self, command: lease::Command) -> lease::Answer<'_, lease::Outcome> {
        self.0.decide(command)
    }

    fn look(&self, query: lease::Query) -> lease::Answer<'_, lease::View> {
        self.0.look(query)
    }
}
