//! What happens to a session that exists. Each transition takes the session as it was loaded, and gives the
//! session afterwards with the one transaction that makes it so, or says why it does not apply.

use super::{Ending, Reason, Session, State, key};
use crate::{
    Expect, Holder, Invalid, Lease, LeaseRef, Record, Renew, Renewal, Renewals, Revision,
    Transaction, UnixMillis, Write,
    planted::{Bug, planted},
};

/// The contract's word for a session whose lease ran out.
const LEASE_EXPIRED: &str = "LEASE_EXPIRED";

/// A session as it was loaded.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The session.
    pub session: Session,
    /// The revision of its record.
    pub revision: Revision,
    /// Its own lease, read after the record. It is granted in the step in which the record appears and never
    /// again: whoever finds none here can be sure that there will be none.
    pub lease: Option<Lease>,
}

/// A transition that applies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The state before.
    pub previous: State,
    /// The session afterwards.
    pub session: Session,
    /// The step that makes it so, if the session is still what was loaded.
    pub transaction: Transaction,
}

/// Why a transition does not apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Declined {
    /// It does not lead anywhere from the state that the session is in.
    State(State),
    /// The session is somebody else's business: of a worker, or of another one.
    Attended,
    /// Its lease lives.
    Kept,
}

/// What is left to do for a worker whose claim does not apply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unclaimed {
    /// It claimed the session before, and the answer was lost: it starts it.
    Start(Box<Session>),
    /// It had the session at work and nothing of it runs any more: only its end is missing.
    End(Ending),
    /// It is somebody else's, or over.
    Leave,
}

impl Loaded {
    /// A session in the record that was read, and its lease, which was read afterwards.
    pub fn new(record: &Record, lease: Option<Lease>) -> Result<Self, Invalid> {
        Ok(Self {
            session: Session::from_record(record)?,
            revision: record.revision,
            lease,
        })
    }

    /// The one way on, if the table allows it. `after` is the session but for its state. A session that ends
    /// gives everything back in the same step, so that a retry starts afresh and no moment shows one without
    /// the other: its idempotency key, its reservation, what was `held` for it, and its own lease, since whoever
    /// is over is not kept alive by a heartbeat.
    fn go_on(
        &self,
        mut after: Session,
        (next, reason): (State, Reason),
        held: &[LeaseRef],
        now: UnixMillis,
    ) -> Result<Change, Declined> {
        let previous = self.session.state;
        if !previous.may_become(next) && !planted(Bug::EndedSessionGoesOn) {
            return Err(Declined::State(previous));
        }
        after.state = next;
        after.updated_at = now;
        if reason != Reason::None {
            after.reason = reason;
        }
        let mut transaction = Transaction {
            expect: vec![Expect {
                key: key(after.session_id),
                revision: Some(self.revision),
            }],
            writes: vec![after.to_write()],
            ..Transaction::default()
        };
        if next.is_terminal() {
            transaction.release = held.to_vec();
            let own = self.lease.as_ref().map(LeaseRef::from);
            transaction.release.extend(own);
        }
        if next.is_terminal() && !planted(Bug::IntentOutlivesSession) {
            let freed = [Some(after.intent_key()), after.reservation()];
            transaction
                .writes
                .extend(freed.into_iter().flatten().map(|key| Write {
                    key,
                    value: None,
                    note: None,
                }));
        }
        Ok(Change {
            previous,
            session: after,
            transaction,
        })
    }
}

/// Its client wants it to stop. One that nobody claimed is over immediately; the others end when their worker
/// has ended them.
pub fn stop(loaded: &Loaded, now: UnixMillis) -> Result<Change, Declined> {
    let next = match loaded.session.state {
        State::New => State::Stopped,
        _ => State::Stopping,
    };
    let after = loaded.session.clone();
    loaded.go_on(after, (next, Reason::ClientStop), &[], now)
}

/// A worker takes it; whoever is second loses quietly.
pub fn claim(loaded: &Loaded, worker: &Holder, now: UnixMillis) -> Result<Change, Unclaimed> {
    let mut after = loaded.session.clone();
    after.worker = Some(worker.clone());
    let claimed = loaded.go_on(after, (State::Starting, Reason::None), &[], now);
    claimed.map_err(|_| unclaimed(&loaded.session, worker))
}

