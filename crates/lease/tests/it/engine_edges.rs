//! Corners of the engine that random commands seldom reach.

#![expect(clippy::unwrap_used, reason = "a test without its stage has failed")]

use lease::{
    Acquire, Acquired, Cause, Command, Departure, Engine, HandoffState, HandoffStep, Holder, Key,
    Labels, Lease, LeaseRef, Outcome, Revision, Token, Ttl, UnixMillis, Want,
    engine::{Decision, Effects, Options, Restoring, StoredSlot, Ticket},
};

const START: UnixMillis = UnixMillis::new(1_000_000);

fn key(id: &str) -> Key {
    Key::new("key", id).unwrap()
}

fn holder(name: &str) -> Holder {
    Holder::new(name, "1").unwrap()
}

fn ask(id: &str, name: &str) -> Acquire {
    Acquire::one(key(id), holder(name), Ttl::from_millis(1_000).unwrap())
}

fn apply(engine: &mut Engine, at: UnixMillis, command: Command) -> (Outcome, Effects) {
    let mut effects = Effects::default();
    match engine.apply(at, command, &mut effects).unwrap() {
        Decision::Now(outcome) => (outcome, effects),
        Decision::Waiting(_) => panic!("it waits"),
    }
}

fn wait(engine: &mut Engine, at: UnixMillis, request: Acquire) -> Ticket {
    let command = Command::Acquire(request);
    match engine.apply(at, command, &mut Effects::default()).unwrap() {
        Decision::Waiting(ticket) => ticket,
        Decision::Now(outcome) => panic!("it does not wait: {outcome:?}"),
    }
}

fn tick(engine: &mut Engine, at: UnixMillis) -> Effects {
    let mut effects = Effects::default();
    engine.tick(at, &mut effects);
    effects
}

fn grant(engine: &mut Engine, at: UnixMillis, request: Acquire) -> Lease {
    match apply(engine, at, Command::Acquire(request)).0 {
        Outcome::Acquired(Acquired::Granted { mut leases, .. }) => leases.remove(0),
        other => panic!("not granted: {other:?}"),
    }
}

fn forgetful() -> Engine {
    Engine::new(Options {
        idle_keys: 0,
        idle_ms: 0,
        ..Options::default()
    })
}

#[test]
fn l3_keys_that_are_forgotten_at_once_still_get_larger_tokens() {
    let mut engine = forgetful();
    let mut last = Token::ZERO;
    for _ in 0..5 {
        let lease = grant(&mut engine, START, ask("a", "ann"));
        assert!(lease.token > last);
        last = lease.token;
        let (outcome, effects) =
            apply(&mut engine, START, Command::Release(LeaseRef::from(&lease)));
        assert_eq!(outcome, Outcome::Released(true));
        assert_eq!(effects.forgotten, [key("a")]);
        assert_eq!(engine.floor(), last);
        assert_eq!(engine.stored(&key("a")), None);
    }
    let other = grant(&mut engine, START, ask("b", "ann"));
    assert!(other.token > last, "above the floor, whatever the key");
}

#[test]
fn a_lapsed_lease_is_taken_over_even_where_keys_are_forgotten_at_once() {
    let mut engine = forgetful();
    let first = grant(&mut engine, START, ask("a", "ann"));
    let later = START.plus(2_000);
    let next = grant(&mut engine, later, ask("a", "bob"));
    assert!(next.token > first.token);
    let (outcome, _) = apply(
        &mut engine,
        later.plus(2_000),
        Command::Handoff(HandoffStep::Prepare {
            key: key("a"),
            successor: holder("ann"),
        }),
    );
    assert_eq!(outcome, Outcome::Handoff(HandoffState::Void));
}

#[test]
fn keys_that_were_only_waited_for_are_forgotten() {
    let mut engine = forgetful();
    grant(&mut engine, START, ask("held", "ann"));
    let request = Acquire {
        want: Want::All(vec![key("held"), key("never-used")]),
        wait_ms: 100,
        ..ask("-", "bob")
    };
    wait(&mut engine, START, request);
    let effects = tick(&mut engine, START.plus(100));
    assert_eq!(effects.woken.len(), 1);
    assert_eq!(
        effects.forgotten,
        [key("never-used")],
        "nothing is kept for a key that nobody had"
    );
}

#[test]
fn a_wait_for_a_pool_of_ones_own_slots_ends_as_held() {
    let mut engine = Engine::new(Options::default());
    let pool = |wait_ms| Acquire {
        want: Want::Any(vec![key("a")]),
        wait_ms,
        ..ask("a", "ann")
    };
    let lease = grant(&mut engine, START, pool(0));
    wait(&mut engine, START, pool(100));
    let effects = tick(&mut engine, START.plus(100));
    let [(_, Acquired::Refused(refusal))] = effects.woken.as_slice() else {
        panic!("the wait is over: {effects:?}");
    };
    let Cause::Held { token, left_ms, .. } = &refusal.cause else {
        panic!("the slot is held, not {:?}", refusal.cause);
    };
    assert_eq!((*token, *left_ms), (lease.token, 900));
}

