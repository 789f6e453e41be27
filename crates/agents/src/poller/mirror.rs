//! What this instance knows about the fleet: read in full now and then, and kept up with by events.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use lease::{
    BootMillis, Cause, Event, EventCause, EventKind, Handoff, HandoffStage, Holder, Lease, Token,
    UnixMillis,
    polling::{Member, NODE, POLL},
    rendezvous::{self, Ranking, Split},
};

use super::Target;

/// Somebody's lease on a target, as far as it is known here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    pub holder: Holder,
    /// Zero when a foreign program took it by hand.
    pub token: Token,
    /// When it lapses if it was not renewed since, on the clock of this machine. A foreign program's
    /// is looked at again then.
    pub lapses_at: BootMillis,
    pub handoff: Option<Handoff>,
    pub acquired_at: Option<UnixMillis>,
    pub renewed_at: Option<UnixMillis>,
}

/// A presence.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Present {
    member: Member,
    holder: Holder,
    token: Token,
}

/// The fleet as it is known here.
#[derive(Default)]
pub(super) struct Mirror {
    /// This very instance.
    me: String,
    nodes: BTreeMap<String, Present>,
    leases: BTreeMap<String, Seen>,
    /// Leases of others by when they lapse; those of foreign programs apart, by the next look.
    lapses: BTreeSet<(BootMillis, String)>,
    foreign: BTreeSet<(BootMillis, String)>,
    /// Targets with an open offer to this instance, as a list said.
    offered: BTreeSet<String>,
    targets: BTreeMap<String, Target>,
    /// When the reading of the targets began; for some, of that target alone.
    targets_at: BootMillis,
    target_at: HashMap<String, BootMillis>,
    /// Since when a target is known to be free.
    free_since: HashMap<String, BootMillis>,
    /// Targets whose last lease vanished without an end: data was lost, and its holder may not know
    /// yet. Until then nobody else may begin.
    quarantine: HashMap<String, BootMillis>,
    /// Instances that gave a target up or let it lapse: until then they are not waited for.
    leaving: HashMap<String, BootMillis>,
    /// Instances that are taking targets: since when without a longer pause, and when the last time.
    taking: HashMap<String, (BootMillis, BootMillis)>,
    /// The newest token under which this very instance had a target and is done with it. What is
    /// heard later about that token is old news.
    done_with: HashMap<String, Token>,
    /// Who had a target last.
    last_owner: HashMap<String, String>,
    /// When nodes or targets last changed.
    pub changed_at: BootMillis,
    /// Whether targets were read at least once: before that, none counts as deleted.
    pub targets_known: bool,
    /// Targets about which something changed since the last plan, or all of them.
    changed: BTreeSet<String>,
    all_changed: bool,
    ranking: Ranking,
    /// Who should have what; computed when nodes or targets change.
    split: Option<Arc<Split>>,
    /// The same as if those that are leaving had left, and who those are.
    staying: Option<(BTreeSet<String>, Arc<Split>)>,
}

/// What changed since the last plan.
pub(super) enum Changed {
    /// So much that everything is looked at.
    All,
    /// These targets.
    Some(BTreeSet<String>),
}

/// How a lease came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// Released, revoked or expired: its holder is not waited for, since it may be leaving.
    LetGo,
    /// Moved to a successor.
    HandedOver,
    /// Not at all: the store lost it. Its holder may believe in it for as long as its ttl.
    DataLost {
        /// That long.
        ttl_ms: u64,
    },
}

/// How soon a foreign program's lease is looked at again, whatever it says about its end: it does not
/// announce when it lets go.
const FOREIGN_LOOK_MS: u64 = 1_000;
/// The same where this instance is not the one to take it.
const FOREIGN_LOOK_OTHERS_MS: u64 = 10_000;

/// How long an instance that let go of a target is not waited for.
const LEAVING_MS: u64 = 2_000;

/// How long an instance that took a target counts as being at it.
const TAKING_MS: u64 = 2_000;