fn unclaimed(session: &Session, worker: &Holder) -> Unclaimed {
    if session.worker.as_ref() != Some(worker) {
        return Unclaimed::Leave;
    }
    match session.state {
        State::Starting => Unclaimed::Start(Box::new(session.clone())),
        State::Running => Unclaimed::End(Ending::LeaseLost(
            "its worker could not write down how it ended".into(),
        )),
        State::Stopping => Unclaimed::End(Ending::Stopped),
        State::New | State::Stopped | State::Failed | State::Ended => Unclaimed::Leave,
    }
}

/// Its stream is playable. A stop that came first wins.
pub fn ready(loaded: &Loaded, tuner_slot: &str, now: UnixMillis) -> Result<Change, Declined> {
    let mut after = loaded.session.clone();
    after.tuner_slot = Some(tuner_slot.to_owned());
    loaded.go_on(after, (State::Running, Reason::None), &[], now)
}

/// Its worker ends it, and gives back what it held for it. A stop that was asked for stays the reason.
pub fn end(
    loaded: &Loaded,
    ending: &Ending,
    held: &[LeaseRef],
    now: UnixMillis,
) -> Result<Change, Declined> {
    let mut after = loaded.session.clone();
    let (state, reason) = ending.state();
    let (state, reason, outcome) = match (after.state, state) {
        (State::Stopping, State::Ended) => (State::Stopped, Reason::ClientStop, None),
        (State::Running, State::Ended) => (State::Failed, reason, ending.outcome()),
        _ => (state, reason, ending.outcome()),
    };
    let reason = match (after.reason, reason) {
        (Reason::ClientStop, Reason::Shutdown) => Reason::ClientStop,
        (_, reason) => reason,
    };
    after.outcome = outcome.map(str::to_owned);
    after.reason_detail = ending.detail().map(str::to_owned);
    if reason == Reason::LeaseExpired {
        after.stop_reason = Some(LEASE_EXPIRED.into());
    }
    loaded.go_on(after, (state, reason), held, now)
}

/// Its lease ran out before any worker claimed it. A worker stops its stream first and ends it by itself.
pub fn expire(loaded: &Loaded, now: UnixMillis) -> Result<Change, Declined> {
    let mut after = loaded.session.clone();
    if after.worker.is_some() {
        return Err(Declined::Attended);
    }
    if loaded.lease.is_some() {
        return Err(Declined::Kept);
    }
    after.stop_reason = Some(LEASE_EXPIRED.into());
    loaded.go_on(after, (State::Stopped, Reason::LeaseExpired), &[], now)
}

/// The worker that has it is gone.
pub fn worker_lost(loaded: &Loaded, worker: &Holder, now: UnixMillis) -> Result<Change, Declined> {
    if loaded.session.worker.as_ref() != Some(worker) {
        return Err(Declined::Attended);
    }
    abandoned(loaded, format!("worker {worker} is gone"), now)
}

/// The worker that has it started again: `worker` is its new incarnation.
pub fn worker_restarted(
    loaded: &Loaded,
    worker: &Holder,
    now: UnixMillis,
) -> Result<Change, Declined> {
    if !loaded.session.is_of_predecessor(worker) {
        return Err(Declined::Attended);
    }
    abandoned(loaded, "its worker restarted".into(), now)
}

fn abandoned(loaded: &Loaded, detail: String, now: UnixMillis) -> Result<Change, Declined> {
    let mut after = loaded.session.clone();
    after.reason_detail = Some(detail);
    loaded.go_on(after, (State::Failed, Reason::WorkerLost), &[], now)
}

/// The renewal that a heartbeat asks for; `None` within half the interval of the last one. Half: a client
/// that keeps to the interval is early now and then, and must not lose a whole one. The store alone decides
/// whether the lease still lives: nothing that was read before can revive it.
pub fn heartbeat(lease: &Lease, now: UnixMillis, interval_ms: u64) -> Option<Renew> {
    let early = |last: UnixMillis| now.since(last) < interval_ms / 2;
    let due = !lease.renewed_at.is_some_and(early);
    due.then(|| Renew {
        holder: lease.holder.clone(),
        leases: Renewals::These(vec![Renewal::of(lease)]),
    })
}
