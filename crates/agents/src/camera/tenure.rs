//! The right to work on one camera and to publish about it, as it is now (L10).

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use lease::{BootMillis, Clock};
use leasehold_api::worker::Fence;
use tokio::sync::watch;

/// The right to one camera under one token. Another token is another tenure.
pub(super) struct Tenure {
    clock: Arc<dyn Clock>,
    fence: watch::Sender<Fence>,
    /// The camera was taken away: nothing more is published, whatever the deadline says.
    closed: AtomicBool,
}

impl Tenure {
    pub fn new(clock: Arc<dyn Clock>, fence: Fence) -> Self {
        Self {
            clock,
            fence: watch::Sender::new(fence),
            closed: AtomicBool::new(false),
        }
    }

    pub fn token(&self) -> u64 {
        self.fence.borrow().token
    }

    pub fn lease_id(&self) -> String {
        self.fence.borrow().lease_id.clone()
    }

    pub fn deadline(&self) -> BootMillis {
        BootMillis::new(self.fence.borrow().deadline_boot_ms)
    }

    /// Notes what the manager wrote. A camera that is missing, or is there under another token, must not
    /// be worked on under this one.
    pub fn update(&self, written: Option<&Fence>) {
        self.fence.send_if_modified(|fence| {
            let next = match written {
                Some(written) if written.token == fence.token => written.clone(),
                Some(_) | None => Fence {
                    deadline_boot_ms: 0,
                    deadline_unix_ms: 0,
                    ..fence.clone()
                },
            };
            let changed = next != *fence;
            *fence = next;
            changed
        });
    }

    /// Wakes up when the manager wrote something else.
    pub fn watch(&self) -> watch::Receiver<Fence> {
        self.fence.subscribe()
    }

    /// Whether the camera may be worked on.
    pub fn may_work(&self) -> bool {
        !self.closed.load(Ordering::Acquire) && self.clock.boot() < self.deadline()
    }

    /// Whether something may be published about it.
    pub fn may_publish(&self) -> bool {
        self.may_work() && self.fence.borrow().publish
    }

    /// Ends it.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use lease::UnixMillis;
    use leasehold_clock::Manual;

    use super::*;

    fn fence(token: u64, deadline_boot_ms: u64) -> Fence {
        Fence {
            lease_id: "l".into(),
            token,
            deadline_boot_ms,
            deadline_unix_ms: 0,
            publish: true,
        }
    }

    #[test]
    fn ends_at_its_deadline_unless_a_later_one_was_written() {
        let clock = Manual::new(UnixMillis::new(0));
        let tenure = Tenure::new(Arc::new(clock.clone()), fence(7, 100));
        clock.advance(99);
        assert!(tenure.may_publish());
        clock.advance(1);
        assert!(!tenure.may_publish() && !tenure.may_work());
        tenure.update(Some(&fence(7, 200)));
        assert!(tenure.may_publish());
        tenure.update(Some(&fence(8, 300)));
        assert!(!tenure.may_work(), "that is another's deadline");
        assert_eq!(tenure.token(), 7);
        tenure.update(Some(&fence(7, 200)));
        tenure.update(None);
        assert!(!tenure.may_work(), "what is not written is not ours");
    }

    #[test]
    fn may_prepare_without_publishing_and_never_comes_back_once_closed() {
        let clock = Manual::new(UnixMillis::new(0));
        let mut prepared = fence(7, 100);
        prepared.publish = false;
        let tenure = Tenure::new(Arc::new(clock), prepared);
        assert!(tenure.may_work() && !tenure.may_publish());
        tenure.update(Some(&fence(7, 100)));
        assert!(tenure.may_publish());
        tenure.close();
        tenure.update(Some(&fence(7, 900)));
        assert!(!tenure.may_work() && !tenure.may_publish());
    }
}