impl Mirror {
    /// What the instance `me` knows: nothing yet.
    pub fn new(me: &str) -> Self {
        Self {
            me: me.to_owned(),
            ..Self::default()
        }
    }

    /// Takes over a full list of presences.
    pub fn set_nodes(&mut self, now: BootMillis, leases: &[Lease]) {
        let nodes: BTreeMap<String, Present> = leases
            .iter()
            .filter_map(|lease| Some((lease.key.id().to_owned(), Present::of(lease)?)))
            .collect();
        let same = nodes.len() == self.nodes.len()
            && nodes
                .iter()
                .zip(&self.nodes)
                .all(|(new, old)| new.1.member == old.1.member);
        self.nodes = nodes;
        if !same {
            self.nodes_changed(now);
        }
    }

    /// Takes over a full list of targets, whose reading began at `asked`. What is remembered about
    /// targets that are gone is forgotten.
    pub fn set_targets(&mut self, now: BootMillis, asked: BootMillis, targets: Vec<Target>) {
        let targets: BTreeMap<String, Target> = targets
            .into_iter()
            .map(|target| (target.id.clone(), target))
            .collect();
        let active = |targets: &BTreeMap<String, Target>| -> Vec<String> {
            let active = targets.values().filter(|target| !target.is_paused);
            active.map(|target| target.id.clone()).collect()
        };
        let same = active(&targets) == active(&self.targets) && self.targets_known;
        self.targets = targets;
        self.targets_known = true;
        self.targets_at = asked;
        self.target_at.retain(|_, at| *at > asked);
        if !same {
            let active = self.targets.values().filter(|target| !target.is_paused);
            self.ranking.set(active.map(|target| target.id.as_str()));
            self.moved(now);
        }
        let (targets, leases) = (&self.targets, &self.leases);
        let known = |id: &String| targets.contains_key(id) || leases.contains_key(id);
        self.target_at.retain(|id, _| known(id));
        self.free_since.retain(|id, _| known(id));
        self.last_owner.retain(|id, _| known(id));
        self.done_with.retain(|id, _| known(id));
        // Data may have been lost, targets included: what must be left alone stays so.
        self.quarantine.retain(|_, until| *until > now);
    }

    /// One target was read, since it was written or removed: the question was sent at `asked`.
    pub fn set_target(
        &mut self,
        now: BootMillis,
        asked: BootMillis,
        id: &str,
        target: Option<Target>,
    ) {
        self.target_at.insert(id.to_owned(), asked);
        let is_active = |target: Option<&Target>| target.is_some_and(|it| !it.is_paused);
        let (before, after) = (is_active(self.targets.get(id)), is_active(target.as_ref()));
        match target {
            Some(target) => self.targets.insert(id.to_owned(), target),
            None => self.targets.remove(id),
        };
        match (before, after) {
            (false, true) => self.ranking.add(id),
            (true, false) => self.ranking.remove(id),
            _ => {}
        }
        if before == after {
            self.touch(id);
        } else {
            self.moved(now);
        }
    }

    /// Whether what is known about a target is older than the end of its last lease: whoever let it go
    /// may have done so because it was paused or removed.
    pub fn is_outdated(&self, target: &str) -> bool {
        let read = self.target_at.get(target).copied().unwrap_or_default();
        let free = self.free_since.get(target).copied();
        self.last_owner.contains_key(target)
            && free.is_some_and(|since| read.max(self.targets_at) <= since)
    }

    /// Takes over a full list of leases. Returns those that were known and are gone without an event
    /// that says so; they still count as there.
    pub fn set_leases(
        &mut self,
        now: BootMillis,
        authority_now: UnixMillis,
        leases: &[Lease],
    ) -> Vec<(String, Seen)> {
        let listed: BTreeSet<&str> = leases.iter().map(|lease| lease.key.id()).collect();
        let gone = self
            .leases
            .iter()
            .filter(|(target, _)| !listed.contains(target.as_str()))
            .map(|(target, seen)| (target.clone(), seen.clone()))
            .collect();
        for lease in leases {
            let target = lease.key.id();
            let newer = self.leases.get(target).is_some_and(|seen| {
                // An event reported a newer lease while the list was read.
                lease.token != Token::ZERO && seen.token > lease.token
            });
            if !newer && !self.is_done_with(target, lease.token) {
                self.insert(target, Seen::of(lease, now, authority_now));
            }
        }
        gone
    }

