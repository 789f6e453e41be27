//! What a server looks after by itself: it counts cameras that nobody has, by reason, and forgets runners
//! that have been away for long.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lease::{
    Committed, Transaction, UnixMillis,
    registry::{CAMERA, Camera, RUNNER, Runner},
};

use super::{
    Place,
    assignment::{Reason, Site},
    index_key, runners,
    store::{self, Found},
};
use crate::{App, Reject, options::RunnerOptions};

/// How often it looks, in ms.
const LOOK_MS: u64 = 10_000;

/// Since when what was seen is as it is.
#[derive(Default)]
pub(crate) struct Housekeeping {
    unowned: HashMap<String, UnixMillis>,
    /// By name and incarnation.
    absent: HashMap<(String, String), UnixMillis>,
}

/// Looks after everything until it is dropped.
pub(crate) async fn run(app: App, options: RunnerOptions) {
    let mut seen = Housekeeping::default();
    loop {
        let clock = app.clock();
        clock.sleep_until(clock.boot().plus(LOOK_MS)).await;
        if let Err(error) = seen.look(&app, options).await {
            tracing::debug!(?error, "housekeeping failed");
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
        let cameras: Vec<Found<Camera>> =
            store::all(app.authority(), CAMERA, String::new()).await?;
        let places: BTreeSet<(&str, &str)> = cameras
            .iter()
            .map(|it| (it.value.tenant_id.as_str(), it.value.site_id.as_str()))
            .collect();
        let mut counts: BTreeMap<&'static str, (i64, i64)> = BTreeMap::new();
        let mut seen = HashMap::new();
        for (tenant, site) in places {
            let site = Site::load(app.authority(), &Place::new(tenant, site)?).await?;
            for (camera, reason) in unowned(&site) {
                let since = self.unowned.get(camera).copied().unwrap_or(now);
                let (all, long) = counts.entry(reason).or_default();
                *all += 1;
                *long += i64::from(now.since(since) >= options.unowned_after_ms);
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
        if options.forget_after_ms == 0 {
            return Ok(());
        }
        let authority = app.authority();
        let all: Vec<Found<Runner>> = store::all(authority, RUNNER, String::new()).await?;
        let present: BTreeSet<(String, String)> = runners::live(authority, RUNNER, None, None)
            .await?
            .into_iter()
            .map(|lease| {
                let incarnation = lease.holder.incarnation.as_str().to_owned();
                (lease.key.id().to_owned(), incarnation)
            })
            .collect();
        let mut absent = HashMap::new();
        for found in &all {
            let id = found.value.runner_id.clone();
            let name = (id.clone(), found.value.incarnation.as_str().to_owned());
            if present.contains(&name) {
                continue;
            }
            let since = self.absent.get(&name).copied().unwrap_or(now);
            if now.since(since) < options.forget_after_ms {
                absent.insert(name, since);
                continue;
            }
            // One that registers meanwhile writes its record, and is not forgotten.
            let transaction = Transaction {
                expect: vec![found.expect()],
                writes: vec![
                    store::remove(found.key.clone(), "forgotten"),
                    store::remove(index_key(RUNNER, &id)?, "forgotten"),
                ],
                ..Transaction::default()
            };
            if let Committed::Done { .. } = authority.commit(transaction).await? {
                tracing::info!(runner = id, "runner forgotten");
            }
        }
        self.absent = absent;
        Ok(())
    }
}

/// The cameras that somebody should have and nobody has, each with the reason.
fn unowned(site: &Site) -> Vec<(&str, &'static str)> {
    let decisions = site.decide();
    let mut found = Vec::new();
    for it in &site.cameras {
        let camera = &it.value;
        let Some(decision) = decisions.get(camera.camera_uuid.as_str()) else {
            continue;
        };
        if decision.from.is_some() {
            continue;
        }
        let reason = match (decision.reason, decision.to) {
            (Reason::Disabled, _) => continue,
            (Reason::Parked, _) => "parked",
            (_, Some(_)) => "pending",
            _ if site.runners.iter().all(|it| !it.present) => "no_runner",
            _ if site.candidates(camera).next().is_none() => "not_eligible",
            _ => "no_room",
        };
        found.push((camera.camera_uuid.as_str(), reason));
    }
    found
}
