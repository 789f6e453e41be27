use lease::{
    Event, EventCause, EventKind, EventLease, Holder, Key, Labels, Lease, LeaseId, OnOutage,
    Revision, Status, Token, Ttl, UnixMillis,
    polling::{NODE, POLL, WEIGHT},
};

use super::super::{Target, mirror::End};
use super::*;

const NOW: BootMillis = BootMillis::new(1_000_000);

/// A fleet as one instance knows it, as events report it.
struct Known {
    me: String,
    mirror: Mirror,
    planner: Planner,
    mine: BTreeMap<String, Mine>,
    asked: BTreeSet<String>,
    acquires: usize,
}

impl Holdings for BTreeMap<String, Mine> {
    fn mine(&self, target: &str) -> Option<Mine> {
        self.get(target).copied()
    }
    fn all(&self) -> Vec<String> {
        self.keys().cloned().collect()
    }
    fn count(&self) -> usize {
        self.len()
    }
}

fn event(kind: &str, id: &str, holder: &str, token: u64, what: EventKind) -> Event {
    let labels = [(WEIGHT.to_owned(), "1".to_owned())].into();
    Event {
        revision: Revision::ZERO,
        at: UnixMillis::new(5_000),
        kind: what,
        key: Key::new(kind, id).unwrap(),
        lease: Some(EventLease {
            id: LeaseId::from_grant(UnixMillis::new(1), Revision::ZERO),
            holder: Holder::new(holder, "1").unwrap(),
            token: Token::new(token).unwrap(),
            expires_at: UnixMillis::new(35_000),
            labels: Labels::new(labels).unwrap(),
        }),
        cause: None,
        detail: None,
    }
}

fn lease(kind: &str, id: &str, holder: &str, token: u64) -> Lease {
    Lease {
        id: LeaseId::from_grant(UnixMillis::new(1), Revision::ZERO),
        key: Key::new(kind, id).unwrap(),
        holder: Holder::new(holder, "1").unwrap(),
        token: Token::new(token).unwrap(),
        ttl: Ttl::from_secs(30).unwrap(),
        on_outage: OnOutage::FailClosed,
        release_on_death: false,
        acquired_at: UnixMillis::new(5_000),
        expires_at: UnixMillis::new(35_000),
        renewed_at: None,
        status: Status::Active,
        labels: Labels::default(),
        stats: None,
        handoff: None,
    }
}

impl Known {
    fn of(me: &str, nodes: &[&str], targets: &[&str]) -> Self {
        let mut known = Self {
            me: me.to_owned(),
            mirror: Mirror::new(me),
            planner: Planner::new(me),
            mine: BTreeMap::new(),
            asked: BTreeSet::new(),
            acquires: usize::MAX,
        };
        for node in nodes {
            known.event(NODE, node, node, 1, EventKind::LeaseAcquired);
        }
        known.set_targets(targets.iter().map(|id| (*id).to_owned()));
        known
    }

    fn set_targets(&mut self, targets: impl Iterator<Item = String>) {
        let targets = targets.map(Target::new).collect();
        self.mirror.set_targets(NOW, NOW, targets);
    }

    fn event(&mut self, kind: &str, id: &str, holder: &str, token: u64, what: EventKind) {
        self.mirror
            .apply(NOW, &event(kind, id, holder, token, what));
    }

    /// This instance has a target.
    fn owns(&mut self, target: &str, token: u64) {
        let me = self.me.clone();
        self.event(POLL, target, &me, token, EventKind::LeaseAcquired);
        let mine = Mine {
            moving: false,
            by_hand: false,
        };
        self.mine.insert(target.to_owned(), mine);
        self.mirror.touch(target);
    }

    fn plan(&mut self, now: BootMillis) -> Plan {
        let room = Room {
            asked: &self.asked,
            acquires: self.acquires,
            moving: self.mine.values().filter(|mine| mine.moving).count(),
        };
        self.planner.plan(
            now,
            &Options::default(),
            &mut self.mirror,
            &self.mine,
            &room,
        )
    }

