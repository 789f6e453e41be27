//! Authorities around another one: one that fails the test on any write, which a rejected request must never
//! reach, and one that counts what it is asked.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::StreamExt as _;
use lease::{Answer, Authority, Capabilities, Command, Outcome, Query, View, Watch, Watching};

/// Passes reads on, counts writes and refuses them.
pub struct Guarded {
    pub inner: Arc<dyn Authority>,
    pub writes: AtomicUsize,
}

impl Guarded {
    pub fn new(inner: Arc<dyn Authority>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            writes: AtomicUsize::new(0),
        })
    }
}

impl Authority for Guarded {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn decide(&self, _: Command) -> Answer<'_, Outcome> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Err(lease::Error::Broken("a write reached the store".into())) })
    }

    fn look(&self, query: Query) -> Answer<'_, View> {
        self.inner.look(query)
    }

    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        self.inner.watch(watching)
    }
}

/// Passes everything on and counts the questions.
pub struct Counted {
    pub inner: Arc<dyn Authority>,
    pub looks: AtomicUsize,
    /// How many watches are open.
    pub watches: Arc<AtomicUsize>,
}

impl Counted {
    pub fn new(inner: Arc<dyn Authority>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            looks: AtomicUsize::new(0),
            watches: Arc::default(),
        })
    }
}

impl Authority for Counted {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn decide(&self, command: Command) -> Answer<'_, Outcome> {
        self.inner.decide(command)
    }

    fn look(&self, query: Query) -> Answer<'_, View> {
        if matches!(query, Query::LeaseById(_)) {
            self.looks.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.look(query)
    }

    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        Box::pin(async {
            let watch = self.inner.watch(watching).await?;
            self.watches.fetch_add(1, Ordering::SeqCst);
            let open = Open(self.watches.clone());
            let counted = watch.inspect(move |_| {
                let _ = &open;
            });
            Ok(Box::pin(counted) as Watch)
        })
    }
}

/// One watch that is counted.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
