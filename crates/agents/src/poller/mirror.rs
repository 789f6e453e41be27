//! What this instance knows about the fleet: read in full now and then, and kept up with by events.

use std::collections::{BTreeMap, HashMap};

use lease::{
    BootMillis, Cause, Event, EventKind, Handoff, Holder, Lease, Token, UnixMillis,
    polling::{self, Member, NODE, POLL},
};

use super::Target;

/// Somebody's lease on a target, as far as it is known here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    pub holder: Holder,
    /// Zero when a foreign program took it by hand.
    pub token: Token,
    /// When it lapses if it was not renewed since, on the clock of this machine.
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
    nodes: BTreeMap<String, Present>,
    leases: BTreeMap<String, Seen>,
    targets: BTreeMap<String, Target>,
    /// Since when a target is known to be free.
    free_since: HashMap<String, BootMillis>,
    /// Targets whose last lease vanished without an end: data was lost, and its holder may not know
    /// yet. Until then nobody else may begin.
    quarantine: HashMap<String, BootMillis>,
    /// Instances that gave a target up or let it lapse: until then they are not waited for.
    leaving: HashMap<String, BootMillis>,
    /// The newest token under which this very instance had a target and is done with it. What is
    /// heard later about that token is old news.
    done_with: HashMap<String, Token>,
    /// Who had a target last.
    last_owner: HashMap<String, String>,
    /// When nodes or targets last changed.
    pub changed_at: BootMillis,
    /// Whether targets were read at least once: before that, none counts as deleted.
    pub targets_known: bool,
    /// Who should have what; computed when nodes or targets change.
    split: Option<BTreeMap<String, String>>,
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

/// How soon a foreign program's lease is looked at again, whatever it says about its end.
const FOREIGN_LOOK_MS: u64 = 1_000;

/// How long an instance that let go of a target is not waited for.
const LEAVING_MS: u64 = 2_000;