    /// Keeps a lease that was seen, and everything that goes by it.
    fn insert(&mut self, target: &str, seen: Seen) {
        let own = seen.holder.name.as_str() == self.me;
        let same = self
            .leases
            .get(target)
            .is_some_and(|before| before.holder == seen.holder && before.token == seen.token);
        self.unindex(target);
        let offered = seen.handoff.as_ref().is_some_and(|handoff| {
            handoff.stage == HandoffStage::Offered && handoff.successor.name.as_str() == self.me
        });
        if offered {
            self.offered.insert(target.to_owned());
        }
        if seen.token == Token::ZERO {
            self.foreign.insert((seen.lapses_at, target.to_owned()));
        } else if !own {
            self.lapses.insert((seen.lapses_at, target.to_owned()));
        }
        self.leases.insert(target.to_owned(), seen);
        self.free_since.remove(target);
        if !same {
            self.touch(target);
        }
    }

    fn unindex(&mut self, target: &str) {
        self.offered.remove(target);
        if let Some(before) = self.leases.get(target) {
            let entry = (before.lapses_at, target.to_owned());
            self.lapses.remove(&entry);
            self.foreign.remove(&entry);
        }
    }

    /// A lease is over.
    pub fn forget_lease(&mut self, now: BootMillis, target: &str, end: End) {
        self.unindex(target);
        let owner = self
            .leases
            .remove(target)
            .map(|seen| seen.holder.name.to_string());
        if let Some(owner) = &owner {
            self.last_owner.insert(target.to_owned(), owner.clone());
        }
        match (end, owner) {
            (End::LetGo, Some(owner)) => {
                self.taking.remove(&owner);
                let before = self.leaving.insert(owner, now.plus(LEAVING_MS));
                if before.is_none_or(|until| until <= now) {
                    self.all_changed = true;
                }
            }
            (End::DataLost { ttl_ms }, _) => {
                self.quarantine.insert(target.to_owned(), now.plus(ttl_ms));
            }
            (End::LetGo | End::HandedOver, _) => {}
        }
        self.free_since.insert(target.to_owned(), now);
        self.touch(target);
    }

    /// This instance is done with a target that it had under `token`.
    pub fn finished(&mut self, now: BootMillis, target: &str, token: Token) {
        self.done_with.insert(target.to_owned(), token);
        if self
            .leases
            .get(target)
            .is_some_and(|seen| seen.token <= token)
        {
            self.forget_lease(now, target, End::HandedOver);
        }
        self.touch(target);
    }

    /// This instance handed over a target that it had under `token`: the commit's answer has the
    /// successor's lease, unless this instance had lost its own before. The successor's event may have
    /// come first; either way its lease is known from here on, so that it is respected also when the
    /// store loses it.
    pub fn handed_over(
        &mut self,
        now: BootMillis,
        target: &str,
        token: Token,
        successor: Option<&Lease>,
    ) {
        self.finished(now, target, token);
        if let Some(lease) = successor
            && self
                .leases
                .get(target)
                .is_none_or(|seen| seen.token < lease.token)
        {
            let from = lease.renewed_at.unwrap_or(lease.acquired_at);
            self.insert(target, Seen::of(lease, now, from));
        }
    }

    fn is_done_with(&self, target: &str, token: Token) -> bool {
        token != Token::ZERO
            && self
                .done_with
                .get(target)
                .is_some_and(|done| token <= *done)
    }

    /// This instance does not ask for the target by itself before then.
    pub fn leave_alone(&mut self, target: &str, until: BootMillis) {
        let longest = self.quarantine.get(target).copied().unwrap_or_default();
        self.quarantine
            .insert(target.to_owned(), longest.max(until));
        self.touch(target);
    }

