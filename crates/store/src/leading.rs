//! Which replica of a shared store expires, forgets and seals for all of them.
//!
//! It is whoever holds the lease `leadership:expiry`, and it gives that up on a graceful stop, as every leader does.
//! It cannot wait for it in the queue of the key, as `Leadership` in `client` does: whoever waits behind a
//! holder that died is let in by the leader's own work. So each store asks on its own, and what its loop and
//! its owner share is here.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tokio::{runtime::Handle, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long giving the leadership up may take.
pub(crate) const RESIGN_LIMIT: Duration = Duration::from_secs(1);

/// A replica's part in the leadership of expiry.
pub(crate) struct Leading {
    leads: AtomicBool,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Leading {
    /// A candidate until `stop`.
    pub fn new(stop: CancellationToken) -> Self {
        Self {
            leads: AtomicBool::new(false),
            stop,
            tasks: TaskTracker::new(),
        }
    }

    /// Whether this replica leads.
    pub fn leads(&self) -> bool {
        self.leads.load(Ordering::Relaxed)
    }

    /// Notes whether it does.
    pub fn set(&self, leads: bool) {
        self.leads.store(leads, Ordering::Relaxed);
    }

    /// Runs the loop that asks, leads, and gives up after `stop`.
    pub fn start(&self, runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(work, runtime);
    }

    /// Stops, and waits until the leadership is given up, for [`RESIGN_LIMIT`] at most.
    pub async fn resign(&self) {
        self.stop.cancel();
        self.tasks.close();
        if timeout(RESIGN_LIMIT, self.tasks.wait()).await.is_err() {
            tracing::warn!("leadership of expiry not given up in time; it expires with its ttl");
        }
        self.set(false);
    }
}