/// A key whose last token is the largest there can be.
fn exhausted() -> (Engine, Lease) {
    let mut source = Engine::new(Options::default());
    let mut lease = grant(&mut source, START, ask("a", "ann"));
    lease.token = Token::MAX;
    let stored = StoredSlot {
        key: key("a"),
        token: Token::MAX,
        lease: Some(lease.clone()),
        ended: None,
        counted_from: None,
    };
    let engine = Engine::restore(
        Options::default(),
        Revision::new(10),
        Token::ZERO,
        [stored],
        [],
    );
    (engine, lease)
}

#[test]
fn l3_no_grant_beyond_the_largest_token() {
    let (mut engine, lease) = exhausted();
    apply(&mut engine, START, Command::Release(LeaseRef::from(&lease)));
    for want in [Want::All(vec![key("a")]), Want::Any(vec![key("a")])] {
        let request = Acquire {
            want,
            ..ask("a", "bob")
        };
        let (outcome, effects) = apply(&mut engine, START, Command::Acquire(request));
        let Outcome::Acquired(Acquired::Refused(refusal)) = outcome else {
            panic!("there is no larger token: {outcome:?}");
        };
        assert_eq!(refusal.cause, Cause::TokensExhausted);
        assert!(effects.events.is_empty());
    }
}

#[test]
fn l18_a_handoff_without_a_larger_token_leaves_the_key_where_it_is() {
    let (mut engine, lease) = exhausted();
    let steps = [
        HandoffStep::Offer {
            lease: LeaseRef::from(&lease),
            successor: holder("bob"),
            prepare_ms: 500,
            drain_ms: 500,
            confirm_ms: 500,
        },
        HandoffStep::Prepare {
            key: key("a"),
            successor: holder("bob"),
        },
    ];
    for step in steps {
        let (outcome, _) = apply(&mut engine, START, Command::Handoff(step));
        assert!(matches!(outcome, Outcome::Handoff(HandoffState::Open(_))));
    }
    let commit = HandoffStep::Commit {
        lease: LeaseRef::from(&lease),
        limit: None,
    };
    let (outcome, effects) = apply(&mut engine, START, Command::Handoff(commit));
    assert_eq!(outcome, Outcome::Handoff(HandoffState::Void));
    assert!(effects.events.is_empty());
    let owner = engine.lease(START, &key("a")).expect("the holder keeps it");
    assert_eq!(owner.holder, holder("ann"));
}

#[test]
fn l3_a_stored_token_without_its_end_is_still_kept() {
    let stored = StoredSlot {
        key: key("a"),
        token: Token::new(2_000_000).unwrap(),
        lease: None,
        ended: None,
        counted_from: None,
    };
    let engine = Engine::restore(
        Options::default(),
        Revision::new(10),
        Token::ZERO,
        [stored.clone()],
        [],
    );
    assert_eq!(engine.stored(&key("a")), Some(stored));
}

/// What a store kept later about a key counts, whatever lease, holder and token it had before.
#[test]
fn what_is_taken_in_later_takes_the_place_of_what_came_before() {
    let mut source = Engine::new(Options::default());
    let mut restoring = Restoring::new(Options::default(), Revision::new(10), Token::ZERO);
    let mut keep = |source: &Engine| {
        let slot = source.stored(&key("a")).unwrap();
        restoring.put(slot.clone());
        slot
    };
    let first = grant(&mut source, START, ask("a", "ann"));
    keep(&source);
    apply(&mut source, START, Command::Release(LeaseRef::from(&first)));
    keep(&source);
    let second = grant(&mut source, START.plus(1), ask("a", "bob"));
    let last = keep(&source);
    restoring.put(StoredSlot {
        key: key("b"),
        ..last.clone()
    });
    restoring.put(StoredSlot::nothing(key("b")));
    let mut engine = restoring.done([]);
    assert_eq!(engine.stored(&key("a")), Some(last));
    assert_eq!(engine.stored(&key("b")), None);
    assert_eq!(engine.lease_by_id(START, first.id), None);
    assert_eq!(engine.lease_by_id(START, second.id), Some(second.clone()));
    let died = Command::Depart(Departure::Left(holder("ann")));
    assert_eq!(apply(&mut engine, START, died).0, Outcome::Departed(vec![]));
    let (gone, _) = apply(
        &mut engine,
        START,
        Command::Depart(Departure::Left(holder("bob"))),
    );
    assert!(matches!(gone, Outcome::Departed(gone) if gone[0].id == second.id));
}

#[test]
fn equal_labels_of_neighbours_are_stored_once_after_a_restart() {
    let mut source = Engine::new(Options::default());
    let slots = [("a", "west"), ("b", "west"), ("c", "east")].map(|(id, region)| {
        let labels = [("region".to_owned(), region.to_owned())];
        let request = Acquire {
            labels: Labels::new(labels.into()).unwrap(),
            ..ask(id, "ann")
        };
        grant(&mut source, START, request);
        source.stored(&key(id)).unwrap()
    });
    let engine = Engine::restore(
        Options::default(),
        Revision::new(10),
        Token::ZERO,
        slots.clone(),
        [],
    );
    assert_eq!(
        slots.clone().map(|slot| engine.stored(&slot.key)),
        slots.map(Some)
    );
    let region = |id: &str| {
        let labels = engine.lease(START, &key(id)).unwrap().labels;
        labels.get("region").unwrap().as_ptr()
    };
    assert_eq!(region("a"), region("b"));
    assert_ne!(region("a"), region("c"));
}

