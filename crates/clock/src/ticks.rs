//! A schedule that does not slip.

use lease::{BootMillis, Clock};

/// Ticks of one period: the first immediately, the others at fixed distances from it. Work between two ticks that
/// takes long does not postpone the next one, and ticks that were missed are not made up for.
#[derive(Debug)]
pub struct Ticks {
    due: Option<BootMillis>,
    period_ms: u64,
}

impl Ticks {
    /// A tick every `period_ms`, which must not be 0.
    pub const fn every(period_ms: u64) -> Self {
        assert!(period_ms > 0, "a period of nothing");
        Self {
            due: None,
            period_ms,
        }
    }

    /// Waits for the next tick.
    pub async fn next(&mut self, clock: &dyn Clock) {
        let due = *self.due.get_or_insert_with(|| clock.boot());
        clock.sleep_until(due).await;
        let missed = clock.boot().since(due) / self.period_ms;
        self.due = Some(due.plus((missed + 1) * self.period_ms));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use lease::UnixMillis;

    use super::*;
    use crate::Manual;

    #[test]
    fn keeps_its_distances_however_late_it_is_asked() {
        let clock = Manual::new(UnixMillis::new(0));
        let mut ticks = Ticks::every(10);
        let mut comes = || ticks.next(&clock).now_or_never().is_some();
        assert!(comes(), "the first immediately");
        assert!(!comes());
        clock.advance(10);
        assert!(comes());
        // The work took longer than three periods: one tick, and the next one where it belongs.
        clock.advance(34);
        assert!(comes());
        assert!(!comes());
        clock.advance(5);
        assert!(!comes());
        clock.advance(1);
        assert!(comes());
    }
}
