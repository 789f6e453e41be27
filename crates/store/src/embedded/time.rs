//! The authority's clock.

use std::sync::Arc;

use lease::{BootMillis, Clock, UnixMillis};

/// Wall-clock time at the start plus what has passed since on a clock that never jumps: setting the
/// machine's clock expires no lease.
#[derive(Clone)]
pub(super) struct Time {
    clock: Arc<dyn Clock>,
    anchor: UnixMillis,
    started: BootMillis,
}

impl Time {
    /// Starts at the wall clock's time, or at `latest` when the wall clock was set back behind what
    /// this authority has already written.
    pub fn start(clock: Arc<dyn Clock>, latest: UnixMillis) -> Self {
        let wall = clock.unix();
        if latest.since(wall) > 1000 {
            tracing::warn!(
                behind_ms = latest.since(wall),
                "the wall clock is behind the times already written; continuing from those"
            );
        }
        Self {
            anchor: wall.max(latest),
            started: clock.boot(),
            clock,
        }
    }

    /// The time now.
    pub fn now(&self) -> UnixMillis {
        self.anchor.plus(self.clock.boot().since(self.started))
    }

    /// Resolves when [`Time::now`] has reached `at`.
    pub async fn sleep_until(&self, at: UnixMillis) {
        let boot = self.started.plus(at.since(self.anchor));
        self.clock.sleep_until(boot).await;
    }
}
