//! What an authority answers, and when.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use serde::{Deserialize, Serialize};

use crate::{Error, Notice, Outcome, View};

/// The future of an answer. Dropping it cancels a wait; a request that was already decided stays
/// decided.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// A stream of changes (L20). Ends only with an error or with the authority.
pub type Watch = Pin<Box<dyn Stream<Item = Result<Notice, Error>> + Send>>;

/// What a store can promise. Checked at start-up, shown by `doctor`, and never silently different.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Capabilities {
    /// A short name: `embedded`, `memory`, `postgres`, `redis`, `remote`.
    pub store: String,
    /// Whether an acknowledged grant survives a crash of the store's machine.
    pub durable: bool,
    /// Whether leases stop ageing while the authority is down (L14). PostgreSQL and Redis go by
    /// clocks that run on.
    pub time_stops: bool,
    /// Whether several servers may share it.
    pub shared: bool,
    /// Whether renewals appear on the live stream of every replica, not only the one that made them.
    pub renewals_streamed: bool,
    /// What a user should know: one sentence each.
    pub caveats: Vec<String>,
    /// Whether it takes no changes at the moment, although it answers: a full disk, for example.
    #[serde(default)]
    pub degraded: bool,
    /// Whether this process expires leases and seals the history for all that share the store.
    #[serde(default)]
    pub leads_expiry: bool,
}

/// One verb's answer, out of the answer to any verb: the same future, read when it is ready.
pub struct Typed<'a, A, T> {
    pub(crate) answer: Answer<'a, A>,
    pub(crate) read: fn(A) -> Option<T>,
}

/// The answer to one verb that decides.
pub type Decided<'a, T> = Typed<'a, Outcome, T>;

/// The answer to one verb that looks.
pub type Seen<'a, T> = Typed<'a, View, T>;

impl<A, T> Future for Typed<'_, A, T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(self.answer.as_mut().poll(context));
        let typed = answer.and_then(|answer| {
            (self.read)(answer)
                .ok_or_else(|| Error::Broken("the answer to another verb came back".into()))
        });
        Poll::Ready(typed)
    }
}

/// One verb's future as the answer to any verb, for those who implement an [`Authority`].
pub fn answered<'a, T, A>(
    future: impl Future<Output = Result<T, Error>> + Send + 'a,
    answer: fn(T) -> A,
) -> Answer<'a, A>
where
    A: 'a,
    T: 'a,
{
    Box::pin(async move { future.await.map(answer) })
}