#[test]
fn l15_the_waits_of_a_dead_holder_end_in_the_order_they_began() {
    let mut engine = Engine::new(Options::default());
    grant(&mut engine, START, ask("a", "ann"));
    let mut tickets = Vec::new();
    for _ in 0..20 {
        let request = Acquire {
            wait_ms: 500,
            ..ask("a", "bob")
        };
        tickets.push(wait(&mut engine, START, request));
    }
    let death = Command::Depart(Departure::Died(holder("bob")));
    let (_, effects) = apply(&mut engine, START, death);
    let ended: Vec<_> = effects.woken.iter().map(|(ticket, _)| *ticket).collect();
    assert_eq!(ended, tickets);
}

#[test]
fn a_tick_that_has_more_to_expire_than_one_batch_says_so() {
    let mut engine = Engine::new(Options::default());
    for number in (0..4_001).rev() {
        grant(&mut engine, START, ask(&format!("{number:04}"), "ann"));
    }
    let later = START.plus(1_000);
    let mut order = Vec::new();
    for (expired, turn) in [(2_000, 0), (2_000, 1), (0, 2)] {
        let effects = tick(&mut engine, later);
        assert_eq!(effects.events.len(), expired);
        order.extend(effects.events.into_iter().map(|event| event.key));
        assert_eq!(
            engine.next_tick().is_some_and(|next| next <= later),
            turn < 2
        );
        if turn == 0 {
            // What a command ends meanwhile is ended once.
            let last = ask("4000", "bob");
            grant(&mut engine, later, last);
        }
    }
    assert!(order.is_sorted(), "in the order of the keys across ticks");
}

#[test]
fn l6_a_wait_that_ends_with_the_lapse_gets_the_key_before_those_who_came_later() {
    for (lapse_ms, end_ms, tick_ms) in [
        (1_000, 1_000, 1_000),
        (1_000, 1_000, 1_500),
        (1_000, 1_200, 3_000),
    ] {
        let mut engine = Engine::new(Options::default());
        let first = grant(&mut engine, START, ask("a", "ann"));
        assert_eq!(first.expires_at, START.plus(lapse_ms));
        let patient = |name: &str, wait_ms| Acquire {
            wait_ms,
            ..ask("a", name)
        };
        let bob = wait(&mut engine, START, patient("bob", end_ms));
        let cid = wait(&mut engine, START, patient("cid", 60_000));
        let effects = tick(&mut engine, START.plus(tick_ms));
        let [(ticket, Acquired::Granted { leases, .. })] = effects.woken.as_slice() else {
            panic!("exactly one is woken: {:?}", effects.woken);
        };
        assert_eq!((*ticket, &leases[0].holder), (bob, &holder("bob")));
        assert!(leases[0].token > first.token);
        let (_, effects) = apply(
            &mut engine,
            START.plus(tick_ms),
            Command::Release(LeaseRef::from(&leases[0])),
        );
        assert_eq!(effects.woken.len(), 1);
        assert_eq!(effects.woken[0].0, cid, "the next in line");
    }
}

#[test]
fn l6_a_wait_whose_end_nobody_told_yet_gets_a_released_key() {
    let mut engine = Engine::new(Options::default());
    let first = grant(&mut engine, START, ask("a", "ann"));
    let patient = Acquire {
        wait_ms: 100,
        ..ask("a", "bob")
    };
    let ticket = wait(&mut engine, START, patient);
    // The release comes in before the tick that would end the wait.
    let late = START.plus(100);
    let (_, effects) = apply(&mut engine, late, Command::Release(LeaseRef::from(&first)));
    let woken: Vec<_> = effects.woken.iter().map(|(ticket, _)| *ticket).collect();
    assert_eq!(woken, [ticket]);
    assert!(matches!(effects.woken[0].1, Acquired::Granted { .. }));
    let effects = tick(&mut engine, late.plus(1));
    assert!(effects.woken.is_empty(), "told once");
}

#[test]
fn l6_a_wait_that_ends_with_the_lapse_and_may_not_have_the_key_learns_why() {
    let mut engine = Engine::new(Options::default());
    let other = Acquire {
        ttl: Ttl::from_secs(60).unwrap(),
        ..ask("other", "bob")
    };
    grant(&mut engine, START, other);
    grant(&mut engine, START, ask("a", "ann"));
    let patient = Acquire {
        wait_ms: 1_000,
        limit: Some(1),
        ..ask("a", "bob")
    };
    wait(&mut engine, START, patient);
    let effects = tick(&mut engine, START.plus(1_000));
    let [(_, Acquired::Refused(refusal))] = effects.woken.as_slice() else {
        panic!("{:?}", effects.woken);
    };
    assert_eq!(refusal.cause, Cause::Limit { limit: 1 });
}