    /// Who had the target last, as far as it is known.
    pub fn last_owner(&self, target: &str) -> Option<&str> {
        self.last_owner.get(target).map(String::as_str)
    }

    /// Somebody else has it, says a refusal.
    pub fn refused(&mut self, now: BootMillis, target: &str, cause: &Cause) {
        if let Cause::Held {
            holder,
            token,
            left_ms,
            ..
        } = cause
        {
            let newer = |seen: &Seen| *token != Token::ZERO && seen.token > *token;
            if self.leases.get(target).is_some_and(newer) {
                return;
            }
            let seen = Seen {
                holder: holder.clone(),
                token: *token,
                lapses_at: now.plus(self::left_ms(*token, *left_ms)),
                handoff: None,
                acquired_at: None,
                renewed_at: None,
            };
            self.insert(target, seen);
        }
    }

    /// This instance got it.
    pub fn acquired(&mut self, now: BootMillis, target: &str, lease: &Lease) {
        let seen = Seen::of(lease, now, lease.acquired_at);
        self.insert(target, seen);
        self.quarantine.remove(target);
    }

    /// A foreign program's lease was looked at again.
    pub fn looked(&mut self, now: BootMillis, target: &str, found: Option<&Lease>) {
        let Some(seen) = self.leases.get(target) else {
            return;
        };
        if seen.token != Token::ZERO {
            return;
        }
        match found {
            Some(lease) => {
                let next = if self.is_preferred(target) {
                    FOREIGN_LOOK_MS
                } else {
                    FOREIGN_LOOK_OTHERS_MS
                };
                let mut seen = Seen::of(lease, now, lease.acquired_at);
                if seen.token == Token::ZERO {
                    seen.lapses_at = now.plus(next);
                }
                self.insert(target, seen);
            }
            None => self.forget_lease(now, target, End::LetGo),
        }
    }

    /// Whether this instance is the one that should have it.
    fn is_preferred(&mut self, target: &str) -> bool {
        let split = self.split();
        split.get(target) == Some(self.me.as_str())
    }

    /// Foreign programs' leases whose next look is due, at most so many.
    pub fn foreign_due(&self, now: BootMillis, most: usize) -> Vec<String> {
        let due = self.foreign.iter().take_while(|(at, _)| *at <= now);
        due.take(most).map(|(_, target)| target.clone()).collect()
    }

    /// Keeps up with one event about presence or a target's lease.
    pub fn apply(&mut self, now: BootMillis, event: &Event) {
        let Some(lease) = &event.lease else { return };
        let id = event.key.id();
        match (event.key.kind(), event.kind) {
            (NODE, EventKind::LeaseAcquired) => {
                self.leaving.remove(id);
                if let Some(member) = Member::from_labels(id, lease.token, &lease.labels) {
                    let present = Present {
                        member,
                        holder: lease.holder.clone(),
                        token: lease.token,
                    };
                    self.nodes.insert(id.to_owned(), present);
                    self.nodes_changed(now);
                }
            }
            (NODE, kind) if kind.ends_lease() => {
                let newer = |present: &Present| present.token > lease.token;
                if !self.nodes.get(id).is_some_and(newer) && self.nodes.remove(id).is_some() {
                    self.nodes_changed(now);
                }
            }
            (POLL, EventKind::LeaseAcquired | EventKind::LeaseRenewed) => {
                let left_ms = lease.expires_at.since(event.at);
                let acquired = event.kind == EventKind::LeaseAcquired;
                let before = self.leases.get(id);
                let old_news = before.is_some_and(|seen| seen.token > lease.token);
                if old_news || self.is_done_with(id, lease.token) {
                    return;
                }
                let before = before.filter(|seen| seen.token == lease.token);
                let seen = Seen {
                    holder: lease.holder.clone(),
                    token: lease.token,
                    lapses_at: now.plus(left_ms),
                    handoff: None,
                    acquired_at: if acquired {
                        Some(event.at)
                    } else {
                        before.and_then(|seen| seen.acquired_at)
                    },
                    renewed_at: (!acquired).then_some(event.at),
                };
                if acquired {
                    self.took(now, lease.holder.name.as_str());
                }
                self.insert(id, seen);
                self.quarantine.remove(id);
            }
            (POLL, kind) if kind.ends_lease() => {
                let newer = |seen: &Seen| seen.token > lease.token;
                if !self.leases.get(id).is_some_and(newer) {
                    let end = match event.cause {
                        Some(EventCause::HandedOverTo(_)) => End::HandedOver,
                        _ => End::LetGo,
                    };
                    self.forget_lease(now, id, end);
                }
            }
            _ => {}
        }
    }

