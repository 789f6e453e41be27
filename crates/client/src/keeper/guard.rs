//! What a holder has in its hands while it owns a key.

use std::{fmt, sync::Arc};

use lease::{BootMillis, Key, Lease, Standing, Token};
use tokio::sync::{oneshot, watch};

use super::{Alive, Loss, State, state::Holding};

/// One lease. While it exists its keeper renews it; dropping it gives the lease back, in the
/// background and without blocking.
#[must_use = "dropping a guard gives its lease back"]
pub struct Guard {
    holding: Arc<Holding>,
    alive: Arc<Alive>,
    key: Key,
    released: bool,
}

impl Guard {
    pub(super) fn new(holding: Arc<Holding>, alive: Arc<Alive>) -> Self {
        let key = holding.reference().key;
        Self {
            holding,
            alive,
            key,
            released: false,
        }
    }

    /// Whether the lease may be trusted at this very moment: a comparison of the clock with the
    /// deadline, never a flag (L10). False in grace; see [`Guard::standing`].
    pub fn is_owned(&self) -> bool {
        self.holding.look() == Standing::Owned
    }

    /// Owned, in grace (the outage policy lets the work go on, L13), or over.
    pub fn standing(&self) -> Standing {
        self.holding.look()
    }

    /// What is owned.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The fencing token. Send it along with every effect.
    pub fn token(&self) -> Token {
        self.holding.token()
    }

    /// The lease as the authority last described it.
    pub fn lease(&self) -> Lease {
        self.holding.lease()
    }

    /// Until when the lease is trusted if no further renewal succeeds, on the keeper's clock.
    pub fn deadline(&self) -> BootMillis {
        self.holding.deadline()
    }

    /// When everything must have stopped if no further renewal succeeds: the deadline, or the end of
    /// the grace.
    pub fn stops_at(&self) -> BootMillis {
        self.holding.stops_at()
    }

    /// The states of this lease as they change. For showing and for logs; decisions are made with
    /// [`Guard::is_owned`].
    pub fn watch(&self) -> watch::Receiver<State> {
        self.holding.subscribe()
    }

    /// Resolves when the lease is over, with the reason. The future is on its own: it can be moved
    /// into another task, and it keeps to the deadline even when the keeper's tasks are stuck.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        let holding = self.holding.clone();
        let clock = self.alive.core.clock.clone();
        async move {
            let mut states = holding.subscribe();
            loop {
                if let Some(lost) = holding.lost() {
                    return lost;
                }
                tokio::select! {
                    // The sender lives in the holding, which this future keeps alive.
                    _ = states.changed() => {}
                    () = clock.sleep_until(holding.stops_at()) => {}
                }
            }
        }
    }

    /// Gives the lease back and waits for the authority's answer: `true` when it ended now, `false`
    /// when it was over before. Whoever stops waiting stops nothing: the release goes on.
    pub async fn release(mut self) -> Result<bool, lease::Error> {
        self.released = true;
        let (done, answer) = oneshot::channel();
        if !self.alive.core.give_back(&self.holding, Some(done)) {
            return Ok(false);
        }
        answer.await.unwrap_or_else(|_| {
            Err(lease::Error::Unknown(
                "the keeper ended before the release was answered".into(),
            ))
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.released {
            self.alive.core.give_back(&self.holding, None);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("key", &self.key)
            .field("token", &self.token())
            .field("standing", &self.standing())
            .finish_non_exhaustive()
    }
}
