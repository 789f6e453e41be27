//! The plan of a site, and why a camera is where it is, as callers see them.

use std::collections::HashMap;

use lease::{
    registry::{Reason, Site, SiteCamera},
    rendezvous::{self, Node},
};
use leasehold_api::{Candidate, Explanation, Move, Plan};

/// What would change.
pub(crate) fn plan(site: &Site) -> Plan {
    let decisions = site.decide(&site.split());
    let moves: Vec<Move> = decisions
        .iter()
        .filter(|(_, decision)| decision.moves())
        .map(|(name, decision)| Move {
            camera_uuid: name.to_string(),
            from: decision.from.as_deref().map(str::to_owned),
            to: decision.to.as_deref().map(str::to_owned),
            reason: decision.reason.word().to_owned(),
        })
        .collect();
    let count =
        |reason: fn(Reason) -> bool| decisions.values().filter(|it| reason(it.reason)).count();
    Plan {
        cameras: site.cameras.len(),
        runners: site.runners.values().filter(|it| it.present).count(),
        kept: count(|reason| reason == Reason::Kept),
        resting: count(|reason| matches!(reason, Reason::Disabled | Reason::Parked)),
        moves,
    }
}

/// Why a camera is where it is.
pub(crate) fn explain(site: &Site, it: &SiteCamera) -> Explanation {
    let name = it.camera.camera_uuid.as_str();
    let split = site.split();
    let decisions = site.decide(&split);
    let decision = decisions.get(name);
    let mut held: HashMap<&str, u32> = HashMap::new();
    for holding in site.holdings.values() {
        *held.entry(holding.holder.name.as_str()).or_default() += 1;
    }
    let mut candidates: Vec<(u64, Candidate)> = site
        .runners
        .values()
        .map(|member| {
            let runner = &member.runner;
            let load = held.get(runner.runner_id.as_str()).copied().unwrap_or(0);
            let node = Node {
                name: &runner.runner_id,
                weight: split.weight(&runner.runner_id, runner.capacity),
                capacity: None,
            };
            let obstacles = site.obstacles(it, member, load);
            let candidate = Candidate {
                runner_id: runner.runner_id.clone(),
                load,
                capacity: runner.capacity,
                obstacles: obstacles.into_iter().map(str::to_owned).collect(),
            };
            (rendezvous::cost(&node, name), candidate)
        })
        .collect();
    candidates.sort_by(|a, b| (a.0, &a.1.runner_id).cmp(&(b.0, &b.1.runner_id)));
    Explanation {
        camera_uuid: name.to_owned(),
        holder: site.holder_of(name).map(str::to_owned),
        assigned: decision.and_then(|it| it.to.as_deref()).map(str::to_owned),
        reason: decision
            .map_or(Reason::Unassigned, |it| it.reason)
            .word()
            .to_owned(),
        candidates: candidates.into_iter().map(|(_, it)| it).collect(),
    }
}
