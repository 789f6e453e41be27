//! PostgreSQL keeps the rules: the whole suite, each function on a schema of its own. All of them run
//! in one test, because every test process would start a server of its own.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lease::Authority;
use leasehold_store::{
    conformance::{CASES, Harness, Pace, Restart, Step},
    postgres::{Options, Postgres},
};
use leasehold_testkit::{Database, Postgres as Server};
use tokio::{sync::Semaphore, task::JoinSet};

/// How many functions of the suite run at once.
const AT_ONCE: usize = 8;

/// A home of its own in a shared database.
struct Home {
    url: String,
    schema: String,
    database: Database,
    authority: Mutex<Arc<dyn Authority>>,
}

impl Home {
    async fn new(database: Database) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let schema = format!("home_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let url = format!("{}?schema={schema}&leasehold_connections=3", database.url());
        let authority = Mutex::new(open(&url).await);
        Self {
            url,
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

impl Harness for Home {
    fn authority(&self) -> Arc<dyn Authority> {
        self.authority.lock().expect("not poisoned").clone()
    }

    fn pace(&self) -> Pace {
        Pace::REAL
    }

    fn pass(&self, millis: u64) -> Step<'_, ()> {
        Box::pin(tokio::time::sleep(Duration::from_millis(millis)))
    }

    /// A replica goes and another comes: the database itself is restarted in the fault tests.
    fn restart(&self, _how: Restart, down_ms: u64) -> Step<'_, bool> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(down_ms)).await;
            let next = open(&self.url).await;
            *self.authority.lock().expect("not poisoned") = next;
            true
        })
    }

    fn forget_history(&self) -> Step<'_, bool> {
        Box::pin(async move {
            let forget = r#"[{"forget":{"most":100000,"history_ms":999999999,"history_events":0,"idle_ms":999999999,"from":""}}]"#;
            let sql = format!(
                "SET search_path = {}; SELECT lh_apply('test', false, false, 'live', '{forget}')",
                self.schema
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
            let home = Home::new(database).await;
            case(&home).await;
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
