//! What to do next, as a pure function of what is known: acquire, release, hand over, or wait.
//!
//! The planner looks only at targets about which something changed, or whose time has come; everything
//! else stays as it was planned before.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lease::BootMillis;

use super::{
    Options,
    mirror::{Changed, Mirror},
};

/// One owned target, as planning needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mine {
    /// A hand-over is under way.
    pub moving: bool,
    /// Asked for by the program, not found by discovery.
    pub by_hand: bool,
}

/// What this instance has and is about to have.
pub(super) trait Holdings {
    /// How it has a target, if it does.
    fn mine(&self, target: &str) -> Option<Mine>;
    /// What it has.
    fn all(&self) -> Vec<String>;
    /// How much it has.
    fn count(&self) -> usize;
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
    /// Targets to release to a foreign program that should have them, and to which one.
    pub leave: Vec<(String, String)>,
    /// When time alone changes the answer.
    pub wake_at: Option<BootMillis>,
}

impl Plan {
    fn wake(&mut self, at: BootMillis) {
        self.wake_at = Some(self.wake_at.map_or(at, |other| other.min(at)));
    }
}

/// The pauses after an offer that came to nothing grow from the first to the second.
const DECLINED_MS: (u64, u64) = (1_000, 300_000);
/// How long a foreign program that did not take what was left to it is not waited for.
const UNWILLING_MS: u64 = 600_000;

/// How many targets an instance takes before the fleet that it came with has gathered: with few targets nobody
/// waits, and of many only few have to be handed over to those who came a moment later.
const EAGER: usize = 64;
/// For how many times the settling time a fleet may gather.
const GATHERS: u64 = 5;

/// An offer that came to nothing.
struct Declined {
    successor: String,
    times: u32,
    until: BootMillis,
}

/// How much may be begun now.
pub(super) struct Room<'a> {
    /// Targets whose acquire is under way.
    pub asked: &'a BTreeSet<String>,
    /// How many more acquires may be begun.
    pub acquires: usize,
    /// How many targets are on their way to another instance.
    pub moving: usize,
}

/// What was planned so far, for one instance.
#[derive(Default)]
pub(super) struct Planner {
    me: String,
    /// Free targets that can be asked for now.
    ready: BTreeSet<String>,
    /// Free targets that another instance should have and did not take in time, by that instance: asked for
    /// when nothing else is left to ask for and that instance is not on its way to them.
    left_over: BTreeMap<String, BTreeSet<String>>,
    left_over_by: HashMap<String, String>,
    /// Targets to look at again, by when.
    later: BTreeSet<(BootMillis, String)>,
    later_at: HashMap<String, BootMillis>,
    /// Own targets that another instance should have, by that instance.
    misplaced: BTreeMap<String, BTreeSet<String>>,
    misplaced_to: HashMap<String, String>,
    declined: HashMap<String, Declined>,
    /// Instances that did not answer an offer: until when they get no other, and how long that was.
    silent: HashMap<String, (BootMillis, u64)>,
    /// Foreign programs that did not take what was left to them.
    unwilling: HashMap<String, BootMillis>,
    /// When this instance made its first plan, until the fleet that it came with has gathered.
    gathers_since: Option<BootMillis>,
    has_gathered: bool,
    /// How often a target was looked at: what planning costs.
    looks: u64,
}

impl Planner {
    pub fn new(me: &str) -> Self {
        Self {
            me: me.to_owned(),
            ..Self::default()
        }
    }

    /// An offer came to nothing: the next one comes later each time.
    pub fn declined(&mut self, now: BootMillis, target: &str, successor: &str) {
        let before = self.declined.remove(target);
        let times = before
            .filter(|before| before.successor == successor)
            .map_or(0, |before| before.times.saturating_add(1));
        let pause = (DECLINED_MS.0 << times.min(16)).min(DECLINED_MS.1);
        let declined = Declined {
            successor: successor.to_owned(),
            times,
            until: now.plus(pause),
        };
        self.declined.insert(target.to_owned(), declined);
    }