    fn preferred(&mut self, target: &str) -> String {
        self.mirror.split().get(target).unwrap().to_owned()
    }
}

fn other(of: &str) -> &'static str {
    if of == "one" { "two" } else { "one" }
}

fn preferred(target: &str) -> String {
    Known::of("one", &["one", "two"], &[target]).preferred(target)
}

#[test]
fn the_preferred_instance_asks_at_once_and_the_other_after_a_wait() {
    let preferred = preferred("a");
    let mut first = Known::of(&preferred, &["one", "two"], &["a"]);
    assert_eq!(first.plan(NOW).acquire, ["a"]);
    let mut known = Known::of(other(&preferred), &["one", "two"], &["a"]);
    let waiting = known.plan(NOW);
    assert!(waiting.acquire.is_empty());
    assert_eq!(waiting.wake_at, Some(NOW.plus(500)));
    assert_eq!(known.plan(NOW.plus(500)).acquire, ["a"]);
}

#[test]
fn an_instance_that_let_go_is_not_waited_for() {
    let preferred = preferred("a");
    let mut known = Known::of(other(&preferred), &["one", "two"], &["a"]);
    known.event(POLL, "a", &preferred, 7, EventKind::LeaseAcquired);
    assert!(known.plan(NOW).acquire.is_empty());
    known.event(POLL, "a", &preferred, 7, EventKind::LeaseReleased);
    assert_eq!(known.plan(NOW).acquire, ["a"]);
}

#[test]
fn a_lease_that_vanished_with_the_stores_data_is_left_alone_for_its_ttl() {
    let mut known = Known::of("one", &["one"], &["a"]);
    known.event(POLL, "a", "two", 7, EventKind::LeaseAcquired);
    let lost = End::DataLost { ttl_ms: 30_000 };
    known.mirror.forget_lease(NOW, "a", lost);
    let waiting = known.plan(NOW.plus(29_999));
    assert!(waiting.acquire.is_empty());
    assert_eq!(waiting.wake_at, Some(NOW.plus(30_000)));
    assert_eq!(known.plan(NOW.plus(30_000)).acquire, ["a"]);
}

/// The store can lose everything right after a hand-over. Whoever handed a target over must know that
/// its successor has it, whichever came first: the successor's event, or the answer to the commit.
#[test]
fn after_a_hand_over_the_successors_lease_is_known_whichever_news_comes_first() {
    let token = Token::new(7).unwrap();
    for event_first in [true, false] {
        let mut known = Known::of("one", &["one", "two"], &["a"]);
        known.owns("a", 7);
        if event_first {
            known.event(POLL, "a", "one", 7, EventKind::LeaseReleased);
            known.event(POLL, "a", "two", 8, EventKind::LeaseAcquired);
        }
        known.mine.clear();
        let moved = lease(POLL, "a", "two", 8);
        known.mirror.handed_over(NOW, "a", token, Some(&moved));
        if !event_first {
            known.event(POLL, "a", "one", 7, EventKind::LeaseReleased);
        }
        let seen = known.mirror.lease("a").expect("the successor's lease");
        assert_eq!(seen.token.get(), 8, "event first: {event_first}");
        // The store is empty now: the list has nothing, and the successor's lease is missing from it.
        let gone = known.mirror.set_leases(NOW, UnixMillis::new(6_000), &[]);
        assert_eq!(gone.len(), 1, "event first: {event_first}");
        let lost = End::DataLost { ttl_ms: 30_000 };
        known.mirror.forget_lease(NOW, "a", lost);
        let plan = known.plan(NOW.plus(29_999));
        assert!(plan.acquire.is_empty(), "event first: {event_first}");
    }
}

#[test]
fn a_non_preferred_owner_offers_once_the_fleet_stands_still() {
    let preferred = preferred("a");
    let mut known = Known::of(other(&preferred), &["one", "two"], &["a"]);
    known.owns("a", 7);
    assert!(known.plan(NOW).offer.is_empty());
    let settled = NOW.plus(1_000);
    assert_eq!(
        known.plan(settled).offer,
        [("a".to_owned(), preferred.clone())]
    );
    known.mine.get_mut("a").unwrap().moving = true;
    known.mirror.touch("a");
    assert!(known.plan(settled).offer.is_empty(), "once");
}

