//! What lapsed and nobody expired yet: the engine's timers are off here, and only commands come in.

#![expect(clippy::unwrap_used, reason = "a test without its stage has failed")]

use lease::{
    Acquire, Acquired, Cause, Command, Committed, Engine, EventKind, Holder, Key, Lease, LeaseRef,
    Loss, Outcome, Renew, Renewal, Renewals, Transaction, Ttl, UnixMillis, Want,
    engine::{Decision, Effects, Options, Ticket},
};

const START: UnixMillis = UnixMillis::new(1_000_000);
/// When what [`ask`] asks for lapses.
const LAPSE: UnixMillis = UnixMillis::new(1_001_000);

struct Still {
    engine: Engine,
    effects: Effects,
}

impl Still {
    fn new() -> Self {
        Self {
            engine: Engine::new(Options::default()),
            effects: Effects::default(),
        }
    }

    fn apply(&mut self, at: UnixMillis, command: Command) -> Decision {
        self.effects.clear();
        self.engine.apply(at, command, &mut self.effects).unwrap()
    }

    fn tick(&mut self, at: UnixMillis) {
        self.effects.clear();
        self.engine.tick(at, &mut self.effects);
    }

    fn acquire(&mut self, at: UnixMillis, request: Acquire) -> Acquired {
        match self.apply(at, Command::Acquire(request)) {
            Decision::Now(Outcome::Acquired(acquired)) => acquired,
            other => panic!("it waits: {other:?}"),
        }
    }

    fn take(&mut self, at: UnixMillis, request: Acquire) -> Lease {
        match self.acquire(at, request) {
            Acquired::Granted { mut leases, .. } => leases.remove(0),
            Acquired::Refused(refusal) => panic!("{refusal:?}"),
        }
    }

    fn wait(&mut self, at: UnixMillis, request: Acquire) -> Ticket {
        let request = Acquire {
            wait_ms: 60_000,
            ..request
        };
        match self.apply(at, Command::Acquire(request)) {
            Decision::Waiting(ticket) => ticket,
            other @ Decision::Now(_) => panic!("it does not wait: {other:?}"),
        }
    }

    fn renew(&mut self, at: UnixMillis, lease: &Lease) -> Result<Lease, Loss> {
        let renew = Renew {
            holder: lease.holder.clone(),
            leases: Renewals::These(vec![Renewal::of(lease)]),
        };
        match self.apply(at, Command::Renew(renew)) {
            Decision::Now(Outcome::Renewed(mut renewed)) => renewed.remove(0).outcome,
            other => panic!("{other:?}"),
        }
    }

    fn kinds(&self) -> Vec<EventKind> {
        self.effects.events.iter().map(|event| event.kind).collect()
    }
}

fn key(id: &str) -> Key {
    Key::new("key", id).unwrap()
}

fn ask(id: &str, name: &str) -> Acquire {
    let holder = Holder::new(name, "1").unwrap();
    Acquire::one(key(id), holder, Ttl::from_millis(1_000).unwrap())
}

#[test]
fn l7_a_renewal_in_the_moment_of_the_lapse_is_too_late() {
    let mut still = Still::new();
    let lease = still.take(START, ask("a", "ann"));
    assert_eq!(lease.expires_at, LAPSE);
    assert_eq!(still.renew(LAPSE, &lease), Err(Loss::Expired));
    assert_eq!(still.kinds(), [EventKind::LeaseExpired]);
    let lease = still.take(LAPSE, ask("b", "ann"));
    assert!(still.renew(LAPSE.plus(999), &lease).is_ok(), "1 ms before");
}

#[test]
fn l12_a_tick_in_the_moment_of_the_lapse_expires_and_one_before_does_not() {
    let mut still = Still::new();
    still.take(START, ask("a", "ann"));
    still.tick(START.plus(999));
    assert_eq!(still.kinds(), []);
    assert_eq!(still.engine.next_tick(), Some(LAPSE));
    still.tick(LAPSE);
    assert_eq!(still.kinds(), [EventKind::LeaseExpired]);
}

#[test]
fn l16_a_release_of_what_lapsed_ends_nothing() {
    let mut still = Still::new();
    let lease = still.take(START, ask("a", "ann"));
    let release = Command::Release(LeaseRef::from(&lease));
    assert_eq!(still.apply(LAPSE, release), Outcome::Released(false).into());
    assert_eq!(still.kinds(), [EventKind::LeaseExpired]);
}

#[test]
fn a_limit_does_not_count_what_lapsed() {
    let mut still = Still::new();
    still.take(START, ask("a", "ann"));
    let second = |limit| Acquire {
        limit: Some(limit),
        ..ask("b", "ann")
    };
    let refused = still.acquire(START, second(1));
    assert!(
        matches!(&refused, Acquired::Refused(it) if it.cause == Cause::Limit { limit: 1 }),
        "{refused:?}"
    );
    still.take(LAPSE, second(1));
}

#[test]
fn a_limit_counts_every_key_of_a_batch() {
    let mut still = Still::new();
    let two = Acquire {
        want: Want::All(vec![key("a"), key("b")]),
        limit: Some(1),
        ..ask("a", "ann")
    };
    let refused = still.acquire(START, two.clone());
    assert!(
        matches!(&refused, Acquired::Refused(it) if it.cause == Cause::Limit { limit: 1 }),
        "{refused:?}"
    );
    assert_eq!(still.kinds(), [], "a refusal changes nothing");
    still.take(
        START,
        Acquire {
            limit: Some(2),
            ..two
        },
    );
}

#[test]
fn l6_whoever_waits_behind_one_that_is_refused_for_good_is_served() {
    let mut still = Still::new();
    let long = Acquire {
        ttl: Ttl::from_secs(60).unwrap(),
        ..ask("other", "bob")
    };
    still.take(START, long);
    let lease = still.take(START, ask("a", "ann"));
    let limited = Acquire {
        limit: Some(1),
        ..ask("a", "bob")
    };
    let refused = still.wait(START, limited);
    let served = still.wait(START, ask("a", "cid"));
    still.apply(START, Command::Release(LeaseRef::from(&lease)));
    let [
        (first, Acquired::Refused(no)),
        (second, Acquired::Granted { .. }),
    ] = still.effects.woken.as_slice()
    else {
        panic!("{:?}", still.effects.woken);
    };
    assert_eq!((*first, *second), (refused, served));
    assert_eq!(no.cause, Cause::Limit { limit: 1 });
}

#[test]
fn l6_neither_a_newcomer_nor_a_transaction_overtakes_a_waiter_before_the_tick() {
    for in_a_transaction in [false, true] {
        let mut still = Still::new();
        still.take(START, ask("a", "ann"));
        let bob = still.wait(START, ask("a", "bob"));
        let late = ask("a", "cid");
        let cause = if in_a_transaction {
            let transaction = Transaction {
                acquire: Some(late),
                ..Transaction::default()
            };
            match still.apply(LAPSE, Command::Commit(transaction)) {
                Decision::Now(Outcome::Committed(Committed::Refused(refusal))) => refusal.cause,
                other => panic!("it overtook: {other:?}"),
            }
        } else {
            match still.acquire(LAPSE, late) {
                Acquired::Refused(refusal) => refusal.cause,
                granted @ Acquired::Granted { .. } => panic!("it overtook: {granted:?}"),
            }
        };
        let Cause::Held { holder, .. } = cause else {
            panic!("{cause:?}");
        };
        assert_eq!(holder, Holder::new("bob", "1").unwrap());
        let woken: Vec<_> = still.effects.woken.iter().map(|it| it.0).collect();
        assert_eq!(woken, [bob]);
    }
}
