//! A clock that stands still until a test moves it.

use std::{future::Future, pin::Pin, sync::Arc};

use lease::{BootMillis, Clock, UnixMillis};
use tokio::sync::watch;

/// A clock that is moved by hand. Clones share the same time. Whoever sleeps wakes up when the time
/// it waits for is reached.
#[derive(Clone, Debug)]
pub struct Manual {
    start: UnixMillis,
    elapsed: Arc<watch::Sender<u64>>,
}

impl Manual {
    /// A clock that shows `start`.
    pub fn new(start: UnixMillis) -> Self {
        Self {
            start,
            elapsed: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Moves time forward.
    pub fn advance(&self, millis: u64) {
        self.elapsed.send_modify(|elapsed| *elapsed += millis);
    }
}

impl Clock for Manual {
    fn unix(&self) -> UnixMillis {
        self.start.plus(*self.elapsed.borrow())
    }

    fn boot(&self) -> BootMillis {
        BootMillis::new(*self.elapsed.borrow())
    }

    fn sleep_until(&self, at: BootMillis) -> Pin<Box<dyn Future<Output = ()> + Send + 'static>> {
        let mut elapsed = self.elapsed.subscribe();
        Box::pin(async move {
            // The sender lives as long as any clone of the clock; with none left, time stands still.
            if elapsed
                .wait_for(|&elapsed| elapsed >= at.get())
                .await
                .is_err()
            {
                std::future::pending::<()>().await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn wakes_sleepers_when_their_time_is_reached() {
        let clock = Manual::new(UnixMillis::new(1_000));
        let sleeper = tokio::spawn(clock.sleep_until(BootMillis::new(50)));
        clock.advance(49);
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(1);
        sleeper.await.unwrap();
        assert_eq!(clock.unix(), UnixMillis::new(1_050));
    }
}
