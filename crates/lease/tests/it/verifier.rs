//! The judge is judged: a history that was made false in one place must be named for it, and the true
//! one it was made of must not.

#![expect(clippy::unwrap_used, reason = "a test without its stage has failed")]

use lease::{
    Acquire, Acquired, Command, Engine, Event, EventKind, Holder, LeaseRef, Outcome, Revision,
    Token, Ttl, UnixMillis,
    engine::{Decision, Effects, Options},
    history::{Extent, Fault, Verifier},
};

/// Two keys, each with three owners one after the other: 12 events.
fn honest() -> Vec<Event> {
    let mut engine = Engine::new(Options::default());
    let mut effects = Effects::default();
    let mut now = UnixMillis::new(1_000_000);
    for name in ["ann", "bob", "cat"] {
        let mut held = Vec::new();
        for key in ["job:a", "job:b"] {
            let holder = Holder::new(name, "1").unwrap();
            let ttl = Ttl::from_millis(1_000).unwrap();
            let ask = Command::Acquire(Acquire::one(key.parse().unwrap(), holder, ttl));
            let outcome = engine.apply(now, ask, &mut effects).unwrap();
            let Decision::Now(Outcome::Acquired(Acquired::Granted { leases, .. })) = outcome else {
                panic!("not granted: {outcome:?}");
            };
            held.extend(leases);
            now = now.plus(10);
        }
        for lease in &held {
            let release = Command::Release(LeaseRef::from(lease));
            engine.apply(now, release, &mut effects).unwrap();
            now = now.plus(10);
        }
    }
    effects.events
}

fn judged(events: &[Event]) -> Vec<Fault> {
    judged_as(Extent::Some, events)
}

fn judged_as(extent: Extent, events: &[Event]) -> Vec<Fault> {
    let mut verifier = Verifier::new(extent);
    for event in events {
        verifier.see(event);
    }
    let (seen, faults) = verifier.finish();
    assert_eq!(seen, events.len() as u64, "every event is counted");
    faults
}

/// The places of the grants of a key.
fn grants(events: &[Event], key: &str) -> Vec<usize> {
    let of_key =
        |event: &Event| event.kind == EventKind::LeaseAcquired && event.key == key.parse().unwrap();
    let places = events.iter().enumerate();
    places
        .filter(|(_, event)| of_key(event))
        .map(|(place, _)| place)
        .collect()
}

fn token(event: &Event) -> Token {
    event.lease.as_ref().unwrap().token
}

#[test]
fn an_honest_history_is_sound_and_so_is_any_part_of_it() {
    let events = honest();
    assert_eq!(events.len(), 12);
    for first in 0..events.len() {
        for last in first..=events.len() {
            let part = &events[first..last];
            assert_eq!(judged(part), [], "{first}..{last}");
            let after = Revision::new(events[first.min(11)].revision.get() - 1);
            assert_eq!(judged_as(Extent::After(after), part), [], "{first}..{last}");
        }
    }
}

#[test]
fn l1_an_end_that_is_missing_is_an_overlap() {
    let events = honest();
    for key in ["job:a", "job:b"] {
        let grants = grants(&events, key);
        for pair in grants.windows(2) {
            let (first, second) = (&events[pair[0]], &events[pair[1]]);
            let end = events.iter().position(|event| {
                event.kind == EventKind::LeaseReleased
                    && event.lease.as_ref().unwrap().id == first.lease.as_ref().unwrap().id
            });
            let mut without = events.clone();
            without.remove(end.unwrap());
            let overlap = Fault::Overlap {
                event: Box::new(second.clone()),
                earlier: token(first),
            };
            assert_eq!(judged(&without), [overlap]);
        }
    }
}

#[test]
fn l1_an_end_under_another_token_ends_nothing() {
    let mut events = honest();
    let grants = grants(&events, "job:a");
    // Whoever ends under another token has not ended the lease that is there.
    let end = events[grants[0]..]
        .iter()
        .position(|event| event.kind == EventKind::LeaseReleased)
        .unwrap();
    let wrong = Token::new(token(&events[grants[0]]).get() + 1).unwrap();
    events[grants[0] + end].lease.as_mut().unwrap().token = wrong;
    let faults = judged(&events);
    assert!(
        matches!(&faults[..], [Fault::Overlap { event, .. }] if **event == events[grants[1]]),
        "{faults:?}"
    );
}