    fn took(&mut self, now: BootMillis, node: &str) {
        match self.taking.get_mut(node) {
            Some((_, last)) if last.plus(TAKING_MS) > now => *last = now,
            Some(taking) => *taking = (now, now),
            None => {
                self.taking.insert(node.to_owned(), (now, now));
            }
        }
    }

    /// Until when an instance that is taking targets is left those that it should have: as long as it goes
    /// on with that, but not for longer than `most_ms`.
    pub fn taking_until(&self, node: &str, most_ms: u64) -> Option<BootMillis> {
        let (since, last) = self.taking.get(node)?;
        Some(last.plus(TAKING_MS).min(since.plus(most_ms)))
    }

    /// Something about a target changed that the next plan should know.
    pub fn touch(&mut self, target: &str) {
        if !self.all_changed {
            self.changed.insert(target.to_owned());
        }
    }

    /// Everything is to be planned anew.
    pub fn touch_all(&mut self) {
        self.all_changed = true;
        self.changed.clear();
    }

    /// Whether the next plan has something to look at.
    pub fn has_changed(&self) -> bool {
        self.all_changed || !self.changed.is_empty()
    }

    /// What changed since this was asked last.
    pub fn take_changed(&mut self, now: BootMillis) -> Changed {
        let before = self.leaving.len();
        self.leaving.retain(|_, until| *until > now);
        if self.all_changed || self.leaving.len() < before {
            self.all_changed = false;
            self.changed.clear();
            return Changed::All;
        }
        Changed::Some(std::mem::take(&mut self.changed))
    }

    fn nodes_changed(&mut self, now: BootMillis) {
        self.ranking
            .keep_nodes(self.nodes.keys().map(String::as_str));
        let nodes = &self.nodes;
        self.taking.retain(|node, _| nodes.contains_key(node));
        // Another one may be the one that takes what a foreign program lets go.
        let foreign: Vec<String> = self.foreign.iter().map(|(_, id)| id.clone()).collect();
        for target in foreign {
            if let Some(mut seen) = self.leases.get(&target).cloned() {
                seen.lapses_at = now;
                self.insert(&target, seen);
            }
        }
        self.moved(now);
    }

    fn moved(&mut self, now: BootMillis) {
        self.changed_at = now;
        self.split = None;
        self.staying = None;
        self.touch_all();
    }

    /// The live instances, by id.
    pub fn members(&self) -> Vec<Member> {
        self.nodes
            .values()
            .map(|present| present.member.clone())
            .collect()
    }

    pub fn member_holder(&self, id: &str) -> Option<&Holder> {
        self.nodes.get(id).map(|present| &present.holder)
    }

    /// Whether an instance is a foreign program, which knows neither events nor hand-overs.
    pub fn is_foreign(&self, node: &str) -> bool {
        self.nodes
            .get(node)
            .is_some_and(|present| present.token == Token::ZERO)
    }

    pub fn target(&self, id: &str) -> Option<&Target> {
        self.targets.get(id)
    }

    pub fn target_ids(&self) -> impl Iterator<Item = &String> {
        self.targets.keys()
    }

    pub fn lease(&self, target: &str) -> Option<&Seen> {
        self.leases.get(target)
    }