    /// An instance did not answer an offer: it gets none for a while, twice as long each time. It may
    /// only be busy.
    pub fn silent(&mut self, now: BootMillis, node: &str, longest_ms: u64) {
        let before = self.silent.get(node).copied();
        let pause_ms = match before {
            // Offers that were under way together count once.
            Some((until, _)) if until > now => return,
            Some((_, pause_ms)) => (pause_ms * 2).min(longest_ms),
            None => DECLINED_MS.0.min(longest_ms),
        };
        let until = now.plus(pause_ms);
        self.silent.insert(node.to_owned(), (until, pause_ms));
    }

    /// An instance took what was offered to it.
    pub fn answered(&mut self, node: &str) {
        self.silent.remove(node);
    }

    /// How often a target was looked at so far.
    #[cfg(test)]
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// Plans what to do now.
    pub fn plan(
        &mut self,
        now: BootMillis,
        options: &Options,
        mirror: &mut Mirror,
        holdings: &impl Holdings,
        room: &Room<'_>,
    ) -> Plan {
        let mut plan = Plan::default();
        let targets = self.take_due(now, mirror, holdings);
        for target in targets {
            self.look(&target, now, options, mirror, holdings, room, &mut plan);
        }
        self.acquire(now, options, mirror, holdings, room, &mut plan);
        self.hand_over(now, options, mirror, holdings, room, &mut plan);
        let times = [
            self.later.first().map(|(at, _)| *at),
            mirror.next_return(),
            mirror.next_lapse(),
            mirror.next_foreign(),
        ];
        for at in times.into_iter().flatten() {
            plan.wake(at);
        }
        if mirror.has_changed() {
            plan.wake(now.plus(1));
        }
        plan
    }

    /// What changed, and what was put off until now.
    fn take_due(
        &mut self,
        now: BootMillis,
        mirror: &mut Mirror,
        holdings: &impl Holdings,
    ) -> BTreeSet<String> {
        let mut targets = match mirror.take_changed(now) {
            Changed::All => {
                self.forget_all(now, mirror);
                let mut all: BTreeSet<String> = mirror.target_ids().cloned().collect();
                all.extend(holdings.all());
                all
            }
            Changed::Some(targets) => targets,
        };
        while let Some((at, _)) = self.later.first()
            && *at <= now
            && let Some((_, target)) = self.later.pop_first()
        {
            self.later_at.remove(&target);
            targets.insert(target);
        }
        targets
    }

    /// Everything is planned anew; what was learned about others stays.
    fn forget_all(&mut self, now: BootMillis, mirror: &Mirror) {
        self.ready.clear();
        self.left_over.clear();
        self.left_over_by.clear();
        self.later.clear();
        self.later_at.clear();
        self.misplaced.clear();
        self.misplaced_to.clear();
        self.silent
            .retain(|node, _| mirror.member_holder(node).is_some());
        self.unwilling.retain(|_, until| *until > now);
        self.declined
            .retain(|target, _| mirror.target(target).is_some());
    }

    fn forget(&mut self, target: &str) {
        self.ready.remove(target);
        if let Some(at) = self.later_at.remove(target) {
            self.later.remove(&(at, target.to_owned()));
        }
        remove(&mut self.misplaced, &mut self.misplaced_to, target);
        remove(&mut self.left_over, &mut self.left_over_by, target);
    }

    fn put_off(&mut self, target: &str, at: BootMillis) {
        self.later_at.insert(target.to_owned(), at);
        self.later.insert((at, target.to_owned()));
    }

    #[expect(clippy::too_many_arguments, reason = "all that a decision goes by")]
    fn look(
        &mut self,
        target: &str,
        now: BootMillis,
        options: &Options,
        mirror: &mut Mirror,
        holdings: &impl Holdings,
        room: &Room<'_>,
        plan: &mut Plan,
    ) {
        self.looks += 1;
        self.forget(target);
        match holdings.mine(target) {
            Some(mine) => self.look_at_own(target, mine, now, mirror, plan),
            None if room.asked.contains(target) => {}
            None => self.look_at_free(target, now, options, mirror),
        }
    }

