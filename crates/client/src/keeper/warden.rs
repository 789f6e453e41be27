//! Watches the deadlines, so that watchers learn of a loss at its moment. The guards do not depend
//! on it: they compare with the clock themselves.

use std::{future::Future, pin::Pin, sync::Arc};

use lease::BootMillis;

use super::{Core, state};
use crate::wait::limited;

/// The other holders that this one knows (L13, `continue`).
pub trait Peers: Send + Sync + 'static {
    /// Whether any of them reaches the authority. One yes means that this holder is the one cut off.
    fn any_reaches_authority(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>>;
}

pub(super) async fn run(core: Arc<Core>) {
    let limit_ms = core.options.call_limit_ms.max(1);
    let mut ask_at = BootMillis::default();
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
            if let Some(lead) = look.ask {
                ask = Some(ask.map_or(lead, |least: u64| least.min(lead)));
            }
        }
        if over {
            core.changed();
        }
        if let Some(lead) = ask {
            if now >= ask_at {
                ask_at = now.plus(lead.min(limit_ms));
                // Half of the lead, so that the answer is there well before the deadline.
                let limit_ms = (lead / 2).clamp(1, limit_ms);
                core.tasks.spawn(ask_peers(core.clone(), limit_ms));
            }
            earliest = earliest.map(|at| at.min(ask_at));
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

/// No answer in time counts as no: whoever cannot be asked cannot say yes.
async fn ask_peers(core: Arc<Core>, limit_ms: u64) {
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
        if holding.next_look().is_some_and(|look| look.ask.is_some()) {
            holding.peers_said(said);
        }
    }
    core.look.notify_one();
}
