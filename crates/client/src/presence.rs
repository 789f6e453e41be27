//! Presence: a lease by which a process shows that it is there. It is announced, kept, and announced
//! again whenever it was lost; meanwhile whoever depends on it does not begin anything new.

use std::sync::{Arc, Mutex, PoisonError};

use lease::{Acquire, Cause, Holder, Key};
use leasehold_clock::Backoff;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::keeper::{self, Guard, Keeper};

/// The shortest and the longest pause between attempts to announce.
const PAUSE_MS: (u64, u64) = (100, 2_000);

/// Whether a process is announced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Announced {
    /// Not yet, or not any more; it is being announced.
    Absent,
    /// It is.
    Present,
    /// Another process has the name: it is tried again until that one is gone.
    Taken(Holder),
    /// The authority does not allow it. Tried again, rarely.
    Refused(lease::Error),
}

/// A process's presence. Dropping it gives it back.
pub struct Presence {
    key: Key,
    guard: Arc<Mutex<Option<Guard>>>,
    announced: watch::Receiver<Announced>,
    end: CancellationToken,
}

impl Presence {
    /// Begins to announce. `request` names one key, and the ttl that presence has from now on, also
    /// after it was lost. Its holder's proven death ends it (L15).
    ///
    /// # Panics
    /// When the request names no key, or outside of a tokio runtime.
    pub fn start(keeper: Keeper, mut request: Acquire) -> Self {
        request.release_on_death = true;
        let (announce, announced) = watch::channel(Announced::Absent);
        let guard = Arc::new(Mutex::new(None));
        let end = CancellationToken::new();
        let key = request
            .want
            .keys()
            .first()
            .cloned()
            .expect("a presence has one key");
        tokio::spawn({
            let (guard, end) = (guard.clone(), end.clone());
            async move {
                end.run_until_cancelled(run(keeper, request, &guard, &announce))
                    .await;
                announce.send_replace(Announced::Absent);
            }
        });
        Self {
            key,
            guard,
            announced,
            end,
        }
    }

    /// What is announced.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Whether the process is announced at this very moment: a comparison with the deadline (L10).
    pub fn is_present(&self) -> bool {
        lock(&self.guard).as_ref().is_some_and(Guard::is_owned)
    }

    /// Changes whenever presence does. For decisions take [`Presence::is_present`].
    pub fn watch(&self) -> watch::Receiver<Announced> {
        self.announced.clone()
    }

    /// Waits until there is something definite: present, taken, or refused.
    pub async fn settled(&self) -> Announced {
        let mut announced = self.announced.clone();
        let settled = announced.wait_for(|it| *it != Announced::Absent).await;
        settled.map_or(Announced::Absent, |it| it.clone())
    }

    /// Gives presence back and waits for the answer. It is not announced again.
    pub async fn withdraw(&self) -> Result<(), lease::Error> {
        self.end.cancel();
        // The announcing task has the sender: without it, nothing is announced any more.
        let mut announced = self.announced.clone();
        while announced.changed().await.is_ok() {}
        let guard = lock(&self.guard).take();
        match guard {
            Some(guard) => guard.release().await.map(drop),
            None => Ok(()),
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

/// Every critical section leaves a whole value behind.
fn lock(guard: &Mutex<Option<Guard>>) -> std::sync::MutexGuard<'_, Option<Guard>> {
    guard.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn run(
    keeper: Keeper,
    request: Acquire,
    held: &Mutex<Option<Guard>>,
    announced: &watch::Sender<Announced>,
) {
    let clock = keeper.clock().clone();
    let mut backoff = Backoff::new(PAUSE_MS.0, PAUSE_MS.1);
    let report = |state: Announced| {
        announced.send_if_modified(|current| {
            let changed = *current != state;
            *current = state;
            changed
        });
    };
    loop {
        let state = match keeper.acquire(request.clone()).await.map(|mut it| it.pop()) {
            Ok(Some(guard)) => {
                backoff.reset();
                let lost = guard.lost();
                *lock(held) = Some(guard);
                report(Announced::Present);
                let why = lost.await;
                tracing::warn!(key = %request.want.keys()[0], %why, "presence lost; announcing again");
                *lock(held) = None;
                Announced::Absent
            }
            Ok(None) | Err(keeper::Error::Lost(_)) => Announced::Absent,
            Err(keeper::Error::Refused(refusal)) => match refusal.cause {
                Cause::Held { holder, .. } if holder != *keeper.holder() => {
                    Announced::Taken(holder)
                }
                _ => Announced::Absent,
            },
            Err(keeper::Error::Failed(error)) if !error.is_retryable() => Announced::Refused(error),
            Err(keeper::Error::Failed(error)) => {
                tracing::debug!(%error, "presence cannot be announced yet");
                Announced::Absent
            }
            Err(keeper::Error::Stopped) => return,
        };
        report(state);
        backoff.pause(&*clock).await;
    }
}
