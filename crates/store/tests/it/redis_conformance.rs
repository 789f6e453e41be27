//! Redis, on one server that keeps every write on disk, passes the suite: stops, crashes and a
//! history that forgets included.

use std::{sync::Arc, time::Duration};

use lease::Authority;
use leasehold_store::{
    conformance::{Harness, Pace, Restart, Step},
    redis::{Options, Redis},
};
use leasehold_testkit::{redis::Redis as Server, wait};
use tokio::sync::Mutex;

struct OneServer {
    server: Arc<Mutex<Server>>,
    store: Redis,
}

impl OneServer {
    async fn new() -> Self {
        let server = Server::options().persistent().start().await;
        let store = Redis::open(Options::parse(&server.url()).expect("an address"))
            .await
            .expect("the store opens");
        Self {
            server: Arc::new(Mutex::new(server)),
            store,
        }
    }
}

impl Harness for OneServer {
    fn authority(&self) -> Arc<dyn Authority> {
        Arc::new(self.store.clone())
    }

    fn pace(&self) -> Pace {
        Pace::REAL
    }

    fn pass(&self, millis: u64) -> Step<'_, ()> {
        Box::pin(tokio::time::sleep(Duration::from_millis(millis)))
    }

    fn restart(&self, how: Restart, down_ms: u64) -> Step<'_, ()> {
        let (server, store) = (self.server.clone(), self.store.clone());
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
                    Duration::from_secs(10),
                    "the store to be back",
                    async || store.now().await.is_ok(),
                )
                .await;
            });
        });
        Box::pin(async move { restarted.await.expect("the server restarts") })
    }

    fn forget_history(&self) -> Step<'_, bool> {
        Box::pin(async move {
            let server = self.server.lock().await;
            server
                .cli(&["XTRIM", "leasehold:events", "MAXLEN", "0"])
                .await;
            true
        })
    }
}

leasehold_store::conformance_tests!(OneServer::new().await, restarts);
leasehold_store::oracle_test!(OneServer::new().await);
