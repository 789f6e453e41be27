//! What to do next, as a pure function of what is known: acquire, release, hand over, or wait.

use std::collections::BTreeSet;

use lease::BootMillis;

use super::{Options, mirror::Mirror};

/// One owned target, as planning needs it.
pub(super) struct Mine {
    pub target: String,
    /// A hand-over is under way.
    pub moving: bool,
    /// Asked for by the program, not found by discovery.
    pub by_hand: bool,
}

/// What to do now, and when to think again.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    /// Targets to ask for.
    pub acquire: Vec<String>,
    /// Targets to give back, and why.
    pub release: Vec<(String, &'static str)>,
    /// Targets to offer, and to whom.
    pub offer: Vec<(String, String)>,
    /// When time alone changes the answer.
    pub wake_at: Option<BootMillis>,
}

impl Plan {
    fn wake(&mut self, at: BootMillis) {
        self.wake_at = Some(self.wake_at.map_or(at, |other| other.min(at)));
    }
}

/// Plans for the instance `me`. `asked` are targets whose acquire is under way; `deaf` tells of
/// instances that did not answer an offer lately.
pub(super) fn plan(
    me: &str,
    now: BootMillis,
    options: &Options,
    mirror: &mut Mirror,
    mine: &[Mine],
    asked: &BTreeSet<String>,
    deaf: impl Fn(&str) -> bool,
) -> Plan {
    let mut plan = Plan::default();
    release(mirror, mine, &mut plan);
    acquire(me, now, options, mirror, mine, asked, &mut plan);
    offer(me, now, options, mirror, mine, deaf, &mut plan);
    if let Some(at) = mirror.next_lapse(me) {
        plan.wake(at);
    }
    plan
}

/// Paused and deleted targets are given back at once.
fn release(mirror: &Mirror, mine: &[Mine], plan: &mut Plan) {
    if !mirror.targets_known {
        return;
    }
    for it in mine {
        match mirror.target(&it.target) {
            Some(target) if target.is_paused => plan.release.push((it.target.clone(), "paused")),
            None if !it.by_hand => plan.release.push((it.target.clone(), "deleted")),
            Some(_) | None => {}
        }
    }
}

fn acquire(
    me: &str,
    now: BootMillis,
    options: &Options,
    mirror: &mut Mirror,
    mine: &[Mine],
    asked: &BTreeSet<String>,
    plan: &mut Plan,
) {
    let owned: BTreeSet<&str> = mine.iter().map(|it| it.target.as_str()).collect();
    let room = options
        .capacity
        .map_or(usize::MAX, |most| most as usize)
        .saturating_sub(owned.len() + asked.len());
    let wanted: Vec<String> = mirror
        .targets()
        .filter(|target| !target.is_paused)
        .map(|target| &target.id)
        .filter(|id| !owned.contains(id.as_str()) && !asked.contains(*id))
        .cloned()
        .collect();
    let split = mirror.split_of_staying(now);
    let mut taken = 0;
    for id in wanted {
        let quarantined = mirror.quarantined_until(now, &id);
        // Handed over to this very instance, or granted by an answer that got lost.
        let already_ours = mirror
            .lease(&id)
            .is_some_and(|seen| seen.holder.name.as_str() == me);
        if already_ours {
            match quarantined {
                Some(until) => plan.wake(until),
                None => plan.acquire.push(id),
            }
            continue;
        }
        let Some(since) = mirror.free_since(now, &id) else {
            continue;
        };
        let preferred = split.get(&id).is_some_and(|node| node == me);
        let mut from = since;
        if !preferred {
            if options.weight == 0 {
                continue;
            }
            from = since.plus(options.preference_wait_ms);
        }
        if let Some(until) = quarantined {
            from = from.max(until);
        }
        if from > now {
            plan.wake(from);
        } else if taken < room {
            taken += 1;
            plan.acquire.push(id);
        }
    }
}

/// Hands over what another live instance should have, once the fleet stands still.
fn offer(
    me: &str,
    now: BootMillis,
    options: &Options,
    mirror: &mut Mirror,
    mine: &[Mine],
    deaf: impl Fn(&str) -> bool,
    plan: &mut Plan,
) {
    let settled_at = mirror.changed_at.plus(options.settle_ms);
    let mut moving = mine.iter().filter(|it| it.moving).count();
    let split = mirror.split().clone();
    for it in mine.iter().filter(|it| !it.moving) {
        let Some(successor) = split.get(&it.target).filter(|node| *node != me) else {
            continue;
        };
        if mirror.is_leaving(now, successor) || deaf(successor) {
            continue;
        }
        if now < settled_at {
            plan.wake(settled_at);
            return;
        }
        if moving >= options.moves_at_once {
            return;
        }
        moving += 1;
        plan.offer.push((it.target.clone(), successor.clone()));
    }
}
