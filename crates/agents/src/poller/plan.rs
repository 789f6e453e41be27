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

#[cfg(test)]
mod tests {
    use lease::{
        Event, EventKind, EventLease, Holder, Key, Labels, LeaseId, Revision, Token, UnixMillis,
        polling::{NODE, POLL, WEIGHT},
    };

    use super::super::{Target, mirror::End};
    use super::*;

    const NOW: BootMillis = BootMillis::new(1_000_000);

    /// A fleet as one instance knows it, told by events.
    #[derive(Default)]
    struct Known {
        mirror: Mirror,
        mine: Vec<Mine>,
        asked: BTreeSet<String>,
    }

    impl Known {
        fn event(&mut self, kind: &str, id: &str, holder: &str, token: u64, what: EventKind) {
            let labels = [(WEIGHT.to_owned(), "1".to_owned())].into();
            let event = Event {
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
                detail: None,
            };
            self.mirror.apply(NOW, &event);
        }

        fn of(nodes: &[&str], targets: &[&str]) -> Self {
            let mut known = Self::default();
            for node in nodes {
                known.event(NODE, node, node, 1, EventKind::LeaseAcquired);
            }
            let targets = targets.iter().map(|id| Target::new(*id)).collect();
            known.mirror.set_targets(NOW, targets);
            known
        }

        fn plan(&mut self, me: &str, now: BootMillis) -> Plan {
            let options = Options::default();
            let (mirror, mine, asked) = (&mut self.mirror, &self.mine, &self.asked);
            plan(me, now, &options, mirror, mine, asked, |_| false)
        }

        fn preferred(&mut self, target: &str) -> String {
            self.mirror.split()[target].clone()
        }
    }

    fn other(of: &str) -> &'static str {
        if of == "one" { "two" } else { "one" }
    }

    #[test]
    fn the_preferred_instance_asks_at_once_and_the_other_after_a_wait() {
        let mut known = Known::of(&["one", "two"], &["a"]);
        let preferred = known.preferred("a");
        assert_eq!(known.plan(&preferred, NOW).acquire, ["a"]);
        let other = other(&preferred);
        let waiting = known.plan(other, NOW);
        assert!(waiting.acquire.is_empty());
        assert_eq!(waiting.wake_at, Some(NOW.plus(500)));
        assert_eq!(known.plan(other, NOW.plus(500)).acquire, ["a"]);
    }

    #[test]
    fn an_instance_that_let_go_is_not_waited_for() {
        let mut known = Known::of(&["one", "two"], &["a"]);
        let preferred = known.preferred("a");
        known.event(POLL, "a", &preferred, 7, EventKind::LeaseAcquired);
        assert!(known.plan(other(&preferred), NOW).acquire.is_empty());
        known.event(POLL, "a", &preferred, 7, EventKind::LeaseReleased);
        assert_eq!(known.plan(other(&preferred), NOW).acquire, ["a"]);
    }

    #[test]
    fn a_lease_that_vanished_with_the_stores_data_is_left_alone_for_its_ttl() {
        let mut known = Known::of(&["one"], &["a"]);
        known.event(POLL, "a", "two", 7, EventKind::LeaseAcquired);
        let lost = End::DataLost { ttl_ms: 30_000 };
        known.mirror.forget_lease(NOW, "a", lost);
        let waiting = known.plan("one", NOW.plus(29_999));
        assert!(waiting.acquire.is_empty());
        assert_eq!(waiting.wake_at, Some(NOW.plus(30_000)));
        assert_eq!(known.plan("one", NOW.plus(30_000)).acquire, ["a"]);
    }

    #[test]
    fn a_non_preferred_owner_offers_once_the_fleet_stands_still() {
        let mut known = Known::of(&["one", "two"], &["a"]);
        let preferred = known.preferred("a");
        let owner = other(&preferred);
        known.event(POLL, "a", owner, 7, EventKind::LeaseAcquired);
        known.mine.push(Mine {
            target: "a".to_owned(),
            moving: false,
            by_hand: false,
        });
        assert!(known.plan(owner, NOW).offer.is_empty());
        let settled = NOW.plus(1_000);
        assert_eq!(
            known.plan(owner, settled).offer,
            [("a".to_owned(), preferred)]
        );
        known.mine[0].moving = true;
        assert!(known.plan(owner, settled).offer.is_empty(), "once");
    }

    #[test]
    fn what_this_instance_is_done_with_is_old_news() {
        let mut known = Known::of(&["one"], &["a"]);
        known.event(POLL, "a", "one", 7, EventKind::LeaseAcquired);
        known.mirror.finished(NOW, "a", Token::new(7).unwrap());
        // Events about it that were still on their way.
        known.event(POLL, "a", "one", 7, EventKind::LeaseAcquired);
        assert!(known.mirror.lease("a").is_none());
    }

    #[test]
    fn paused_and_deleted_targets_are_released_unless_they_were_asked_for_by_hand() {
        let mut known = Known::of(&["one"], &["a"]);
        let paused = Target {
            is_paused: true,
            ..Target::new("a")
        };
        known.mirror.set_target(NOW, "a", Some(paused));
        for (target, by_hand) in [("a", false), ("gone", false), ("by-hand", true)] {
            known.mine.push(Mine {
                target: target.to_owned(),
                moving: false,
                by_hand,
            });
        }
        let released = known.plan("one", NOW).release;
        assert_eq!(
            released,
            [("a".to_owned(), "paused"), ("gone".to_owned(), "deleted")]
        );
    }
}
