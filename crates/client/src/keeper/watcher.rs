//! Learns of losses at once, from the authority's stream of changes or from another source (L17).
//! Everything it brings would also come with the next renewal.

use std::sync::Arc;

use futures_util::StreamExt;
use lease::{Event, EventKind, Notice};
use tokio::sync::broadcast;

use super::{Core, Losses, Lost, Told};
use crate::wait::Backoff;

/// Follows the authority's changes, for ever, through every interruption.
pub(super) async fn follow_events(core: Arc<Core>) {
    let mut backoff = Backoff::new(100, 5_000);
    let mut first = true;
    loop {
        let opened = tokio::select! {
            () = core.end.cancelled() => return,
            opened = core.authority.watch(None) => opened,
        };
        match opened {
            Ok(mut changes) => {
                if !first {
                    // Whatever happened in between is not on this stream.
                    core.verify();
                }
                first = false;
                loop {
                    let next = tokio::select! {
                        () = core.end.cancelled() => return,
                        next = changes.next() => next,
                    };
                    match next {
                        Some(Ok(Notice::Event(event))) => {
                            backoff.reset();
                            see(&core, &event);
                        }
                        Some(Ok(Notice::Snapshot(_))) => core.verify(),
                        Some(Err(error)) => {
                            tracing::debug!(%error, "the stream of changes broke off");
                            break;
                        }
                        None => break,
                    }
                }
            }
            // The authority has no stream: renewals tell everything, later.
            Err(lease::Error::Unsupported(_) | lease::Error::Denied(_)) => return,
            Err(error) => tracing::debug!(%error, "no stream of changes"),
        }
        let pause = core.clock.boot().plus(backoff.next_ms());
        tokio::select! {
            () = core.end.cancelled() => return,
            () = core.clock.sleep_until(pause) => {}
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