    /// Paused and deleted targets are given back immediately; what another should have is handed over.
    fn look_at_own(
        &mut self,
        target: &str,
        mine: Mine,
        now: BootMillis,
        mirror: &mut Mirror,
        plan: &mut Plan,
    ) {
        if mirror.targets_known {
            match mirror.target(target) {
                Some(known) if known.is_paused => {
                    plan.release.push((target.to_owned(), "paused"));
                    return;
                }
                None if !mine.by_hand => {
                    plan.release.push((target.to_owned(), "deleted"));
                    return;
                }
                Some(_) | None => {}
            }
        }
        let split = mirror.split();
        let Some(successor) = split.get(target).filter(|node| *node != self.me) else {
            self.declined.remove(target);
            return;
        };
        match self.declined.get(target) {
            Some(declined) if declined.successor == successor && declined.until > now => {
                let until = declined.until;
                self.put_off(target, until);
            }
            _ => insert(
                &mut self.misplaced,
                &mut self.misplaced_to,
                target,
                successor,
            ),
        }
    }

    fn look_at_free(
        &mut self,
        target: &str,
        now: BootMillis,
        options: &Options,
        mirror: &mut Mirror,
    ) {
        if mirror.target(target).is_none_or(|known| known.is_paused) {
            return;
        }
        let quarantined = mirror.quarantined_until(now, target);
        // Handed over to this very instance, or granted by an answer that got lost.
        let already_ours = mirror
            .lease(target)
            .is_some_and(|seen| seen.holder.name.as_str() == self.me);
        let mut from = BootMillis::default();
        let mut left_to = None;
        if !already_ours {
            let Some(since) = mirror.free_since(now, target) else {
                return;
            };
            let wait_ms = if let Some(node) = self.foreign_owner(target, now, mirror) {
                if since.plus(options.foreign_wait_ms()) <= now {
                    // It had its chance, and is not waited for again soon.
                    self.unwilling.insert(node, now.plus(UNWILLING_MS));
                    mirror.touch_all();
                }
                options.foreign_wait_ms()
            } else {
                let split = mirror.split_of_staying(now);
                let node = split.get(target);
                left_to = node.filter(|node| *node != self.me).map(str::to_owned);
                if node == Some(self.me.as_str()) {
                    0
                } else {
                    options.preference_wait_ms
                }
            };
            if wait_ms > 0 && options.weight == 0 {
                return;
            }
            from = since.plus(wait_ms);
        }
        if let Some(until) = quarantined {
            from = from.max(until);
        }
        if from > now {
            self.put_off(target, from);
            return;
        }
        match left_to {
            Some(node) => insert(&mut self.left_over, &mut self.left_over_by, target, &node),
            None => {
                self.ready.insert(target.to_owned());
            }
        }
    }

    /// The foreign program that should have a target, unless it is not waited for.
    fn foreign_owner(&self, target: &str, now: BootMillis, mirror: &mut Mirror) -> Option<String> {
        let split = mirror.split();
        let node = split.get(target).filter(|node| mirror.is_foreign(node))?;
        let unwilling = self.unwilling.get(node).is_some_and(|until| *until > now);
        (!unwilling).then(|| node.to_owned())
    }