#[test]
fn a_declined_offer_is_repeated_ever_more_rarely() {
    let preferred = preferred("a");
    let mut known = Known::of(other(&preferred), &["one", "two"], &["a"]);
    known.owns("a", 7);
    let (mut offers, end) = (0, NOW.plus(3_600_000));
    let mut now = NOW.plus(1_000);
    while now < end {
        let plan = known.plan(now);
        if !plan.offer.is_empty() {
            offers += 1;
            known.planner.declined(now, "a", &preferred);
            known.mirror.touch("a");
        }
        now = now.plus(250);
    }
    assert!((10..=25).contains(&offers), "{offers} offers in an hour");
}

#[test]
fn an_instance_that_did_not_answer_is_offered_more_soon_and_then_ever_more_rarely() {
    let preferred = preferred("a");
    let mut known = Known::of(other(&preferred), &["one", "two"], &["a"]);
    known.owns("a", 7);
    let mut now = NOW.plus(1_000);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        // Several offers under way come to nothing together.
        for _ in 0..3 {
            known.planner.silent(now, &preferred, 60_000);
        }
        known.mirror.touch("a");
        let from = now;
        while known.plan(now).offer.is_empty() {
            now = now.plus(500);
        }
        pauses.push(now.since(from) / 1_000);
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    known.planner.answered(&preferred);
    known.mirror.touch("a");
    assert_eq!(known.plan(now).offer.len(), 1, "at once");
}

#[test]
fn what_this_instance_is_done_with_is_old_news() {
    let mut known = Known::of("one", &["one"], &["a"]);
    known.event(POLL, "a", "one", 7, EventKind::LeaseAcquired);
    known.mirror.finished(NOW, "a", Token::new(7).unwrap());
    // Events about it that were still on their way.
    known.event(POLL, "a", "one", 7, EventKind::LeaseAcquired);
    assert!(known.mirror.lease("a").is_none());
}

#[test]
fn paused_and_deleted_targets_are_released_unless_they_were_asked_for_by_hand() {
    let mut known = Known::of("one", &["one"], &["a"]);
    let paused = Target {
        is_paused: true,
        ..Target::new("a")
    };
    known.mirror.set_target(NOW, NOW, "a", Some(paused));
    for (target, by_hand) in [("a", false), ("gone", false), ("by-hand", true)] {
        let mine = Mine {
            moving: false,
            by_hand,
        };
        known.mine.insert(target.to_owned(), mine);
    }
    let released = known.plan(NOW).release;
    assert_eq!(
        released,
        [("a".to_owned(), "paused"), ("gone".to_owned(), "deleted")]
    );
}

#[test]
fn what_was_released_is_looked_at_again_before_it_is_taken() {
    let mut known = Known::of("one", &["one", "two"], &["a"]);
    assert!(!known.mirror.is_outdated("a"), "nobody had it");
    known.event(POLL, "a", "two", 7, EventKind::LeaseAcquired);
    known.event(POLL, "a", "two", 7, EventKind::LeaseReleased);
    assert!(known.mirror.is_outdated("a"));
    known
        .mirror
        .set_target(NOW, NOW.plus(1), "a", Some(Target::new("a")));
    assert!(!known.mirror.is_outdated("a"), "read after it was released");
}

/// A foreign program's presence has no token, and it knows no hand-over.
fn with_foreign(me: &str, targets: &[&str]) -> Known {
    let mut known = Known::of(me, &["one"], targets);
    let labels = [(WEIGHT.to_owned(), "1".to_owned())].into();
    let own = Lease {
        labels: Labels::new(labels).unwrap(),
        ..lease(NODE, "one", "one", 1)
    };
    let nodes = [own, lease(NODE, "two", "two", 0)];
    known.mirror.set_nodes(NOW, &nodes);
    known
}

