//! A server's own housekeeping: it counts cameras that nobody has, by reason, and forgets runners
//! that have been away for long.

use std::collections::{BTreeMap, HashMap, HashSet};

use lease::{
    Committed, Incarnation, Key, Transaction, UnixMillis,
    registry::{RUNNER, Reason, Runner, RunnerStatus, presence_key},
};
use leasehold_clock::Ticks;

use super::{
    SiteId, runners,
    site::SITE_CHANGE,
    store::{self, Found},
    view::Planned,
};
use crate::{App, Reject, options::RunnerOptions};

/// How often it looks, in ms.
const LOOK_MS: u64 = 10_000;

/// Since when what was seen is as it is.
#[derive(Default)]
pub(crate) struct Housekeeping {
    unowned: HashMap<String, UnixMillis>,
    /// By the key of its presence, and incarnation.
    absent: HashMap<(Key, Incarnation), UnixMillis>,
}

/// Looks after everything until it is dropped.
pub(crate) async fn run(app: App, options: RunnerOptions) {
    let mut seen = Housekeeping::default();
    let mut ticks = Ticks::every(LOOK_MS);
    loop {
        ticks.next(app.clock().as_ref()).await;
        if let Err(error) = seen.look(&app, options).await {
            tracing::debug!(error = error.problem().detail, "housekeeping failed");
        }
    }
}

impl Housekeeping {
    async fn look(&mut self, app: &App, options: RunnerOptions) -> Result<(), Reject> {
        let now = app.authority().now().await?;
        self.cameras(app, options, now).await?;
        self.runners(app, options, now).await
    }

    async fn cameras(
        &mut self,
        app: &App,
        options: RunnerOptions,
        now: UnixMillis,
    ) -> Result<(), Reject> {
        // Every site that ever had a camera or a zone.
        let changes: Vec<Found<()>> =
            store::all(app.authority(), SITE_CHANGE, String::new()).await?;
        let mut counts: BTreeMap<&'static str, (i64, i64)> = BTreeMap::new();
        let mut seen = HashMap::new();
        for change in &changes {
            let Some(place) = SiteId::of_id(change.key.id()) else {
                continue;
            };
            let planned = app.sites().planned(app, &place, None, now).await?;
            for (camera, reason) in unowned(&planned) {
                let since = self.unowned.get(camera).copied().unwrap_or(now);
                let (all, long) = counts.entry(reason).or_default();
                *all += 1;
                *long += i64::from(now.since(since) >= options.unowned_after.millis());
                seen.insert(camera.to_owned(), since);
            }
        }
        self.unowned = seen;
        app.metrics().unowned(&counts);
        Ok(())
    }

    async fn runners(
        &mut self,
        app: &App,
        options: RunnerOptions,
        now: UnixMillis,
    ) -> Result<(), Reject> {
        let authority = app.authority();
        let all: Vec<Found<Runner>> = store::all(authority, RUNNER, String::new()).await?;
        let present: HashSet<(Key, Incarnation)> = runners::live(authority, RUNNER, None, None)
            .await?
            .into_iter()
            .map(|lease| (lease.key, lease.holder.incarnation))
            .collect();
        let mut counts: BTreeMap<&'static str, i64> = BTreeMap::new();
        for found in &all {
            let is_present = present.contains(&presence_of(&found.value)?);
            let status = match found.value.status {
                _ if !is_present => "absent",
                RunnerStatus::Active => "active",
                RunnerStatus::Draining => "draining",
                RunnerStatus::Cordoned => "cordoned",
                RunnerStatus::Inactive => "absent",
            };
            *counts.entry(status).or_default() += 1;
        }
        app.metrics().runners(&counts);
        if options.forget_after.millis() == 0 {
            return Ok(());
        }
        let mut absent = HashMap::new();
        for found in &all {
            let name = presence_of(&found.value)?;
            if present.contains(&name) {
                continue;
            }
            let since = self.absent.get(&name).copied().unwrap_or(now);
            if now.since(since) < options.forget_after.millis() {
                absent.insert(name, since);
                continue;
            }
            // One that registers meanwhile writes its record, and is not forgotten.
            let transaction = Transaction {
                expect: vec![found.expect()],
                writes: runners::removal(found, "forgotten")?,
                ..Transaction::default()
            };
            if let Committed::Done { .. } = store::commit(app, transaction).await? {
                tracing::info!(runner = %found.key.id(), "runner forgotten");
            }
        }
        self.absent = absent;
        Ok(())
    }
}

/// What a runner's presence is known by.
fn presence_of(runner: &Runner) -> Result<(Key, Incarnation), Reject> {
    let key = presence_key(&runner.tenant_id, &runner.runner_id)?;
    Ok((key, runner.incarnation.clone()))
}

/// The cameras that somebody should have and nobody has, each with the reason.
fn unowned(planned: &Planned) -> Vec<(&str, &'static str)> {
    let site = &planned.site;
    let nobody = site.runners.values().all(|it| !it.present);
    let free = planned.decisions.iter().filter(|(_, it)| it.from.is_none());
    free.filter_map(|(name, decision)| {
        let camera = &site.cameras.get(name)?.camera;
        let reason = match (decision.reason, &decision.to) {
            (Reason::Disabled, _) => return None,
            (Reason::Parked, _) => "parked",
            (_, Some(_)) => "pending",
            _ if nobody => "no_runner",
            _ if site.candidates(camera).next().is_none() => "not_eligible",
            _ => "no_room",
        };
        Some((&**name, reason))
    })
    .collect()
}
