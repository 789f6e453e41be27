//! A real store that goes away at a chosen call, and comes back.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use lease::{
    Answer, Authority, Capabilities, Command, Error, Outcome, Query, View, Want, Watch, Watching,
};
use tokio::sync::watch;

/// What the store does with the chosen call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blow {
    /// It is gone before the call: nothing happened, and the caller knows.
    Before,
    /// It is gone after the call: everything happened, and nobody is notified.
    After,
}

/// When the store goes away, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The call at which it happens, counted from the first.
    pub at: usize,
    pub blow: Blow,
    pub outage: Duration,
}

/// Passes everything on to a real store, except while that is gone.
pub struct Faulty {
    inner: Arc<dyn Authority>,
    plan: Mutex<Option<Plan>>,
    calls: Mutex<Vec<&'static str>>,
    gone: watch::Sender<bool>,
    /// How many answers to requests for a slot of a pool are still to be lost.
    lose_slots: AtomicUsize,
}

impl Faulty {
    pub fn new(inner: Arc<dyn Authority>, plan: Option<Plan>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            plan: Mutex::new(plan),
            calls: Mutex::default(),
            gone: watch::Sender::new(false),
            lose_slots: AtomicUsize::new(0),
        })
    }

    /// The next so many requests for a slot of a pool are granted, and nobody is notified.
    pub fn lose_slots(&self, count: usize) {
        self.lose_slots.store(count, Ordering::SeqCst);
    }

    /// From now on, counted anew.
    pub fn plan(&self, plan: Option<Plan>) {
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = plan;
        self.calls().clear();
    }

    /// The calls so far.
    pub fn calls(&self) -> std::sync::MutexGuard<'_, Vec<&'static str>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves once the store is there.
    pub async fn back(&self) {
        let mut gone = self.gone.subscribe();
        gone.wait_for(|gone| !gone).await.unwrap();
    }

    /// The blow for this call, if it is the chosen one.
    fn enter(&self, name: &'static str) -> Option<Plan> {
        let mut calls = self.calls();
        calls.push(name);
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        plan.take_if(|plan| plan.at < calls.len())
    }

    fn go_away(&self, outage: Duration) {
        self.gone.send_replace(true);
        let gone = self.gone.clone();
        tokio::spawn(async move {
            tokio::time::sleep(outage).await;
            gone.send_replace(false);
        });
    }

    fn pass<'a, T: Send + 'a>(
        &'a self,
        name: &'static str,
        call: impl FnOnce() -> Answer<'a, T> + Send + 'a,
    ) -> Answer<'a, T> {
        Box::pin(async move {
            let blow = self.enter(name);
            if *self.gone.borrow() {
                return Err(unreachable());
            }
            match blow {
                None => call().await,
                Some(plan) if plan.blow == Blow::Before => {
                    self.go_away(plan.outage);
                    Err(unreachable())
                }
                Some(plan) => {
                    drop(call().await);
                    self.go_away(plan.outage);
                    Err(Error::Unknown("the answer was lost".into()))
                }
            }
        })
    }
}

fn unreachable() -> Error {
    Error::Unavailable("the store is gone".into())
}

impl Authority for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn decide(&self, command: Command) -> Answer<'_, Outcome> {
        let mut is_lost = false;
        if let Command::Acquire(request) = &command
            && matches!(request.want, Want::Any(_))
        {
            let fewer = |left: usize| left.checked_sub(1);
            let took = self
                .lose_slots
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
            is_lost = took.is_ok();
        }
        self.pass(command.name(), move || {
            Box::pin(async move {
                let answer = self.inner.decide(command).await;
                if is_lost {
                    Err(Error::Unknown("the answer was lost".into()))
                } else {
                    answer
                }
            })
        })
    }

    fn look(&self, query: Query) -> Answer<'_, View> {
        self.pass(query.name(), || self.inner.look(query))
    }

    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        self.pass("watch", move || {
            Box::pin(async move {
                let watch = self.inner.watch(watching).await?;
                let mut gone = self.gone.subscribe();
                let cut = async move { gone.wait_for(|gone| *gone).await.map(drop) };
                let ended = stream::once(async { Err(unreachable()) });
                Ok(Box::pin(watch.take_until(Box::pin(cut)).chain(ended)) as Watch)
            })
        })
    }
}
