//! Leadership: a task that one process of many does is a lease. It is waited for in the authority's
//! queue, kept while the task runs, and given up immediately on a graceful stop, so that the next one
//! begins without waiting for the ttl.

use std::sync::Arc;

use lease::{Acquire, Authority, Clock, Error, Key, Ttl};
use leasehold_clock::Backoff;

use crate::keeper::{self, Guard, Keeper};

/// How long one place in the queue is kept before it is asked for again.
const WAIT_MS: u64 = 30_000;
/// How long a leader that stops waits for the answer to its resignation.
const RESIGN_MS: u64 = 2_000;

/// A candidate for one task.
pub struct Leadership {
    keeper: Keeper,
    request: Acquire,
}

impl Leadership {
    /// A candidate under a name that all candidates share; each has an incarnation of its own.
    pub fn new(
        authority: Arc<dyn Authority>,
        clock: Arc<dyn Clock>,
        key: Key,
        ttl: Ttl,
    ) -> Result<Self, lease::Invalid> {
        let holder = crate::new_holder(key.id())?;
        let options = keeper::Options {
            stop_limit_ms: RESIGN_MS,
            ..keeper::Options::default()
        };
        let keeper = Keeper::start(authority, holder, clock, options);
        let mut request = keeper.request(key, ttl);
        request.release_on_death = true;
        request.wait_ms = WAIT_MS;
        Ok(Self { keeper, request })
    }

    /// Waits until this process leads. The guard is the term of office: its task stops when
    /// [`Guard::lost`] resolves, and dropping it lets the next candidate in.
    ///
    /// Fails only when the authority will never allow it.
    pub async fn elected(&self) -> Result<Guard, Error> {
        let mut backoff = Backoff::new(100, 5_000);
        loop {
            match self.keeper.acquire(self.request.clone()).await {
                Ok(mut guards) => {
                    if let Some(guard) = guards.pop() {
                        tracing::info!(key = %guard.key(), token = %guard.token(), "leading");
                        return Ok(guard);
                    }
                }
                // The wait was over: there is a leader.
                Err(keeper::Error::Refused(refusal))
                    if matches!(refusal.cause, lease::Cause::Held { .. }) => {}
                Err(keeper::Error::Failed(error)) if !error.is_retryable() => return Err(error),
                Err(keeper::Error::Stopped) => {
                    return Err(Error::Unavailable("the candidate has resigned".into()));
                }
                Err(error) => {
                    tracing::debug!(%error, "no leadership yet");
                }
            }
            backoff.pause(&**self.keeper.clock()).await;
        }
    }

    /// Gives everything up and waits for the answer: the next candidate leads immediately.
    pub async fn resign(self) -> Result<(), Error> {
        self.keeper.stop().await
    }
}
