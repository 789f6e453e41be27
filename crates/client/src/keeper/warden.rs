//! Watches the deadlines, so that watchers learn of a loss at its moment. The guards do not depend
//! on it: they compare with the clock themselves.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use lease::BootMillis;

use super::{
    Core,
    state::{self, Ask},
};
use crate::wait::limited;

/// The other holders that this one knows (L13, `continue`).
pub trait Peers: Send + Sync + 'static {
    /// Whether any of them reaches the authority. One yes means that this holder is the one cut off.
    fn any_reaches_authority(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>>;
}

pub(super) async fn run(core: Arc<Core>) {
    let limit_ms = core.options.call_limit_ms.max(1);
    let mut ask_at = BootMillis::default();
    let asking = Arc::new(AtomicBool::new(false));
    loop {
        let held: Vec<_> = core.registry().held().cloned().collect();
        let now = core.clock.boot();
        let mut earliest: Option<BootMillis> = None;
        let mut ask = None;
        let mut over = false;
        for holding in &held {
            holding.look();
            let Some(look) = holding.next_look() else {
                core.registry().forget(holding);
                over = true;
                continue;
            };
            earliest = Some(earliest.map_or(look.at, |at| at.min(look.at)));
            if let Some(one) = look.ask {
                ask = Some(ask.map_or(one, |other: Ask| Ask {
                    limit_ms: other.limit_ms.min(one.limit_ms),
                    is_first: other.is_first || one.is_first,
                }));
            }
        }
        if over {
            core.changed();
        }
        if let Some(ask) = ask {
            // A lease that is missed a moment after another one does not wait until that one's question is
            // asked again: its own deadline may be a moment later, too.
            let is_due = now >= ask_at || ask.is_first;
            if is_due && !asking.swap(true, Ordering::AcqRel) {
                ask_at = now.plus((2 * ask.limit_ms).min(limit_ms));
                let question = Question {
                    core: core.clone(),
                    asking: asking.clone(),
                };
                core.tasks
                    .spawn(ask_peers(question, ask.limit_ms.min(limit_ms)));
            }
            // The end of a question wakes this loop.
            if !asking.load(Ordering::Acquire) {
                earliest = earliest.map(|at| at.min(ask_at));
            }
        }
        let wait = async {
            match earliest {
                Some(at) => core.clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = core.end.cancelled() => return,
            () = core.look.notified() => {}
            () = wait => {}
        }
    }
}

/// A question to the other holders that is on its way. However it ends, the next one may be asked then.
struct Question {
    core: Arc<Core>,
    asking: Arc<AtomicBool>,
}

impl Drop for Question {
    fn drop(&mut self) {
        self.asking.store(false, Ordering::Release);
        self.core.look.notify_one();
    }
}

/// No answer in time counts as no: whoever cannot be asked cannot say yes.
async fn ask_peers(question: Question, limit_ms: u64) {
    let core = &question.core;
    let reached = match &core.options.peers {
        Some(peers) => limited(&*core.clock, limit_ms, peers.any_reaches_authority())
            .await
            .unwrap_or(false),
        None => false,
    };
    let said = if reached {
        state::Peers::CutOff
    } else {
        state::Peers::Alone
    };
    let held: Vec<_> = core.registry().held().cloned().collect();
    for holding in held {
        if holding.next_look().is_some_and(|look| look.is_unrenewed) {
            holding.peers_said(said);
        }
    }
    tracing::debug!(reached, limit_ms, "other holders asked");
}
