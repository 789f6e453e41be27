//! Fair shedding: each class of work has its own budget, so that a flood of acquires can never keep a
//! holder from renewing what it has. Only acquires are rate-limited.

use std::{num::NonZeroU32, sync::Arc};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use http::Method;
use leasehold_api::{Code, Seconds};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{Limits, Reject, problem::RETRY_SOON};

/// A sort of work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Class {
    /// Renewals, heartbeats, releases and the like: what a holder needs to go on, or to let go.
    Keep,
    /// Asking for keys. Its budget is taken once it is known whether it will wait.
    Acquire,
    /// Reads and everything else.
    Other,
    /// Stays open for long.
    Stream,
    /// Health, metrics and the page: always answered.
    Free,
}

impl Class {
    /// The class of a request, by the last words of its path: the same verbs mean the same in every
    /// route.
    pub fn of(method: &Method, path: &str) -> Self {
        if !path.starts_with("/api/v") {
            return Self::Free;
        }
        let last = path.rsplit('/').find(|part| !part.is_empty());
        let presence =
            path.contains("/holders/") && matches!(*method, Method::PUT | Method::DELETE);
        match last.unwrap_or_default() {
            "renew" | "keep" | "heartbeat" | "release" | "depart" | "handoff" => Self::Keep,
            "acquire" => Self::Acquire,
            "stream" | "watch" => Self::Stream,
            "events" if path.starts_with("/api/v3/sessions/") => Self::Stream,
            _ if presence => Self::Keep,
            _ => Self::Other,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Acquire => "acquire",
            Self::Other => "other",
            Self::Stream => "stream",
            Self::Free => "free",
        }
    }
}

/// The budgets.
pub(crate) struct Shed {
    keeps: Arc<Semaphore>,
    acquires: Arc<Semaphore>,
    waiters: Arc<Semaphore>,
    others: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    rate: Option<DefaultKeyedRateLimiter<Arc<str>>>,
}

/// A permit from a budget; given back when dropped.
pub(crate) struct Permit {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Shed {
    pub fn new(limits: &Limits) -> Self {
        let budget = |size: usize| Arc::new(Semaphore::new(size.min(Semaphore::MAX_PERMITS)));
        let rate = limits
            .acquires_per_second
            .and_then(NonZeroU32::new)
            .map(|per_second| {
                let burst = limits.acquire_burst.and_then(NonZeroU32::new);
                let quota = Quota::per_second(per_second).allow_burst(burst.unwrap_or(per_second));
                RateLimiter::keyed(quota)
            });
        Self {
            keeps: budget(limits.keeps),
            acquires: budget(limits.acquires),
            waiters: budget(limits.waiters),
            others: budget(limits.others),
            streams: budget(limits.streams),
            rate,
        }
    }

    /// A permit for a request of this class. Acquires take theirs with [`Shed::acquire`].
    pub fn enter(&self, class: Class) -> Result<Permit, Reject> {
        let budget = match class {
            Class::Keep => &self.keeps,
            Class::Other => &self.others,
            Class::Stream => &self.streams,
            Class::Acquire | Class::Free => return Ok(Permit { _permit: None }),
        };
        take(budget)
    }

    /// A permit for an acquire: those that wait have a budget of their own, since they cost little
    /// and stay long.
    pub fn acquire(&self, waits: bool) -> Result<Permit, Reject> {
        take(if waits { &self.waiters } else { &self.acquires })
    }

    /// Whether this credential may ask again already.
    pub fn rate(&self, token: &Arc<str>) -> Result<(), Reject> {
        let Some(rate) = &self.rate else {
            return Ok(());
        };
        rate.check_key(token).map_err(|early| {
            use governor::clock::{Clock as _, DefaultClock};
            let wait = early.wait_time_from(DefaultClock::default().now());
            let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            Reject::new(Code::RateLimited, "this credential acquires too often")
                .retry_after(Seconds::from_millis(millis.max(1)))
        })
    }
}

fn take(budget: &Arc<Semaphore>) -> Result<Permit, Reject> {
    match budget.clone().try_acquire_owned() {
        Ok(permit) => Ok(Permit {
            _permit: Some(permit),
        }),
        Err(_) => Err(Reject::new(
            Code::Overloaded,
            "the server has too much to do; nothing happened",
        )
        .retry_after(RETRY_SOON)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeping_and_asking_have_budgets_of_their_own() {
        let limits = Limits {
            acquires: 1,
            keeps: 1,
            ..Limits::default()
        };
        let shed = Shed::new(&limits);
        let first = shed.acquire(false).unwrap_or_else(|_| panic!("a permit"));
        assert!(shed.acquire(false).is_err());
        assert!(shed.acquire(true).is_ok());
        assert!(shed.enter(Class::Keep).is_ok());
        drop(first);
        assert!(shed.acquire(false).is_ok());
    }

    #[test]
    fn verbs_decide_the_class() {
        let class = |method, path| Class::of(&method, path);
        assert_eq!(class(Method::PUT, "/api/v1/leases/x/renew"), Class::Keep);
        assert_eq!(class(Method::POST, "/api/v1/leases/renew/"), Class::Keep);
        assert_eq!(class(Method::POST, "/api/v1/authority/renew"), Class::Keep);
        assert_eq!(class(Method::PUT, "/api/v1/holders/a"), Class::Keep);
        assert_eq!(class(Method::GET, "/api/v1/holders/a"), Class::Other);
        assert_eq!(
            class(Method::POST, "/api/v1/leases/acquire"),
            Class::Acquire
        );
        assert_eq!(
            class(Method::POST, "/api/v1/authority/watch"),
            Class::Stream
        );
        assert_eq!(class(Method::GET, "/healthz"), Class::Free);
        assert_eq!(class(Method::GET, "/api/v1/leases"), Class::Other);
    }
}
