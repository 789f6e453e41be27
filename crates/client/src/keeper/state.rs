//! One lease as its holder sees it: a deadline that is compared with, and what ended it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lease::{
    BootMillis, Clock, Lease, LeaseRef, Loss, Margin, OnOutage, Renewal, Standing, Tenure, Token,
    Ttl,
    planted::{Bug, planted},
};
use tokio::sync::watch;

/// What a watcher of a lease is notified of. For decisions use [`super::Guard::is_owned`], which compares
/// with the clock: a watched value is always a moment old.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// Renewed as planned.
    Owned,
    /// The last renewal failed or had no answer; the lease is valid until its deadline (L11).
    Uncertain,
    /// Past the deadline; the outage policy lets the work go on for now (L13).
    Grace,
    /// Over, for this reason. Final.
    Over(Loss),
}

/// What the other holders said about the authority (L13, `continue`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Peers {
    /// Nobody was asked since the last renewal that succeeded.
    NotAsked,
    /// None of them reaches it either.
    Alone,
    /// Another one reaches it: this holder is the one cut off.
    CutOff,
}

struct Inner {
    lease: Lease,
    tenure: Tenure,
    lost: Option<Loss>,
    uncertain: bool,
    peers: Peers,
}

/// A lease under the care of a keeper.
pub(super) struct Holding {
    clock: Arc<dyn Clock>,
    margin_ms: Option<u64>,
    token: Token,
    inner: Mutex<Inner>,
    states: watch::Sender<State>,
}

impl Holding {
    pub fn new(
        lease: Lease,
        sent: BootMillis,
        margin_ms: Option<u64>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let margin = margin(lease.ttl, margin_ms);
        let tenure = Tenure::granted(sent, lease.ttl, margin, lease.on_outage);
        let holding = Self {
            clock,
            margin_ms,
            token: lease.token,
            inner: Mutex::new(Inner {
                lease,
                tenure,
                lost: None,
                uncertain: false,
                peers: Peers::NotAsked,
            }),
            states: watch::Sender::new(State::Owned),
        };
        holding.look();
        holding
    }

