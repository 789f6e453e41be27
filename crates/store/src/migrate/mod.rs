//! Moving everything from one backend to another: leases, tokens, records and history.
//!
//! A move has five steps, and may be killed after any of them and repeated:
//!
//! 1. look: the target must be empty, or hold nothing whose tokens the move would take back (L3);
//! 2. close both ends with a [`Maintenance`], which every server respects, also one at work;
//! 3. copy events, records and keys, page by page;
//! 4. mark the source as left for good;
//! 5. write the target's counters and open it, in one step.
//!
//! Until the fifth step the source is the truth, and the target refuses to be served. Calling the move
//! off ([`abort`]) opens the source again and empties the target.
//!
//! Leases keep the time they had left: expiry is carried from the source's clock to the target's,
//! both read one after the other, so that it may come later by that moment and never earlier. Where
//! the source's time stands still (an embedded store that is stopped), so does the leases' (L14).
//! Waiters are not carried: whoever waits asks again. Neither are leases of the servers' own leaders.

mod backend;
mod check;
mod copy;
mod error;
mod maintenance;
mod open;
mod report;

pub use error::{Error, Side};
pub use maintenance::{Maintenance, Phase};
pub use report::{Progress, Report, What};

pub(crate) use backend::{Arrival, Export, Head, Import, PAGE, Part, forgotten};
pub(crate) use open::maintenance_of;

use std::time::Duration;

use crate::StoreUrl;
use check::Standing;
use open::open;

/// How long a server that was just killed may still seem to be at work: its leadership lasts 5 s.
const SILENCE: Duration = Duration::from_secs(7);
const LOOK: Duration = Duration::from_millis(250);

/// What a move may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Only look: change nothing at all.
    pub dry_run: bool,
    /// Overwrite what the target holds of its own, as long as no token goes back.
    pub replace: bool,
    /// Move although servers are at work on the source. From then on they refuse every change.
    pub cut_off: bool,
}

/// Moves everything from one store to another. `progress` is called with how far it is.
pub async fn migrate(
    from: &StoreUrl,
    to: &StoreUrl,
    options: Options,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Report, Error> {
    let (source, target) = ends(from, to, options.dry_run).await?;
    let (source, target) = (source.as_ref(), target.as_ref());
    let standing = check::standing(source, target, to, options).await?;
    if !options.cut_off {
        idle(source, Side::Source).await?;
    }
    idle(target, Side::Target).await?;
    let looked = check::compare(source, target, &standing, options).await?;
    let mut report = Report::new(from, to, &looked, standing.resumed());
    if options.dry_run {
        report.dry_run = true;
        return Ok(report);
    }
    let maintenance = close(source, target, (from, to), &standing, &looked).await?;
    copy::copy(source, target, &maintenance, &mut report, progress).await?;
    Ok(report)
}

/// Calls an unfinished move off: empties the target and opens the source again.
pub async fn abort(from: &StoreUrl, to: &StoreUrl) -> Result<(), Error> {
    let (source, target) = ends(from, to, false).await?;
    let (source, target) = (source.as_ref(), target.as_ref());
    let at = |side| move |error| Error::Store(side, error);
    let Some(left) = source.maintenance().await.map_err(at(Side::Source))? else {
        return Err(Error::NothingToAbort);
    };
    if left.phase == Phase::Arriving || left.peer != to.to_string() {
        return Err(Error::NothingToAbort);
    }
    let arriving = target.maintenance().await.map_err(at(Side::Target))?;
    match arriving {
        Some(maintenance) if maintenance.phase == Phase::Arriving && maintenance.id == left.id => {
            target.clear().await.map_err(at(Side::Target))?;
            target
                .set_maintenance(None)
                .await
                .map_err(at(Side::Target))?;
        }
        // The target was never reached, and the source not yet left.
        _ if left.phase == Phase::Leaving => {}
        _ => return Err(Error::Finished(to.to_string())),
    }
    source.set_maintenance(None).await.map_err(at(Side::Source))
}

type Backend = Box<dyn Import>;

async fn ends(from: &StoreUrl, to: &StoreUrl, dry_run: bool) -> Result<(Backend, Backend), Error> {
    if from == to {
        return Err(Error::Same);
    }
    let source = open(from, Side::Source, dry_run).await?;
    let target = open(to, Side::Target, dry_run).await?;
    Ok((source, target))
}

/// Waits until no server is at work, for as long as one that was just killed may seem to be.
async fn idle(backend: &dyn Import, side: Side) -> Result<(), Error> {
    let mut left = SILENCE;
    loop {
        let at_work = backend.at_work().await;
        let Some(who) = at_work.map_err(|error| Error::Store(side, error))? else {
            return Ok(());
        };
        if left.is_zero() {
            return Err(Error::AtWork { side, who });
        }
        tokio::time::sleep(LOOK).await;
        left = left.saturating_sub(LOOK);
    }
}

/// Closes both ends. What was looked at must not have changed since.
async fn close(
    source: &dyn Import,
    target: &dyn Import,
    (from, to): (&StoreUrl, &StoreUrl),
    standing: &Standing,
    looked: &check::Looked,
) -> Result<Maintenance, Error> {
    let at = |side| move |error| Error::Store(side, error);
    let arriving = Maintenance {
        id: standing.id,
        phase: Phase::Arriving,
        peer: from.to_string(),
        floor: looked.leaders,
    };
    let leaving = Maintenance {
        phase: Phase::Leaving,
        peer: to.to_string(),
        floor: lease::Token::ZERO,
        ..arriving.clone()
    };
    let (before_source, before_target) = &standing.locks;
    if before_source.is_none() {
        let closed = source.set_maintenance(Some(leaving.clone())).await;
        closed.map_err(at(Side::Source))?;
    }
    // Two addresses of one store show only now.
    let seen = target.maintenance().await.map_err(at(Side::Target))?;
    if seen.is_some_and(|maintenance| {
        maintenance.id == leaving.id && maintenance.phase == Phase::Leaving
    }) {
        source
            .set_maintenance(None)
            .await
            .map_err(at(Side::Source))?;
        return Err(Error::Same);
    }
    if !standing.resumed() {
        let closed = target.set_maintenance(Some(arriving.clone())).await;
        closed.map_err(at(Side::Target))?;
        let head = target.head().await.map_err(at(Side::Target))?;
        if head.revision != looked.target.revision {
            let opened = target.set_maintenance(before_target.clone()).await;
            opened.map_err(at(Side::Target))?;
            let opened = source.set_maintenance(before_source.clone()).await;
            opened.map_err(at(Side::Source))?;
            return Err(Error::Changed {
                side: Side::Target,
                before: looked.target.revision,
                after: head.revision,
            });
        }
    }
    Ok(arriving)
}
