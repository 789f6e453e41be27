//! The coordinator: many instances in one process, on every home of the state.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

/// Runs each rule on each home of the state.
macro_rules! on_every_home {
    ($($rule:ident),* $(,)?) => {
        on_every_home!(@home memory Memory $($rule)*);
        on_every_home!(@home disk Disk $($rule)*);
        on_every_home!(@home http Http $($rule)*);
        on_every_home!(@home redis Redis $($rule)*);
        on_every_home!(@home postgres Postgres $($rule)*);
    };
    (@home $home:ident $kind:ident $($rule:ident)*) => {
        mod $home {
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
