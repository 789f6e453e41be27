//! PostgreSQL keeps the rules: the whole suite, each function on a schema of its own. All of them run
//! in one test, because every test process would start a server of its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lease::Authority;
use leasehold_store::{
    conformance::{CASES, Harness, Pace, RESTARTS, Restart, Step},
    postgres::{Options, Postgres},
};
use leasehold_testkit::{Database, Postgres as Server, wait};
use tokio::{
    sync::{Mutex, Semaphore},
    task::JoinSet,
};

/// How many functions of the suite run concurrently.
const AT_ONCE: usize = 8;

/// A backend of its own in a shared database.
struct Backend {
    schema: String,
    database: Database,
    authority: Arc<dyn Authority>,
}

impl Backend {
    async fn new(database: Database) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let schema = format!("home_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let url = format!("{}?schema={schema}&leasehold_connections=3", database.url());
        let authority = open(&url).await;
        Self {
            schema,
            database,
            authority,
        }
    }
}

async fn open(url: &str) -> Arc<dyn Authority> {
    let options: Options = url.parse().expect("a well-formed URL");
    Arc::new(Postgres::open(options).await.expect("the store opens"))
}

impl Harness for Backend {
    fn authority(&self) -> Arc<dyn Authority> {
        self.authority.clone()
    }

    fn pace(&self) -> Pace {
        Pace::REAL
    }

    fn pass(&self, millis: u64) -> Step<'_, ()> {
        Box::pin(tokio::time::sleep(Duration::from_millis(millis)))
    }

    fn forget_history(&self) -> Step<'_, bool> {
        Box::pin(async move {
            let forget = r#"[{"forget":{"most":100000,"history_ms":999999999,"history_events":0,"idle_ms":999999999,"from":""}}]"#;
            let sql = format!(
                "SET search_path = {}; SELECT {}('test', false, false, 'live', '{forget}', '{{}}', '{{}}')",
                self.schema,
                self.database
                    .url()
                    .parse::<Options>()
                    .expect("a well-formed URL")
                    .entry_point()
            );
            self.database.psql(&sql).await;
            true
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_rule_of_the_suite_holds_on_postgresql() {
    // The functions of the suite stay on one thread; what the store spawns does not.
    tokio::task::LocalSet::new().run_until(all_rules()).await;
}

async fn all_rules() {
    let database = Server::shared().await;
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    let mut names = std::collections::HashMap::new();
    for (name, case) in CASES {
        let (database, turns) = (database.clone(), turns.clone());
        let task = running.spawn_local(async move {
            let _turn = turns.acquire_owned().await.expect("never closed");
            let backend = Backend::new(database).await;
            case(&backend).await;
        });
        names.insert(task.id(), *name);
    }
    let mut broken = Vec::new();
    while let Some(ended) = running.join_next_with_id().await {
        if let Err(failure) = ended {
            broken.push(names[&failure.id()]);
        }
    }
    broken.sort_unstable();
    assert!(
        broken.is_empty(),
        "{} rules are broken: {broken:#?}",
        broken.len()
    );
}

/// A database of its own, which is stopped and killed.
struct Restarted {
    server: Arc<Mutex<Server>>,
    authority: Arc<dyn Authority>,
}

impl Harness for Restarted {
    fn authority(&self) -> Arc<dyn Authority> {
        self.authority.clone()
    }

    fn pace(&self) -> Pace {
        Pace::REAL
    }

    fn pass(&self, millis: u64) -> Step<'_, ()> {
        Box::pin(tokio::time::sleep(Duration::from_millis(millis)))
    }

    fn restart(&self, how: Restart, down_ms: u64) -> Step<'_, ()> {
        let (server, authority) = (self.server.clone(), self.authority.clone());
        let handle = tokio::runtime::Handle::current();
        // On a thread of its own: what the kit does there does not move between threads.
        let restarted = tokio::task::spawn_blocking(move || {
            handle.block_on(async move {
                let mut server = server.lock().await;
                match how {
                    Restart::Stop => server.stop().await,
                    Restart::Crash => server.kill9(),
                }
                tokio::time::sleep(Duration::from_millis(down_ms)).await;
                server.restart().await;
                wait::until(
                    Duration::from_secs(20),
                    "the store to be back",
                    async || authority.now().await.is_ok(),
                )
                .await;
            });
        });
        Box::pin(async move { restarted.await.expect("the server restarts") })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn l14_restarts_of_the_database_lose_nothing() {
    let server = Arc::new(Mutex::new(Server::start().await));
    for (number, (name, case)) in RESTARTS.iter().enumerate() {
        println!("{name}");
        let url = server.lock().await.url();
        let authority = open(&format!("{url}?schema=restarted_{number}")).await;
        case(&Restarted {
            server: server.clone(),
            authority,
        })
        .await;
    }
}