#[test]
fn what_a_foreign_program_should_have_is_left_to_it_and_taken_back_when_it_does_not_take_it() {
    let target = (0..100)
        .map(|n| format!("t{n}"))
        .find(|id| with_foreign("one", &[id]).preferred(id) == "two")
        .unwrap();
    let mut known = with_foreign("one", &[&target]);
    known.owns(&target, 7);
    let settled = NOW.plus(1_000);
    let plan = known.plan(settled);
    assert_eq!(plan.leave, [(target.clone(), "two".to_owned())]);
    assert!(plan.offer.is_empty());
    // It was let go, and is waited for.
    known.mine.clear();
    let token = Token::new(7).unwrap();
    known.mirror.finished(settled, &target, token);
    let wait_ms = Options::default().foreign_wait_ms();
    assert!(wait_ms > Options::default().discovery_ms);
    let waiting = known.plan(settled.plus(wait_ms - 1));
    assert!(waiting.acquire.is_empty());
    let late = settled.plus(wait_ms);
    assert_eq!(known.plan(late).acquire, [target.as_str()]);
    // It did not take it: it gets nothing for a while.
    known.owns(&target, 8);
    let plan = known.plan(late.plus(1));
    assert!(plan.leave.is_empty() && plan.offer.is_empty());
    let later = late.plus(UNWILLING_MS + 1);
    known.mirror.touch(&target);
    assert_eq!(known.plan(later).leave.len(), 1, "another chance");
}

#[test]
fn a_foreign_programs_lease_is_looked_at_every_second() {
    let mut known = Known::of("one", &["one"], &["a"]);
    let by_hand = lease(POLL, "a", "by-hand", 0);
    known
        .mirror
        .set_leases(NOW, UnixMillis::new(5_000), std::slice::from_ref(&by_hand));
    for second in 1..5 {
        let now = NOW.plus(second * 1_000);
        let plan = known.plan(NOW.plus(second * 1_000 - 1));
        assert_eq!(plan.wake_at, Some(now));
        assert_eq!(known.mirror.foreign_due(now, 9), ["a"]);
        known.mirror.looked(now, "a", Some(&by_hand));
        assert!(known.mirror.foreign_due(now, 9).is_empty());
    }
    assert_eq!(known.mirror.lease("a").unwrap().acquired_at, None);
    let now = NOW.plus(5_000);
    known.mirror.looked(now, "a", None);
    assert_eq!(known.plan(now).acquire, ["a"]);
}

#[test]
fn targets_that_are_gone_are_forgotten() {
    let mut known = Known::of("one", &["one", "two"], &["stays"]);
    for round in 0..100 {
        let id = format!("t{round}");
        known.set_targets(["stays".to_owned(), id.clone()].into_iter());
        known.event(POLL, &id, "two", 7, EventKind::LeaseAcquired);
        known.event(POLL, &id, "two", 7, EventKind::LeaseReleased);
        known.plan(NOW);
        known.mirror.finished(NOW, &id, Token::new(7).unwrap());
    }
    known.set_targets(["stays".to_owned()].into_iter());
    assert!(known.mirror.remembered() <= 1);
}