    /// Asks for what this instance should have, and when that is done for what others do not take.
    fn acquire(
        &mut self,
        now: BootMillis,
        options: &Options,
        mirror: &Mirror,
        holdings: &impl Holdings,
        room: &Room<'_>,
        plan: &mut Plan,
    ) {
        let has = holdings.count() + room.asked.len();
        let capacity = options.capacity.map_or(usize::MAX, |most| most as usize);
        let mut most = room.acquires.min(capacity.saturating_sub(has));
        let gathers_until = self.gathers_until(now, options, mirror);
        if gathers_until.is_some() {
            most = most.min(EAGER.saturating_sub(has));
        }
        while plan.acquire.len() < most
            && let Some(target) = self.ready.pop_first()
        {
            plan.acquire.push(target);
        }
        if let Some(until) = gathers_until.filter(|_| !self.ready.is_empty()) {
            plan.wake(until);
        }
        if !self.ready.is_empty() || !room.asked.is_empty() || !plan.acquire.is_empty() {
            return;
        }
        let mut chosen = Vec::new();
        for (node, targets) in &self.left_over {
            match mirror.taking_until(node, options.lease_ttl_ms) {
                Some(until) if until > now => plan.wake(until),
                _ => {
                    let room = most.saturating_sub(chosen.len());
                    chosen.extend(targets.iter().take(room).cloned());
                }
            }
        }
        for target in &chosen {
            self.forget(target);
        }
        plan.acquire = chosen;
    }

    /// Until when a fleet that starts together gathers, if it still does. Only at the start of this very
    /// instance: later, what comes free is taken immediately whoever joins.
    fn gathers_until(
        &mut self,
        now: BootMillis,
        options: &Options,
        mirror: &Mirror,
    ) -> Option<BootMillis> {
        if self.has_gathered {
            return None;
        }
        let since = *self.gathers_since.get_or_insert(now);
        let longest = since.plus(GATHERS * options.settle_ms);
        let until = mirror.changed_at.plus(options.settle_ms).min(longest);
        self.has_gathered = until <= now;
        (!self.has_gathered).then_some(until)
    }

    /// Hands over what another live instance should have, once the fleet stands still.
    fn hand_over(
        &mut self,
        now: BootMillis,
        options: &Options,
        mirror: &Mirror,
        holdings: &impl Holdings,
        room: &Room<'_>,
        plan: &mut Plan,
    ) {
        if self.misplaced.is_empty() {
            return;
        }
        let settled_at = mirror.changed_at.plus(options.settle_ms);
        if now < settled_at {
            plan.wake(settled_at);
            return;
        }
        let most = options.moves_at_once.saturating_sub(room.moving);
        let mut chosen = Vec::new();
        for (node, targets) in &self.misplaced {
            let silent = self.silent.get(node).map(|(until, _)| until);
            let put_off = [silent, self.unwilling.get(node)];
            let put_off = put_off.into_iter().flatten().filter(|until| **until > now);
            if let Some(until) = put_off.max() {
                plan.wake(*until);
                continue;
            }
            if mirror.is_leaving(now, node) {
                continue;
            }
            for target in targets {
                if chosen.len() >= most {
                    break;
                }
                if holdings.mine(target).is_some_and(|mine| !mine.moving) {
                    chosen.push((target.clone(), node.clone()));
                }
            }
        }
        for (target, node) in chosen {
            // Looked at again when the hand-over has come to its end.
            self.forget(&target);
            if mirror.is_foreign(&node) {
                plan.leave.push((target, node));
            } else {
                plan.offer.push((target, node));
            }
        }
    }
}

/// Notes that a target belongs to a node.
fn insert(
    by_node: &mut BTreeMap<String, BTreeSet<String>>,
    node_of: &mut HashMap<String, String>,
    target: &str,
    node: &str,
) {
    node_of.insert(target.to_owned(), node.to_owned());
    let targets = by_node.entry(node.to_owned()).or_default();
    targets.insert(target.to_owned());
}

/// Forgets that a target belongs to a node.
fn remove(
    by_node: &mut BTreeMap<String, BTreeSet<String>>,
    node_of: &mut HashMap<String, String>,
    target: &str,
) {
    if let Some(node) = node_of.remove(target)
        && let Some(targets) = by_node.get_mut(&node)
    {
        targets.remove(target);
        if targets.is_empty() {
            by_node.remove(&node);
        }
    }
}

#[cfg(test)]
mod tests;
