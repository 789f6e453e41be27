//! Redis as the backend of the kernel: any number of servers share one truth, and none is special.
//!
//! Every command is one script, so that it is one atomic step, and Redis' own clock decides. The
//! keys that other programs read and write are exact (see `keys.rs`); a value that another program
//! set there is somebody else's lease and is respected.
//!
//! What Redis cannot promise is said in the capabilities: see [`Redis::open`].

mod address;
mod authority;
mod batch;
mod checks;
mod commands;
mod events;
mod expiry;
mod export;
mod failure;
mod feed;
mod history;
mod import;
mod keys;
mod layout;
mod link;
mod list;
mod options;
mod resolve;
mod scan;
mod scripts;
mod seals;
mod waits;
mod watch;
mod wire;

use std::sync::Arc;

use lease::{Capabilities, Error};
use tokio::{runtime::Handle, sync::OnceCell};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use address::{Address, Login};
pub(crate) use export::{Endpoint, maintenance_in};
pub use options::Options;

use batch::Batches;
use keys::Keys;
use link::{Call, Link};
use scan::Scans;
use scripts::Scripts;
use waits::Waits;

use crate::{leading::Leading, live::Live};

/// An authority whose state is in Redis.
#[derive(Clone)]
pub struct Redis {
    inner: Arc<Inner>,
    /// Ends the background tasks with the last clone.
    _stop: Arc<DropGuard>,
}

/// What commands and background tasks share.
struct Inner {
    keys: Keys,
    scripts: Scripts,
    link: Link,
    /// This server among those that share the store: new on every start.
    replica: String,
    waits: Waits,
    batches: Batches,
    feed: OnceCell<Live>,
    scans: Scans,
    capabilities: Capabilities,
    /// Whether this replica expires and seals for all of them.
    leading: Leading,
    runtime: Handle,
    stop: CancellationToken,
}

impl Redis {
    /// Connects, checks that this Redis can be trusted with leases, and begins the background work.
    ///
    /// Refuses a server that is too old or that may throw keys away when its memory is full. What
    /// it cannot promise otherwise is in [`Capabilities::caveats`].
    pub async fn open(options: Options) -> Result<Self, Error> {
        let keys = Keys::new(&options.prefix)?;
        let link = Link::new(&options, &keys);
        let capabilities = checks::run(&link, &options).await?;
        let stop = CancellationToken::new();
        let inner = Arc::new(Inner {
            scripts: Scripts::new(&keys, &options),
            keys,
            link,
            replica: uuid::Uuid::new_v4().simple().to_string(),
            waits: Waits::default(),
            batches: Batches::default(),
            feed: OnceCell::new(),
            scans: Scans::default(),
            capabilities,
            leading: Leading::new(stop.clone()),
            runtime: Handle::current(),
            stop: stop.clone(),
        });
        // The first script gives a new store its base revision.
        inner.history(u64::MAX, 0).await?;
        waits::start(&inner).await;
        if options.housekeeping {
            expiry::start(&inner);
        }
        Ok(Self {
            inner,
            _stop: Arc::new(stop.drop_guard()),
        })
    }

    /// One round of what the replica with the leadership does: what lapsed expires, waits that are over
    /// end, and idle keys are forgotten. For tests that are their own timer.
    #[cfg(feature = "conformance")]
    pub async fn tick(&self) -> Result<(), Error> {
        expiry::tick(&self.inner, false).await.map(drop)
    }

    /// The same from an address: see [`Options::parse`].
    pub async fn open_url(url: &str) -> Result<Self, Error> {
        Self::open(Options::parse(url)?).await
    }

    /// Stops, and gives its leadership up: another replica takes it immediately.
    pub async fn close(&self) {
        self.inner.leading.resign().await;
    }
}

impl Inner {
    fn call(&self) -> Call {
        Call::new(&self.keys)
    }
}
