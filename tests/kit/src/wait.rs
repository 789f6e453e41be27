//! Waiting for something to become true, instead of sleeping and hoping.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// Short enough to be invisible in a test's duration, long enough not to busy the machine.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Polls `probe` until it answers `true`.
///
/// # Panics
///
/// When that does not happen within `timeout`; the message names `what`. A probe that hangs counts
/// as one that did not answer.
pub async fn until(timeout: Duration, what: &str, mut probe: impl AsyncFnMut() -> bool) {
    until_some(timeout, what, async || probe().await.then_some(())).await;
}

/// Polls `probe` until it answers with a value, and returns that.
///
/// # Panics
///
/// When that does not happen within `timeout`; the message names `what`.
pub async fn until_some<T>(
    timeout: Duration,
    what: &str,
    probe: impl AsyncFnMut() -> Option<T>,
) -> T {
    match within(timeout, probe).await {
        Some(value) => value,
        None => panic!("waited {timeout:?} in vain: {what}"),
    }
}

/// Polls `probe` until it answers with a value; `None` when `timeout` passed first.
pub async fn within<T>(timeout: Duration, mut probe: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + timeout;
    loop {
        match timeout_at(deadline, probe()).await {
            Ok(Some(value)) => return Some(value),
            Ok(None) if Instant::now() < deadline => sleep(POLL_INTERVAL).await,
            Ok(None) | Err(_) => return None,
        }
    }
}
