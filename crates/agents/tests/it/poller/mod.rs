//! The coordinator: many instances in one process, on every backend of the state.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

/// Runs each rule on each backend of the state.
macro_rules! on_every_backend {
    ($($rule:ident),* $(,)?) => {
        on_every_backend!(@backend memory Memory $($rule)*);
        on_every_backend!(@backend disk Disk $($rule)*);
        on_every_backend!(@backend http Http $($rule)*);
        on_every_backend!(@backend redis Redis $($rule)*);
        on_every_backend!(@backend postgres Postgres $($rule)*);
    };
    (@backend $backend:ident $kind:ident $($rule:ident)*) => {
        mod $backend {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $rule() {
                super::$rule(crate::poller::fleet::Kind::$kind).await;
            })*
        }
    };
}

mod fleet;
mod outage;
mod rules;
mod scale;
mod stopping;