impl Mirror {
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
            self.moved(now);
        }
    }

    /// Takes over a full list of targets.
    pub fn set_targets(&mut self, now: BootMillis, targets: Vec<Target>) {
        let targets: BTreeMap<String, Target> = targets
            .into_iter()
            .map(|target| (target.id.clone(), target))
            .collect();
        let active = |targets: &BTreeMap<String, Target>| -> Vec<String> {
            let active = targets.values().filter(|target| !target.is_paused);
            active.map(|target| target.id.clone()).collect()
        };
        let same = active(&targets) == active(&self.targets);
        self.targets = targets;
        self.targets_known = true;
        if !same {
            self.moved(now);
        }
    }

    /// One target was written or removed.
    pub fn set_target(&mut self, now: BootMillis, id: &str, target: Option<Target>) {
        match target {
            Some(target) => self.targets.insert(id.to_owned(), target),
            None => self.targets.remove(id),
        };
        self.moved(now);
    }

    /// Takes over a full list of leases. Returns those that were known and are gone without an event
    /// that says so; they still count as there.
    pub fn set_leases(
        &mut self,
        now: BootMillis,
        authority_now: UnixMillis,
        leases: &[Lease],
    ) -> Vec<(String, Seen)> {
        let mut fresh: BTreeMap<String, Seen> = leases
            .iter()
            .filter(|lease| !self.is_done_with(lease.key.id(), lease.token))
            .map(|lease| {
                let seen = Seen::of(lease, now, authority_now);
                (lease.key.id().to_owned(), seen)
            })
            .collect();
        let gone: Vec<(String, Seen)> = self
            .leases
            .iter()
            .filter(|(target, _)| !fresh.contains_key(*target))
            .map(|(target, seen)| (target.clone(), seen.clone()))
            .collect();
        fresh.extend(gone.iter().cloned());
        self.leases = fresh;
        gone
    }

    /// A lease is over.
    pub fn forget_lease(&mut self, now: BootMillis, target: &str, end: End) {
        let owner = self
            .leases
            .remove(target)
            .map(|seen| seen.holder.name.to_string());
        if let Some(owner) = &owner {
            self.last_owner.insert(target.to_owned(), owner.clone());
        }
        match (end, owner) {
            (End::LetGo, Some(owner)) => {
                self.leaving.insert(owner, now.plus(LEAVING_MS));
            }
            (End::DataLost { ttl_ms }, _) => {
                self.quarantine.insert(target.to_owned(), now.plus(ttl_ms));
            }
            (End::LetGo | End::HandedOver, _) => {}
        }
        self.free_since.insert(target.to_owned(), now);
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
    }

    fn is_done_with(&self, target: &str, token: Token) -> bool {
        self.done_with
            .get(target)
            .is_some_and(|done| token <= *done)
    }

    /// This instance does not ask for the target by itself before then.
    pub fn leave_alone(&mut self, target: &str, until: BootMillis) {
        self.quarantine.insert(target.to_owned(), until);
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
            let seen = Seen {
                holder: holder.clone(),
                token: *token,
                lapses_at: now.plus(self::left_ms(*token, *left_ms)),
                handoff: None,
                acquired_at: None,
                renewed_at: None,
            };
            self.leases.insert(target.to_owned(), seen);
        }
    }

    /// This instance got it.
    pub fn acquired(&mut self, now: BootMillis, target: &str, lease: &Lease) {
        let seen = Seen::of(lease, now, lease.acquired_at);
        self.leases.insert(target.to_owned(), seen);
        self.free_since.remove(target);
        self.quarantine.remove(target);
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
                    self.moved(now);
                }
            }
            (NODE, kind) if kind.ends_lease() => {
                let newer = |present: &Present| present.token > lease.token;
                if !self.nodes.get(id).is_some_and(newer) && self.nodes.remove(id).is_some() {
                    self.moved(now);
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
                self.leases.insert(id.to_owned(), seen);
                self.free_since.remove(id);
                self.quarantine.remove(id);
            }
            (POLL, kind) if kind.ends_lease() => {
                let newer = |seen: &Seen| seen.token > lease.token;
                if !self.leases.get(id).is_some_and(newer) {
                    let handed_over = event
                        .detail
                        .as_deref()
                        .is_some_and(|detail| detail.starts_with("handed over"));
                    let end = if handed_over {
                        End::HandedOver
                    } else {
                        End::LetGo
                    };
                    self.forget_lease(now, id, end);
                }
            }
            _ => {}
        }
    }

    fn moved(&mut self, now: BootMillis) {
        self.changed_at = now;
        self.split = None;
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

    pub fn target(&self, id: &str) -> Option<&Target> {
        self.targets.get(id)
    }

    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.targets.values()
    }

    pub fn lease(&self, target: &str) -> Option<&Seen> {
        self.leases.get(target)
    }

    /// All known leases.
    pub fn leases(&self) -> impl Iterator<Item = (&String, &Seen)> {
        self.leases.iter()
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

    /// When the next lease of somebody else lapses if it is not renewed: time to look again.
    pub fn next_lapse(&self, me: &str) -> Option<BootMillis> {
        self.leases
            .values()
            .filter(|seen| seen.holder.name.as_str() != me)
            .map(|seen| seen.lapses_at)
            .min()
    }

    /// Who should have each active target.
    pub fn split(&mut self) -> &BTreeMap<String, String> {
        let members: Vec<Member> = self.members();
        let targets = &self.targets;
        self.split
            .get_or_insert_with(|| whose(&members, targets.values()))
    }

    /// The same, as if those that are leaving had left.
    pub fn split_of_staying(&mut self, now: BootMillis) -> BTreeMap<String, String> {
        self.leaving.retain(|_, until| *until > now);
        let any = self.nodes.keys().any(|id| self.leaving.contains_key(id));
        if !any {
            return self.split().clone();
        }
        let staying: Vec<Member> = self
            .members()
            .into_iter()
            .filter(|member| !self.leaving.contains_key(&member.id))
            .collect();
        whose(&staying, self.targets.values())
    }
}

fn whose<'t>(
    members: &[Member],
    targets: impl Iterator<Item = &'t Target>,
) -> BTreeMap<String, String> {
    let active = targets.filter(|target| !target.is_paused);
    polling::split(members, active.map(|target| target.id.as_str()))
        .into_iter()
        .map(|(target, member)| (target.to_owned(), members[member].id.clone()))
        .collect()
}

/// A foreign program's lease may have no end at all: it is looked at again in a while.
fn left_ms(token: Token, left_ms: u64) -> u64 {
    if token == Token::ZERO {
        left_ms.max(FOREIGN_LOOK_MS)
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
            acquired_at: Some(lease.acquired_at),
            renewed_at: lease.renewed_at,
        }
    }
}