/// Fifty instances and ten thousand targets: what planning costs is counted, not timed.
#[test]
fn ten_thousand_targets_and_fifty_instances_are_planned_without_looking_at_everything_again() {
    const TARGETS: usize = 10_000;
    const NODES: usize = 50;
    let names: Vec<String> = (0..NODES).map(|n| format!("node-{n}")).collect();
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    let me = nodes[17];
    let mut known = Known::of(me, &nodes, &[]);
    known.acquires = 32;
    known.planner.has_gathered = true;
    known.set_targets((0..TARGETS).map(|n| format!("session-{n}")));
    let split = known.mirror.split();
    let all: Vec<String> = known.mirror.target_ids().cloned().collect();
    let owner = |id: &str| split.get(id).unwrap().to_owned();
    // All of them acquire at the same time: each grant is an event for everybody.
    let mut token = 1;
    let mut plans = 0;
    for batch in all.chunks(32) {
        let plan = known.plan(NOW);
        plans += 1;
        for target in &plan.acquire {
            assert_eq!(owner(target), me);
            token += 1;
            known.owns(target, token);
        }
        for target in batch.iter().filter(|id| owner(id) != me) {
            token += 1;
            known.event(
                POLL,
                target,
                &owner(target),
                token,
                EventKind::LeaseAcquired,
            );
        }
    }
    assert_eq!(known.mine.len(), TARGETS / NODES);
    let looks = known.planner.looks();
    assert!(
        looks <= 3 * TARGETS as u64,
        "{looks} looks in {plans} plans for {TARGETS} targets"
    );
    assert_eq!(known.mirror.costs_computed(), (TARGETS * NODES) as u64);
    // A round of renewals of everybody changes nothing, and costs no look at all.
    known.plan(NOW);
    let before = known.planner.looks();
    for (n, target) in all.iter().enumerate() {
        let token = known.mirror.lease(target).unwrap().token.get();
        known.event(POLL, target, &owner(target), token, EventKind::LeaseRenewed);
        if n % 100 == 0 {
            assert_eq!(known.plan(NOW).acquire, [""; 0]);
        }
    }
    assert_eq!(known.planner.looks(), before);
    println!(
        "{TARGETS} targets, {NODES} instances: {looks} looks in {plans} plans, {} costs",
        known.mirror.costs_computed()
    );
}

/// A fleet in which every news needs a step of time: what is granted or handed over in one step is known to
/// everybody in the next.
struct Simulation {
    fleet: Vec<Known>,
    owners: BTreeMap<String, String>,
    news: Vec<Event>,
    /// Targets that were offered, and to whom.
    offers: Vec<(String, String)>,
    token: u64,
    now: BootMillis,
}

impl Simulation {
    const STEP_MS: u64 = 50;

    fn new(targets: usize) -> Self {
        let owners = (0..targets).map(|n| (format!("target-{n}"), String::new()));
        Self {
            fleet: Vec::new(),
            owners: owners.collect(),
            news: Vec::new(),
            offers: Vec::new(),
            token: 0,
            now: NOW,
        }
    }

    fn join(&mut self, name: &str) {
        let mut known = Known::of(name, &[], &[]);
        for node in self.fleet.iter().map(|known| known.me.clone()) {
            let event = event(NODE, &node, &node, 1, EventKind::LeaseAcquired);
            known.mirror.apply(self.now, &event);
        }
        let targets = self.owners.keys().cloned().map(Target::new).collect();
        known.mirror.set_targets(self.now, self.now, targets);
        for (target, owner) in self.owners.iter().filter(|(_, owner)| !owner.is_empty()) {
            let taken = event(POLL, target, owner, 1, EventKind::LeaseAcquired);
            known.mirror.apply(self.now, &taken);
        }
        known.acquires = 32;
        self.fleet.push(known);
        self.news
            .push(event(NODE, name, name, 1, EventKind::LeaseAcquired));
    }

    fn grant(&mut self, target: &str, to: &str) {
        self.owners.insert(target.to_owned(), to.to_owned());
        self.token += 1;
        let taken = event(POLL, target, to, self.token, EventKind::LeaseAcquired);
        self.news.push(taken);
        let known = self.fleet.iter_mut().find(|known| known.me == to).unwrap();
        let mine = Mine {
            moving: false,
            by_hand: false,
        };
        known.mine.insert(target.to_owned(), mine);
    }

    /// Returns how many targets were handed over.
    fn step(&mut self) -> usize {
        let news = std::mem::take(&mut self.news);
        let moves = std::mem::take(&mut self.offers);
        for (target, to) in &moves {
            let from = self.owners[target].clone();
            let mut over = event(POLL, target, &from, self.token, EventKind::LeaseReleased);
            let successor = Holder::new(to, "1").unwrap();
            over.cause = Some(EventCause::HandedOverTo(successor));
            self.news.push(over);
            let known = self.fleet.iter_mut().find(|known| known.me == from);
            known.unwrap().mine.remove(target);
            self.grant(target, to);
        }
        let mut asked = Vec::new();
        for known in &mut self.fleet {
            for event in &news {
                known.mirror.apply(self.now, event);
            }
            let plan = known.plan(self.now);
            self.offers.extend(plan.offer);
            for target in plan.acquire {
                known.mirror.touch(&target);
                asked.push((target, known.me.clone()));
            }
        }
        for (target, node) in asked {
            if self.owners[&target].is_empty() {
                self.grant(&target, &node);
            }
        }
        self.now = self.now.plus(Self::STEP_MS);
        moves.len()
    }

