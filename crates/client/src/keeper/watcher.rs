//! Learns of losses at once, from the authority's stream of changes or from another source (L17).
//! Everything it brings would also come with the next renewal.

use std::sync::Arc;

use lease::{Event, EventKind, Watching};
use tokio::sync::broadcast;

use super::{Core, Losses, Lost, Told};
use crate::follower::{Change, Follower};

/// Follows what happens to this holder's leases, for ever, through every interruption. Nobody else's
/// changes are on this stream, and no renewals: it costs the same in every fleet.
pub(super) async fn follow_events(core: Arc<Core>) {
    let watching = Watching::holder(&core.holder).only([
        EventKind::LeaseExpired,
        EventKind::LeaseReleased,
        EventKind::LeaseStolen,
        EventKind::LeaseRevoked,
    ]);
    let mut follower = Follower::new(core.authority.clone(), core.clock.clone(), watching);
    let mut first = true;
    loop {
        let change = tokio::select! {
            () = core.end.cancelled() => return,
            change = follower.next() => change,
        };
        match change {
            Ok(Change::Event(event)) => see(&core, &event),
            // Whatever happened in between is not on this stream.
            Ok(Change::Resync(_)) if !std::mem::take(&mut first) => core.verify(),
            Ok(Change::Resync(_) | Change::Progress(_) | Change::Interrupted(_)) => {}
            // The authority has no stream: renewals bring everything, later.
            Err(_) => return,
        }
    }
}

fn see(core: &Core, event: &Event) {
    let Some(lease) = &event.lease else { return };
    let lost = match event.kind {
        EventKind::LeaseExpired => Lost::Expired,
        EventKind::LeaseReleased => Lost::Released,
        EventKind::LeaseStolen => Lost::Stolen,
        EventKind::LeaseRevoked => Lost::Revoked {
            why: event.detail.clone().unwrap_or_default(),
        },
        _ => return,
    };
    if lease.holder != core.holder {
        return;
    }
    let holding = core.registry().find(&event.key, lease.token).cloned();
    if let Some(holding) = holding {
        core.lose(&holding, lost);
    }
}

/// Follows losses from another source.
pub(super) async fn follow_losses(
    core: Arc<Core>,
    mut losses: broadcast::Receiver<Told>,
    _source: Arc<dyn Losses>,
) {
    loop {
        let next = tokio::select! {
            () = core.end.cancelled() => return,
            next = losses.recv() => next,
        };
        match next {
            Ok(Told::Lost { key, token, loss }) => {
                let holding = core.registry().find(&key, token).cloned();
                if let Some(holding) = holding {
                    core.lose(&holding, Lost::from(loss));
                }
            }
            Ok(Told::Missed) | Err(broadcast::error::RecvError::Lagged(_)) => core.verify(),
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}