    /// Targets that are offered to this instance, as far as a list said so.
    pub fn take_offered(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.offered)
    }

    /// Since when the target is free, if it is; the first look counts.
    pub fn free_since(&mut self, now: BootMillis, target: &str) -> Option<BootMillis> {
        if self.leases.contains_key(target) {
            return None;
        }
        Some(*self.free_since.entry(target.to_owned()).or_insert(now))
    }

    pub fn quarantined_until(&self, now: BootMillis, target: &str) -> Option<BootMillis> {
        self.quarantine
            .get(target)
            .copied()
            .filter(|until| *until > now)
    }

    pub fn is_leaving(&self, now: BootMillis, id: &str) -> bool {
        self.leaving.get(id).is_some_and(|until| *until > now)
    }

    /// When the first of those that are leaving is waited for again.
    pub fn next_return(&self) -> Option<BootMillis> {
        self.leaving.values().copied().min()
    }

    /// When the next lease of another instance lapses if it is not renewed: time to read everything.
    pub fn next_lapse(&self) -> Option<BootMillis> {
        self.lapses.first().map(|(at, _)| *at)
    }

    /// When the next foreign program's lease is to be looked at.
    pub fn next_foreign(&self) -> Option<BootMillis> {
        self.foreign.first().map(|(at, _)| *at)
    }

    /// Who should have each active target.
    pub fn split(&mut self) -> Arc<Split> {
        if let Some(split) = &self.split {
            return split.clone();
        }
        let split = self.split_over(|_| true);
        self.split = Some(split.clone());
        split
    }

    fn split_over(&mut self, stays: impl Fn(&str) -> bool) -> Arc<Split> {
        let members = self.nodes.values().map(|present| &present.member);
        let nodes: Vec<rendezvous::Node<'_>> = members
            .filter(|member| stays(&member.id))
            .map(|member| rendezvous::Node {
                name: &member.id,
                weight: member.weight,
                capacity: member.capacity,
            })
            .collect();
        Arc::new(self.ranking.split(&nodes))
    }

    /// The same, as if those that are leaving had left.
    pub fn split_of_staying(&mut self, now: BootMillis) -> Arc<Split> {
        let leaving: BTreeSet<String> = self
            .leaving
            .iter()
            .filter(|(id, until)| **until > now && self.nodes.contains_key(*id))
            .map(|(id, _)| id.clone())
            .collect();
        if leaving.is_empty() {
            return self.split();
        }
        if let Some((left, split)) = &self.staying
            && *left == leaving
        {
            return split.clone();
        }
        let split = self.split_over(|id| !leaving.contains(id));
        self.staying = Some((leaving, split.clone()));
        split
    }

    /// How many costs were computed for splits.
    #[cfg(test)]
    pub fn costs_computed(&self) -> u64 {
        self.ranking.costs_computed()
    }

    /// How many targets something is remembered about.
    #[cfg(test)]
    pub fn remembered(&self) -> usize {
        [
            self.free_since.len(),
            self.quarantine.len(),
            self.done_with.len(),
            self.last_owner.len(),
            self.target_at.len(),
        ]
        .into_iter()
        .max()
        .unwrap_or_default()
    }
}

/// A foreign program's lease may have no end at all, and it does not announce when it lets go: it is
/// looked at again soon.
fn left_ms(token: Token, left_ms: u64) -> u64 {
    if token == Token::ZERO {
        FOREIGN_LOOK_MS
    } else {
        left_ms
    }
}

impl Present {
    fn of(lease: &Lease) -> Option<Self> {
        Some(Self {
            member: Member::of(lease)?,
            holder: lease.holder.clone(),
            token: lease.token,
        })
    }
}

impl Seen {
    fn of(lease: &Lease, now: BootMillis, authority_now: UnixMillis) -> Self {
        Self {
            holder: lease.holder.clone(),
            token: lease.token,
            lapses_at: now.plus(left_ms(lease.token, lease.lapses_at().since(authority_now))),
            handoff: lease.handoff.as_deref().cloned(),
            // A foreign program does not say when it took it: the time of the look is not it.
            acquired_at: (lease.token != Token::ZERO).then_some(lease.acquired_at),
            renewed_at: lease.renewed_at,
        }
    }
}