    /// How many targets are not where they should be.
    fn misplaced(&mut self) -> usize {
        let split = self.fleet[0].mirror.split();
        let owners = self.owners.iter();
        owners
            .filter(|(target, owner)| split.get(target) != Some(owner.as_str()))
            .count()
    }
}

#[test]
fn a_fleet_that_starts_within_moments_shares_thousands_of_targets_with_few_hand_overs() {
    let (targets, nodes) = leasehold_testkit::length::pick((2_000, 10), (10_000, 50));
    let mut simulation = Simulation::new(targets);
    let names: Vec<String> = (0..nodes).map(|n| format!("node-{n}")).collect();
    // Not all together: the last ones come half a second after the first.
    let mut moved = 0;
    let began = simulation.now;
    for wave in names.chunks(2 * nodes / 5) {
        for name in wave {
            simulation.join(name);
        }
        for _ in 0..5 {
            moved += simulation.step();
        }
    }
    while simulation.misplaced() > 0 {
        moved += simulation.step();
        assert!(simulation.now.since(began) < 30_000, "it comes to an end");
    }
    let took_ms = simulation.now.since(began);
    println!("{targets} targets, {nodes} instances: even after {took_ms} ms, {moved} handed over");
    // Only what the first ones took before the last had come.
    assert!(moved <= 4 * nodes / 5 * EAGER, "{moved} were handed over");
    assert_eq!(simulation.token, (targets + moved) as u64, "nothing twice");
}

#[test]
fn an_instance_that_is_taking_targets_is_left_those_that_it_should_have() {
    let names: Vec<String> = (0..100).map(|n| format!("target-{n:02}")).collect();
    let targets: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut known = Known::of("one", &["one", "two"], &targets);
    let split = known.mirror.split();
    let of = |node: &str| -> Vec<String> {
        let of = names.iter().filter(|id| split.get(id) == Some(node));
        of.cloned().collect()
    };
    let (own, others) = (of("one"), of("two"));
    for (token, target) in known.plan(NOW).acquire.iter().enumerate() {
        known.owns(target, 1 + token as u64);
    }
    assert_eq!(known.mine.len(), own.len(), "its own at once");
    // The other one takes a target now and then: it is left the others too.
    let mut now = NOW.plus(100);
    for (token, target) in others.iter().take(20).enumerate() {
        let token = 200 + token as u64;
        let taken = event(POLL, target, "two", token, EventKind::LeaseAcquired);
        known.mirror.apply(now, &taken);
        assert_eq!(known.plan(now.plus(1_400)).acquire, [""; 0], "{now:?}");
        now = now.plus(1_500);
    }
    // Not for longer than a lease lasts.
    assert_eq!(now.since(NOW), 100 + 30_000);
    assert_eq!(known.plan(now).acquire, others[20..]);
}

#[test]
fn what_an_instance_stopped_taking_is_taken_by_another() {
    let names: Vec<String> = (0..100).map(|n| format!("target-{n:02}")).collect();
    let targets: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut known = Known::of("one", &["one", "two"], &targets);
    for (token, target) in known.plan(NOW).acquire.iter().enumerate() {
        known.owns(target, 1 + token as u64);
    }
    let split = known.mirror.split();
    let first = names.iter().find(|id| split.get(id) == Some("two"));
    let taken = event(POLL, first.unwrap(), "two", 500, EventKind::LeaseAcquired);
    known.mirror.apply(NOW.plus(400), &taken);
    let waiting = known.plan(NOW.plus(500));
    assert_eq!(waiting.acquire.len(), 0);
    assert_eq!(waiting.wake_at, Some(NOW.plus(2_400)));
    assert!(!known.plan(NOW.plus(2_400)).acquire.is_empty());
}
