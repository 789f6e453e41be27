//! Transitions of a session in any order, by several who loaded it at different times, on the engine itself.

#![expect(clippy::unwrap_used, reason = "a test without its stage has failed")]

use lease::{
    Acquired, Command, Committed, Engine, Holder, Key, LeaseRef, Outcome, Ttl, UnixMillis, Want,
    engine::{Decision, Effects, Options},
    session::{self, Change, Ending, Loaded, Mapping, Put, Request, Session, State},
};
use leasehold_testkit::length;
use proptest::prelude::*;

const START: UnixMillis = UnixMillis::new(1_000_000);
const TTL_MS: u64 = 1_000;

/// What somebody does.
#[derive(Clone, Debug)]
enum Move {
    /// Time passes.
    Pass(u64),
    /// The client is there.
    Beat,
    /// A worker takes the leases that the session needs.
    Hold,
    /// One of the transitions, on what was loaded so many changes ago.
    Change { which: usize, ago: usize },
}

const TRANSITIONS: usize = 9;

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        2 => (1..TTL_MS).prop_map(Move::Pass),
        2 => Just(Move::Beat),
        1 => Just(Move::Hold),
        6 => (0..TRANSITIONS, prop_oneof![3 => Just(0), 1 => 0..4_usize])
            .prop_map(|(which, ago)| Move::Change { which, ago }),
    ];
    prop::collection::vec(one, 1..40)
}

struct World {
    engine: Engine,
    now: UnixMillis,
    id: uuid::Uuid,
    /// The session as it was loaded, once per change.
    loaded: Vec<Loaded>,
    worker: Holder,
    held: Vec<LeaseRef>,
}

impl World {
    fn new(reserved: bool) -> Self {
        let id = session::new_id(START, [1; 10]);
        let request = Request {
            service_ref: "channel".into(),
            profile: "auto".into(),
            start_ms: None,
            correlation_id: "c".into(),
            tenant: None,
        };
        let new = Session::new(id, request, reserved, START);
        let ttl = Ttl::from_millis(TTL_MS).unwrap();
        let Put::Commit(mut step) = session::start(&new, &Mapping::default(), ttl).unwrap() else {
            panic!("nothing to replay");
        };
        session::reserve(&new, &Mapping::default(), &mut step).unwrap();
        let mut world = Self {
            engine: Engine::new(Options::default()),
            now: START,
            id,
            loaded: Vec::new(),
            worker: Holder::new("worker", "one").unwrap(),
            held: Vec::new(),
        };
        let started = world.apply(Command::Commit(*step));
        assert!(matches!(
            started,
            Outcome::Committed(Committed::Done { .. })
        ));
        world.load();
        world
    }

    fn apply(&mut self, command: Command) -> Outcome {
        match self
            .engine
            .apply(self.now, command, &mut Effects::default())
        {
            Ok(Decision::Now(outcome)) => outcome,
            other => panic!("{other:?}"),
        }
    }

    fn key(&self) -> Key {
        session::key(self.id)
    }

    fn load(&mut self) {
        let record = self.engine.record(&self.key()).unwrap();
        let lease = self.engine.lease(self.now, &self.key());
        self.loaded.push(Loaded::new(&record, lease).unwrap());
    }

    /// The transition, if it applies.
    fn decide(&self, which: usize, loaded: &Loaded) -> Option<Change> {
        let (now, worker, held) = (self.now, &self.worker, &self.held);
        match which {
            0 => session::stop(loaded, now).ok(),
            1 => session::claim(loaded, worker, now).ok(),
            2 => session::ready(loaded, "0", now).ok(),
            3 => session::end(loaded, &Ending::Expired, held, now).ok(),
            4 => session::end(loaded, &Ending::Busy("why".into()), held, now).ok(),
            5 => session::end(loaded, &Ending::PipelineFailed("why".into()), held, now).ok(),
            6 => session::expire(loaded, now).ok(),
            7 => session::worker_lost(loaded, worker, now).ok(),
            _ => {
                let successor = Holder::new("worker", "two").unwrap();
                session::worker_restarted(loaded, &successor, now).ok()
            }
        }
    }

    fn play(&mut self, step: &Move) {
        match *step {
            Move::Pass(ms) => {
                self.now = self.now.plus(ms);
                self.engine.tick(self.now, &mut Effects::default());
            }
            Move::Beat => {
                // Whoever beats may have read the lease long ago.
                let known = self.loaded.iter().find_map(|it| it.lease.clone()).unwrap();
                if let Some(renew) = session::heartbeat(&known, self.now, 1) {
                    self.apply(Command::Renew(renew));
                }
            }
            Move::Hold => {
                let session = self.loaded.last().unwrap().session.clone();
                if session.state != State::Starting {
                    return;
                }
                for want in [
                    Want::one("service:channel".parse().unwrap()),
                    Want::Any(vec!["tuner:0".parse().unwrap()]),
                ] {
                    let ttl = Ttl::from_millis(3_600_000).unwrap();
                    let request = session.request(want, self.worker.clone(), ttl);
                    let granted = self.apply(Command::Acquire(request));
                    let Outcome::Acquired(Acquired::Granted { leases, .. }) = granted else {
                        panic!("{granted:?}");
                    };
                    self.held.extend(leases.iter().map(LeaseRef::from));
                }
            }
            Move::Change { which, ago } => {
                self.load();
                let at = self.loaded.len() - 1 - ago.min(self.loaded.len() - 1);
                let stale = self.loaded[at].revision != self.loaded.last().unwrap().revision;
                let Some(change) = self.decide(which, &self.loaded[at]) else {
                    return;
                };
                let committed = self.apply(Command::Commit(change.transaction));
                let done = matches!(committed, Outcome::Committed(Committed::Done { .. }));
                assert_eq!(done, !stale, "only what is still as it was loaded changes");
                if done {
                    let record = self.engine.record(&self.key()).unwrap();
                    assert_eq!(Session::from_record(&record).unwrap(), change.session);
                }
                self.load();
            }
        }
    }

    /// A session that is over stays as it is, and nothing is left of it but its record.
    fn check(&self, ended_before: Option<&Session>, by_worker: bool) {
        let record = self.engine.record(&self.key()).unwrap();
        let session = Session::from_record(&record).unwrap();
        if let Some(before) = ended_before {
            assert_eq!(&session, before, "it went on after its end");
        }
        if !session.state.is_terminal() {
            return;
        }
        assert_eq!(self.engine.lease(self.now, &self.key()), None);
        let intent = session::intent_key(None, &session.idempotency_key).unwrap();
        assert_eq!(self.engine.record(&intent), None);
        let service: Key = "service:channel".parse().unwrap();
        assert_eq!(self.engine.record(&service), None);
        if by_worker {
            for lease in &self.held {
                assert_eq!(self.engine.lease(self.now, &lease.key), None);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: length::pick(400, 20_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// No order of transitions leaves a terminal state, keeps a lease, a key or a reservation after an end, or
    /// applies to what somebody else changed meanwhile; and no heartbeat brings anything back.
    #[test]
    fn nothing_is_left_of_a_session_that_is_over(reserved: bool, moves in moves()) {
        let mut world = World::new(reserved);
        let mut ended: Option<Session> = None;
        let mut by_worker = false;
        for step in &moves {
            world.play(step);
            world.check(ended.as_ref(), by_worker);
            let session = &world.loaded.last().unwrap().session;
            if ended.is_none() && session.state.is_terminal() {
                by_worker = matches!(step, Move::Change { which: 3..=5, .. });
                ended = Some(session.clone());
                world.check(None, by_worker);
            }
        }
    }
}
