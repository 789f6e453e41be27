//! Reading the fleet in full: presence, leases and targets.

use std::future::Future;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use lease::{
    Authority, Clock, Error, Key, Lease, LeaseQuery, Verdict,
    polling::{FleetView, NODE, POLL, TargetState},
};
use leasehold_client::pages::Pages;

use super::{
    Targets,
    coordinator::Shared,
    mirror::{End, Mirror, Seen},
};

/// How many tokens are checked in one call.
const CHECKS: usize = 1_000;
/// How many foreign programs' leases are looked at simultaneously.
const CONCURRENT_LOOKS: usize = 32;

/// All live leases of a kind.
pub(super) async fn leases(authority: &dyn Authority, kind: &str) -> Result<Vec<Lease>, Error> {
    Pages::new(authority, LeaseQuery::active(kind)).all().await
}

/// Who polls what right now, and which of these targets nobody polls. Other targets are known only by
/// their leases.
pub async fn fleet(
    authority: &dyn Authority,
    targets: &Targets,
) -> Result<FleetView, super::Error> {
    let targets = targets.read(authority).await?;
    let presence = leases(authority, NODE).await?;
    let now = authority.now().await?;
    let polls = leases(authority, POLL).await?;
    let targets: Vec<TargetState> = targets
        .into_iter()
        .map(|target| TargetState {
            id: target.id,
            is_paused: target.is_paused,
        })
        .collect();
    Ok(FleetView::new(now, &presence, &polls, &targets))
}

/// The outcome of a call, or an error when it took longer than `limit_ms`.
pub(super) async fn limited<T>(
    clock: &dyn Clock,
    limit_ms: u64,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::select! {
        biased;
        outcome = call => outcome,
        () = clock.sleep_until(clock.boot().plus(limit_ms)) => {
            Err(Error::Unknown(format!("no answer within {limit_ms} ms")))
        }
    }
}

/// How much is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extent {
    /// Targets and nodes, which foreign programs write too. Leases are known by their events.
    Fleet,
    /// Leases as well: something may have been missed.
    Everything,
}

/// Reads the fleet once. Either all of it is taken over or nothing.
pub(super) async fn discover(shared: &Shared, extent: Extent) -> Result<(), Error> {
    let authority = &*shared.authority;
    let asked = shared.clock.boot();
    let targets = match shared.targets.read(authority).await {
        Ok(targets) => Some(targets),
        // Those that were read before are polled on.
        Err(super::Error::Targets(error)) => {
            tracing::warn!(instance = %shared.id, %error, "the targets cannot be read");
            None
        }
        Err(error) => return Err(error.into_store()),
    };
    let nodes = leases(authority, NODE).await?;
    let sent = shared.clock.boot();
    let take_over = |mirror: &mut Mirror| {
        if let Some(targets) = targets {
            mirror.set_targets(sent, asked, targets);
        }
        mirror.set_nodes(sent, &nodes);
    };
    if extent == Extent::Fleet {
        take_over(&mut shared.mirror());
        return Ok(());
    }
    let now = authority.now().await?;
    let polls = leases(authority, POLL).await?;
    let gone = {
        let mut mirror = shared.mirror();
        take_over(&mut mirror);
        mirror.set_leases(sent, now, &polls)
    };
    for batch in gone.chunks(CHECKS) {
        explain(shared, batch).await?;
    }
    Ok(())
}

/// Looks again at leases of foreign programs, which do not announce when they let go.
pub(super) async fn look_at_foreign(shared: &Shared, targets: Vec<String>) -> Result<(), Error> {
    let looks = stream::iter(targets).map(|target| async move {
        let key = Key::new(POLL, &target)?;
        let found = shared.authority.lease(key).await?;
        let now = shared.clock.boot();
        shared.mirror().looked(now, &target, found.as_ref());
        Ok::<(), Error>(())
    });
    looks
        .buffer_unordered(CONCURRENT_LOOKS)
        .try_collect::<Vec<()>>()
        .await?;
    Ok(())
}

/// Leases that are gone although no event said so: their tokens show whether they ended, or whether
/// the store lost its data. In the second case a holder may still believe in its lease, for at most
/// its ttl, and nobody else may begin before that.
async fn explain(shared: &Shared, gone: &[(String, Seen)]) -> Result<(), Error> {
    let mut ours = Vec::new();
    for (target, seen) in gone {
        if let Ok(key) = Key::new(POLL, target) {
            ours.push((target, seen, key));
        }
    }
    let asked = ours
        .iter()
        .map(|(_, seen, key)| (key.clone(), seen.token))
        .collect();
    let verdicts = shared.authority.check(asked).await?;
    let now = shared.clock.boot();
    let mut mirror = shared.mirror();
    for ((target, seen, _), verdict) in ours.into_iter().zip(verdicts) {
        // An event may have reported a newer lease meanwhile.
        if mirror
            .lease(target)
            .is_none_or(|now| now.token != seen.token)
        {
            continue;
        }
        let by_hand = seen.token == lease::Token::ZERO;
        let own = seen.holder == shared.holder;
        let end = match verdict {
            Verdict::Current => continue,
            Verdict::Unknown if !by_hand && !own => End::DataLost {
                ttl_ms: shared.options.lease_ttl_ms,
            },
            Verdict::Unknown | Verdict::Ended | Verdict::Stale { .. } => End::LetGo,
        };
        mirror.forget_lease(now, target, end);
    }
    Ok(())
}