    /// Poisoning is no concern: every critical section leaves a whole value behind.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn token(&self) -> Token {
        self.token
    }

    pub fn lease(&self) -> Lease {
        self.lock().lease.clone()
    }

    pub fn reference(&self) -> LeaseRef {
        LeaseRef::from(&self.lock().lease)
    }

    pub fn renewal(&self) -> Renewal {
        Renewal::of(&self.lock().lease)
    }

    pub fn subscribe(&self) -> watch::Receiver<State> {
        self.states.subscribe()
    }

    pub fn deadline(&self) -> BootMillis {
        self.lock().tenure.deadline()
    }

    /// Where the holder stands at this very moment, and a state that others can watch. What is found
    /// to be over stays over.
    pub fn look(&self) -> Standing {
        let mut inner = self.lock();
        if planted(Bug::OwnershipIsAFlag) && inner.lost.is_none() {
            return Standing::Owned;
        }
        let standing = inner.standing(self.clock.boot());
        self.publish(&mut inner, standing);
        standing
    }

    /// Why it is over, if it is.
    pub fn lost(&self) -> Option<Loss> {
        self.look();
        self.lock().lost.clone()
    }

    /// When it is over unless something happens before.
    pub fn stops_at(&self) -> BootMillis {
        self.lock().stops_at()
    }

    /// A renewal sent at `sent` succeeded with this lease. Never revives what is over (L7).
    pub fn renewed(&self, sent: BootMillis, lease: Lease) {
        let mut inner = self.lock();
        let now = self.clock.boot();
        if inner.standing(now) != Standing::Over {
            let margin = margin(lease.ttl, self.margin_ms);
            inner.tenure.renewed(sent, lease.ttl, margin);
            inner.lease = lease;
            inner.uncertain = false;
            inner.peers = Peers::NotAsked;
        }
        let standing = inner.standing(now);
        self.publish(&mut inner, standing);
    }

    /// A renewal failed or had no answer: nothing changes but what is known (L11). True if this is
    /// the first one since one succeeded.
    pub fn unsure(&self) -> bool {
        let mut inner = self.lock();
        let first = !std::mem::replace(&mut inner.uncertain, true);
        let standing = inner.standing(self.clock.boot());
        self.publish(&mut inner, standing);
        first
    }

    /// A definite end (L13): immediately, whatever the policy. The first reason stays.
    pub fn end(&self, lost: Loss) {
        let mut inner = self.lock();
        inner.tenure.end();
        inner.lost.get_or_insert(lost);
        self.publish(&mut inner, Standing::Over);
    }

    /// What the other holders said.
    pub fn peers_said(&self, peers: Peers) {
        let mut inner = self.lock();
        if matches!(inner.tenure.on_outage(), OnOutage::Continue(_)) {
            inner.peers = peers;
        }
        let standing = inner.standing(self.clock.boot());
        self.publish(&mut inner, standing);
    }

    /// When to renew next, and the ttl that the plan is made for.
    pub fn plan(&self) -> Plan {
        let inner = self.lock();
        Plan {
            renew_at: inner.tenure.renew_at(),
            stops_at: inner.stops_at(),
            ttl_ms: inner.lease.ttl.millis(),
        }
    }

    /// When the state may change by time alone, and whether peers are to be asked before that.
    /// `None` when it is over.
    pub fn next_look(&self) -> Option<Look> {
        let inner = self.lock();
        if inner.lost.is_some() {
            return None;
        }
        let now = self.clock.boot();
        let tenure = &inner.tenure;
        let continues = matches!(tenure.on_outage(), OnOutage::Continue(_));
        let asks = continues && inner.peers != Peers::CutOff;
        let at = if continues && now < tenure.ask_peers_at() {
            tenure.ask_peers_at()
        } else if now < tenure.deadline() {
            tenure.deadline()
        } else {
            tenure.stop_at()
        };
        Some(Look {
            at,
            ask: (asks && now >= tenure.ask_peers_at()).then(|| Ask {
                limit_ms: tenure.peers_limit_millis(),
                is_first: inner.peers == Peers::NotAsked,
            }),
            is_unrenewed: asks && now >= tenure.renew_at(),
        })
    }

    fn publish(&self, inner: &mut Inner, standing: Standing) {
        if standing == Standing::Over {
            inner.tenure.end();
            inner.lost.get_or_insert(Loss::Deadline);
        }
        let state = match (standing, &inner.lost) {
            (Standing::Over, lost) => State::Over(lost.clone().unwrap_or(Loss::Deadline)),
            (Standing::Grace, _) => State::Grace,
            (Standing::Owned, _) if inner.uncertain => State::Uncertain,
            (Standing::Owned, _) => State::Owned,
        };
        self.states.send_if_modified(|shown| {
            let changed = *shown != state;
            if changed {
                *shown = state;
            }
            changed
        });
    }
}

/// When a lease is to be renewed.
pub(super) struct Plan {
    pub renew_at: BootMillis,
    pub stops_at: BootMillis,
    pub ttl_ms: u64,
}

/// When to look at a lease again.
pub(super) struct Look {
    pub at: BootMillis,
    /// Peers are to be asked.
    pub ask: Option<Ask>,
    /// A renewal is due: what peers say now counts for it.
    pub is_unrenewed: bool,
}

/// How peers are to be asked.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    /// How long they may take.
    pub limit_ms: u64,
    /// Nobody was asked yet since the last renewal that succeeded.
    pub is_first: bool,
}

impl Inner {
    /// A comparison with the clock, never a flag (L10). `continue` goes into its grace only after
    /// the other holders were asked (L13).
    fn standing(&self, now: BootMillis) -> Standing {
        if self.lost.is_some() || now >= self.stops_at() {
            return Standing::Over;
        }
        self.tenure.standing(now)
    }

    fn stops_at(&self) -> BootMillis {
        match self.tenure.on_outage() {
            OnOutage::Continue(_) if self.peers != Peers::Alone => self.tenure.deadline(),
            _ => self.tenure.stop_at(),
        }
    }
}

/// The margin that was asked for, as far as the ttl allows it, or the default one.
fn margin(ttl: Ttl, asked_ms: Option<u64>) -> Margin {
    asked_ms
        .and_then(|millis| Margin::new(millis.min(ttl.millis() / 2), ttl).ok())
        .unwrap_or_else(|| Margin::of(ttl))
}
