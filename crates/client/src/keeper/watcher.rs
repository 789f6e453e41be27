//! Learns of losses immediately, from the authority's stream of changes or from another source (L17).
//! Everything it brings would also come with the next renewal.

use std::{sync::Arc, time::Duration};

use lease::{Event, EventKind, Watching};
use tokio::sync::{broadcast, watch};

use super::{Core, Loss, LossNotice, Losses};
use crate::{
    follower::{Change, Follower},
    stream::Link,
};

/// How long a holder's stream may be down before the changes are watched instead.
const STREAM_PATIENCE: Duration = Duration::from_secs(1);

/// Follows what happens to this holder's leases, while no stream of the holder brings it.
pub(super) async fn follow_events(core: Arc<Core>, stream: Option<watch::Receiver<Link>>) {
    let Some(mut link) = stream else {
        return watch_changes(&core, true).await;
    };
    loop {
        let stays_down = async {
            loop {
                let went_down = link.wait_for(|link| *link == Link::Down).await.is_ok();
                let up = link.wait_for(|link| *link != Link::Down);
                match tokio::time::timeout(STREAM_PATIENCE, up).await {
                    Ok(Ok(_)) if went_down => {}
                    // Closed for good, or away for long.
                    _ => return,
                }
            }
        };
        tokio::select! {
            () = core.end.cancelled() => return,
            () = stays_down => {}
        }
        tokio::select! {
            // What was lost since the stream went down is on neither.
            () = watch_changes(&core, false) => return,
            Ok(_) = link.wait_for(|link| *link != Link::Down) => {}
        }
    }
}

/// Follows what happens to this holder's leases, for ever, through every interruption. Nobody else's
/// changes are on this stream, and no renewals: it costs the same in every fleet.
///
/// `first` says that nothing can have been missed before it began.
async fn watch_changes(core: &Core, mut first: bool) {
    let watching = Watching::holder(&core.holder).only(EventKind::ENDS);
    let mut follower = Follower::new(core.authority.clone(), core.clock.clone(), watching);
    loop {
        let change = tokio::select! {
            () = core.end.cancelled() => return,
            change = follower.next() => change,
        };
        match change {
            Ok(Change::Event(event)) => see(core, &event),
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
    let Some(loss) = Loss::of(event) else { return };
    if lease.holder != core.holder {
        return;
    }
    let holding = core.registry().find(&event.key, lease.token).cloned();
    if let Some(holding) = holding {
        core.lose(&holding, loss);
    }
}

/// Follows losses from another source.
pub(super) async fn follow_losses(
    core: Arc<Core>,
    mut losses: broadcast::Receiver<LossNotice>,
    _source: Arc<dyn Losses>,
) {
    loop {
        let next = tokio::select! {
            () = core.end.cancelled() => return,
            next = losses.recv() => next,
        };
        match next {
            Ok(LossNotice::Lost { key, token, loss }) => {
                let holding = core.registry().find(&key, token).cloned();
                if let Some(holding) = holding {
                    core.lose(&holding, loss);
                }
            }
            Ok(LossNotice::Missed) | Err(broadcast::error::RecvError::Lagged(_)) => core.verify(),
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}
