//! An acquire that may wait, seen from its caller: dropping it ends the wait, and a grant that
//! crossed with the drop goes back immediately (L6).

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use lease::{
    Acquired, Error, LeaseRef, Outcome,
    planted::{Bug, planted},
};
use tokio::sync::{mpsc, oneshot};

use super::job::{Call, Gone, GoneList, Job};

/// The caller's end of an acquire.
pub(super) struct Waiting {
    pub call: Call,
    pub answer: oneshot::Receiver<Result<Outcome, Error>>,
    pub gone: GoneList,
    pub jobs: mpsc::Sender<Job>,
    pub answered: bool,
}

impl Future for Waiting {
    type Output = Result<Result<Outcome, Error>, oneshot::error::RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let poll = Pin::new(&mut self.answer).poll(context);
        self.answered |= poll.is_ready();
        poll
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.answer.close();
        self.gone.push(match self.answer.try_recv() {
            Ok(Ok(Outcome::Acquired(acquired))) if !planted(Bug::CrossedGrantKept) => {
                Gone::Granted(fresh(&acquired))
            }
            _ => Gone::Waiting(self.call),
        });
        // With a full queue the writer is awake anyway.
        let _ = self.jobs.try_send(Job::Wake);
    }
}

/// The leases of an answer that were granted by it. One that its holder had before is not given back
/// because a later call for it was dropped.
pub(super) fn fresh(acquired: &Acquired) -> Vec<LeaseRef> {
    match acquired {
        Acquired::Granted { leases, .. } => leases
            .iter()
            .filter(|lease| lease.renewed_at.is_none())
            .map(LeaseRef::from)
            .collect(),
        Acquired::Refused(_) => Vec::new(),
    }
}