#[test]
fn l3_a_token_that_does_not_grow_is_named() {
    let events = honest();
    for key in ["job:a", "job:b"] {
        let grants = grants(&events, key);
        for pair in grants.windows(2) {
            let before = token(&events[pair[0]]);
            for lower in [before.get(), before.get() - 1] {
                let mut back = events.clone();
                // The whole lease has it, so that its end is its end.
                let id = events[pair[1]].lease.as_ref().unwrap().id;
                for event in &mut back {
                    let lease = event.lease.as_mut().unwrap();
                    if lease.id == id {
                        lease.token = Token::new(lower).unwrap();
                    }
                }
                let faults = judged(&back);
                let went_back = Fault::TokenWentBack {
                    event: Box::new(back[pair[1]].clone()),
                    earlier: before,
                };
                assert_eq!(faults, [went_back], "{before} and then {lower}");
            }
        }
    }
}

#[test]
fn l19_disorder_is_named_where_it_shows() {
    let events = honest();
    for place in 1..events.len() {
        for revision in [events[place - 1].revision, Revision::ZERO] {
            let mut disordered = events.clone();
            disordered[place].revision = revision;
            let faults = judged(&disordered);
            let out_of_order = Fault::Disorder {
                event: Box::new(disordered[place].clone()),
            };
            assert_eq!(faults, [out_of_order], "{revision} at {place}");
        }
    }
}

#[test]
fn l19_a_gap_is_named_where_everything_should_be_there() {
    let events = honest();
    for gone in 0..events.len() - 1 {
        // Records would leave no other fault behind than the gap.
        let with_gap: Vec<Event> = events
            .iter()
            .filter(|event| event.revision != events[gone].revision)
            .cloned()
            .collect();
        let faults = judged_as(Extent::After(Revision::ZERO), &with_gap);
        let gap = Fault::Gap {
            event: Box::new(with_gap[gone].clone()),
            missing: events[gone].revision,
        };
        assert!(faults.contains(&gap), "{gone}: {faults:?}");
        let named = faults
            .iter()
            .find(|fault| **fault == gap)
            .unwrap()
            .to_string();
        assert!(
            named.contains(&events[gone].revision.to_string()),
            "{named}"
        );
        let part = judged(&with_gap);
        assert!(
            !part.iter().any(|fault| matches!(fault, Fault::Gap { .. })),
            "a part has gaps: {part:?}"
        );
    }
}

#[test]
fn l19_a_renewal_that_is_not_kept_is_neither_a_gap_nor_disorder() {
    let mut events = honest();
    let mut live = events[3].clone();
    live.kind = EventKind::LeaseRenewed;
    events.insert(4, live.clone());
    assert_eq!(judged_as(Extent::After(Revision::ZERO), &events), []);
    // One that is kept has a revision of its own, and counts.
    live.revision = Revision::new(events.len() as u64);
    events.push(live.clone());
    assert_eq!(judged_as(Extent::After(Revision::ZERO), &events), []);
    live.revision = Revision::new(live.revision.get() + 2);
    events.push(live);
    let faults = judged_as(Extent::After(Revision::ZERO), &events);
    assert!(matches!(&faults[..], [Fault::Gap { .. }]), "{faults:?}");
}

#[test]
fn what_is_wrong_is_said_in_words_with_its_revision() {
    let mut events = honest();
    events[3].revision = events[2].revision;
    let faults = judged(&events);
    assert_eq!(faults[0].revision(), events[3].revision);
    let text = faults[0].to_string();
    assert!(
        text.contains("out of order") && text.contains(&events[3].revision.to_string()),
        "{text}"
    );
}

#[test]
fn a_long_list_of_faults_is_cut_off_and_every_event_still_counts() {
    let events = honest();
    let mut verifier = Verifier::new(Extent::Some);
    for _ in 0..200 {
        verifier.see(&events[0]);
    }
    let (seen, faults) = verifier.finish();
    assert_eq!((seen, faults.len()), (200, 100));
}
