//! The same tests on every backend of the state: in memory on a clock moved by hand, and on a real
//! PostgreSQL and a real Redis, whose time runs by itself.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::{StreamExt as _, stream};
use lease::Authority;
use leasehold_testkit::{Postgres as PostgresServer, redis::Redis as RedisServer};

/// How many tests run concurrently on one service.
const AT_ONCE: usize = 4;

/// A test that has not begun yet.
pub type Case = Pin<Box<dyn Future<Output = ()>>>;

/// A service that holds the state.
#[derive(Clone)]
pub enum Backend {
    Postgres,
    Redis(Arc<RedisServer>),
}

tokio::task_local! {
    static BACKEND: Backend;
}

impl Backend {
    /// Where the test that runs now has its state; in memory unless set otherwise.
    pub fn current() -> Option<Self> {
        BACKEND.try_with(Self::clone).ok()
    }

    pub async fn redis() -> Self {
        Self::Redis(Arc::new(RedisServer::start().await))
    }

    /// An empty authority that nothing else uses.
    pub async fn open(&self) -> Arc<dyn Authority> {
        let [authority] = self.open_replicas().await;
        authority
    }

    /// An empty store that nothing else uses, opened by several replicas.
    pub async fn open_replicas<const N: usize>(&self) -> [Arc<dyn Authority>; N] {
        let mut replicas: Vec<Arc<dyn Authority>> = Vec::with_capacity(N);
        match self {
            Self::Postgres => {
                let options: leasehold_store::postgres::Options =
                    PostgresServer::shared().await.url().parse().unwrap();
                for _ in 0..N {
                    let store = leasehold_store::postgres::Postgres::open(options.clone()).await;
                    replicas.push(Arc::new(store.unwrap()));
                }
            }
            Self::Redis(server) => {
                static NUMBER: AtomicU64 = AtomicU64::new(1);
                let mut options = leasehold_store::redis::Options::parse(&server.url()).unwrap();
                options.prefix = format!("t{}:", NUMBER.fetch_add(1, Ordering::Relaxed));
                for _ in 0..N {
                    let store = leasehold_store::redis::Redis::open(options.clone()).await;
                    replicas.push(Arc::new(store.unwrap()));
                }
            }
        }
        let Ok(replicas) = replicas.try_into() else {
            unreachable!("as many as were asked for");
        };
        replicas
    }

    /// Runs tests here, a few at a time.
    pub async fn run(&self, cases: Vec<(&'static str, Case)>) {
        let running = cases.into_iter().map(|(name, case)| {
            BACKEND.scope(self.clone(), async move {
                case.await;
                eprintln!("passed: {name}");
            })
        });
        let mut running = stream::iter(running).buffer_unordered(AT_ONCE);
        while running.next().await.is_some() {}
    }
}

/// Makes tests of functions: each one in memory, and all of them on PostgreSQL and on Redis.
macro_rules! on_every_backend {
    ($($name:ident),* $(,)?) => {
        mod in_memory {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name().await;
                }
            )*
        }

        fn cases() -> Vec<(&'static str, crate::support::backends::Case)> {
            vec![$((stringify!($name), Box::pin($name()) as crate::support::backends::Case)),*]
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn all_of_it_on_postgresql() {
            crate::support::backends::Backend::Postgres.run(cases()).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn all_of_it_on_redis() {
            crate::support::backends::Backend::redis().await.run(cases()).await;
        }
    };
}
