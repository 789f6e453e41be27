//! The embedded authority on disk, on a clock moved by hand, passes the suite: stops, crashes and a
//! history that forgets included.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use lease::Authority;
use leasehold_clock::{Manual, UnixMillis};
use leasehold_store::{
    conformance::{Harness, Pace, Restart, Step},
    embedded::{Embedded, History, Options},
};
use tempfile::TempDir;

struct Disk {
    clock: Manual,
    history: History,
    now_running: Mutex<Running>,
}

struct Running {
    store: Embedded,
    dir: TempDir,
}

impl Disk {
    async fn new() -> Self {
        let clock = Manual::new(UnixMillis::new(1_700_000_000_000));
        let history = History::default();
        let dir = tempfile::tempdir().expect("a folder");
        let store = open(dir.path(), history, &clock).await;
        Self {
            clock,
            history,
            now_running: Mutex::new(Running { store, dir }),
        }
    }

    fn store(&self) -> Embedded {
        self.now_running.lock().expect("not poisoned").store.clone()
    }

    async fn reopen(&self, how: Restart, down_ms: u64, history: History) {
        let before = self.store();
        let image = tempfile::tempdir().expect("a folder");
        match how {
            Restart::Stop => {
                before.close().await.expect("it stops in good order");
                self.copy(image.path());
            }
            // What a crash leaves behind is what is in the files at that moment.
            Restart::Crash => self.copy(image.path()),
        }
        drop(before);
        self.clock.advance(down_ms);
        let store = open(image.path(), history, &self.clock).await;
        *self.now_running.lock().expect("not poisoned") = Running { store, dir: image };
    }

    fn copy(&self, to: &Path) {
        let running = self.now_running.lock().expect("not poisoned");
        for entry in std::fs::read_dir(running.dir.path()).expect("readable") {
            let entry = entry.expect("readable");
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
        }
    }
}

async fn open(dir: &Path, history: History, clock: &Manual) -> Embedded {
    let options = Options {
        history,
        // So few that slots move on all the time.
        recent_keys: 4,
        ..Options::at(dir)
    };
    Embedded::open(options, Arc::new(clock.clone()))
        .await
        .expect("the store opens")
}

impl Harness for Disk {
    fn authority(&self) -> Arc<dyn Authority> {
        Arc::new(self.store())
    }

    fn pace(&self) -> Pace {
        Pace::VIRTUAL
    }

    fn pass(&self, millis: u64) -> Step<'_, ()> {
        self.clock.advance(millis);
        Box::pin(tokio::task::yield_now())
    }

    fn restart(&self, how: Restart, down_ms: u64) -> Step<'_, ()> {
        Box::pin(self.reopen(how, down_ms, self.history))
    }

    fn forget_history(&self) -> Step<'_, bool> {
        let short = History {
            max_events: 1,
            ..self.history
        };
        Box::pin(async move {
            self.reopen(Restart::Stop, 0, short).await;
            true
        })
    }
}

leasehold_store::conformance_tests!(Disk::new().await, restarts);
leasehold_store::oracle_test!(Disk::new().await);
