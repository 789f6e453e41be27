//! The holder's own deadline (L10, L11, L13): counted from *before* the request was sent, on a clock
//! that does not stop when the machine sleeps. Ownership is a comparison, never a flag.

use crate::{BootMillis, Invalid, OnOutage, Ttl};

/// How much earlier than the authority the holder stops, to cover clock drift and the time it
/// needs to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Margin(u64);

impl Margin {
    /// A fixed margin; it must leave at least half of the ttl.
    pub fn new(millis: u64, ttl: Ttl) -> Result<Self, Invalid> {
        if millis > ttl.millis() / 2 {
            return Err(Invalid::new("margin", "at most half of the ttl"));
        }
        Ok(Self(millis))
    }

    /// A tenth of the ttl, at least 20 ms, at most 2 s: far more than two clocks drift apart in one
    /// ttl, and time enough to stop a process.
    pub fn of(ttl: Ttl) -> Self {
        Self((ttl.millis() / 10).clamp(20, 2000).min(ttl.millis() / 2))
    }

    /// Milliseconds.
    pub const fn millis(self) -> u64 {
        self.0
    }
}

/// What a holder knows about its own lease at some moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Inside the deadline: the lease is trusted.
    Owned,
    /// Past the deadline, but the outage policy lets it go on while the authority is out of reach.
    Grace,
    /// Stop. Nothing may be done under this token any more.
    Over,
}

/// A lease as its holder sees it: from when it may be trusted until when.
///
/// ```
/// use leasehold_lease::{BootMillis, Margin, OnOutage, Standing, Tenure, Ttl};
/// let ttl = Ttl::from_secs(30).unwrap();
/// let sent = BootMillis::new(1_000);
/// let tenure = Tenure::granted(sent, ttl, Margin::of(ttl), OnOutage::FailClosed);
/// assert_eq!(tenure.standing(sent.plus(27_999)), Standing::Owned);
/// assert_eq!(tenure.standing(sent.plus(28_000)), Standing::Over);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenure {
    deadline: BootMillis,
    /// When the newest request was sent that was granted or renewed.
    sent: BootMillis,
    ttl: Ttl,
    on_outage: OnOutage,
    ended: bool,
}

impl Tenure {
    /// Granted by a request that was sent at `sent`.
    pub fn granted(sent: BootMillis, ttl: Ttl, margin: Margin, on_outage: OnOutage) -> Self {
        Self {
            deadline: sent.plus(trusted_millis(ttl, margin)),
            sent,
            ttl,
            on_outage,
            ended: false,
        }
    }

    /// A renewal that was sent at `sent` succeeded, and the lease has this ttl from then on. Never
    /// moves the deadline back (L8), also not with a shorter ttl: the authority does not take back
    /// what it promised either. Never revives a tenure that ended (L7).
    ///
    /// ```
    /// use leasehold_lease::{BootMillis, Margin, OnOutage, Tenure, Ttl};
    /// let (long, short) = (Ttl::from_secs(30).unwrap(), Ttl::from_secs(6).unwrap());
    /// let sent = BootMillis::new(0);
    /// let mut tenure = Tenure::granted(sent, long, Margin::of(long), OnOutage::FailClosed);
    /// tenure.renewed(sent.plus(1_000), short, Margin::of(short));
    /// assert_eq!(tenure.deadline(), sent.plus(28_000)); // as granted
    /// assert_eq!(tenure.renew_at(), sent.plus(3_000)); // at the new pace
    /// ```
    pub fn renewed(&mut self, sent: BootMillis, ttl: Ttl, margin: Margin) {
        if self.ended {
            return;
        }
        let deadline = sent.plus(trusted_millis(ttl, margin));
        self.deadline = self.deadline.max(deadline);
        // An answer that was overtaken by a newer one says nothing about the ttl any more.
        if sent >= self.sent {
            (self.sent, self.ttl) = (sent, ttl);
        }
    }

    /// A definite answer said that the lease is gone: stop immediately, whatever the policy (L13).
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Where the holder stands. A call that failed changes nothing (L11): only time does.
    pub fn standing(&self, now: BootMillis) -> Standing {
        if self.ended {
            Standing::Over
        } else if now < self.deadline {
            Standing::Owned
        } else if now < self.stop_at() {
            Standing::Grace
        } else {
            Standing::Over
        }
    }

    /// Until when the lease is trusted.
    pub fn deadline(&self) -> BootMillis {
        self.deadline
    }

    /// When everything must have stopped: the deadline, or the end of the grace.
    pub fn stop_at(&self) -> BootMillis {
        self.deadline.plus(self.on_outage.grace_millis())
    }

    /// When to renew next, counted from the last renewal that succeeded: a third of the ttl.
    pub fn renew_at(&self) -> BootMillis {
        self.sent.plus(self.ttl.millis() / 3)
    }

    /// When the other holders are asked, with `continue` (L13): a quarter of the way from the renewal that
    /// is missing to the deadline.
    pub fn ask_peers_at(&self) -> BootMillis {
        self.renew_at().plus(self.peers_limit_millis())
    }

    /// How long they may take. Half of the way is left then: whoever has to stop by the deadline knows well
    /// before whether it has to, on a busy machine too.
    pub fn peers_limit_millis(&self) -> u64 {
        (self.deadline.since(self.renew_at()) / 4).max(1)
    }

    /// The outage policy.
    pub fn on_outage(&self) -> OnOutage {
        self.on_outage
    }
}

/// How long after it was sent a grant is trusted. A margin that was made for a longer ttl leaves
/// nothing: the holder stops early, never late.
fn trusted_millis(ttl: Ttl, margin: Margin) -> u64 {
    ttl.millis().saturating_sub(margin.millis())
}
