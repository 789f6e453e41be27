//! Every transition of a session from every state, and what its one transaction holds.

#![expect(clippy::unwrap_used, reason = "a test without its stage has failed")]

use lease::{
    Holder, Key, Lease, LeaseId, LeaseRef, OnOutage, Record, Revision, Status, Token, Ttl,
    UnixMillis,
    session::{
        self, Change, Declined, Ending, Loaded, Mapping, Put, Reason, Request, Session, State,
        Unattended, Unclaimed,
    },
};

const START: UnixMillis = UnixMillis::new(1_000);
const LATER: UnixMillis = UnixMillis::new(2_000);

fn holder(name: &str, incarnation: &str) -> Holder {
    Holder::new(name, incarnation).unwrap()
}

fn worker() -> Holder {
    holder("worker", "one")
}

/// A session in that state, as somebody loads it. Whatever is not new has a worker.
fn loaded(state: State) -> Loaded {
    let worker = (state != State::New).then(worker);
    loaded_with(state, worker)
}

fn loaded_with(state: State, worker: Option<Holder>) -> Loaded {
    let id = session::new_id(START, [7; 10]);
    let mut session = Session::new(id, request(), true, START);
    session.state = state;
    session.worker = worker;
    Loaded {
        lease: Some(lease(session::key(id), holder(&id.to_string(), "session"))),
        revision: Revision::new(7),
        session,
    }
}

/// The same, without its lease.
fn lapsed(loaded: &Loaded) -> Loaded {
    Loaded {
        lease: None,
        ..loaded.clone()
    }
}

fn request() -> Request {
    Request {
        service_ref: "channel".into(),
        profile: "auto".into(),
        start_ms: None,
        correlation_id: "c".into(),
        tenant: Some("acme".into()),
    }
}

fn lease(key: Key, holder: Holder) -> Lease {
    Lease {
        id: LeaseId::from_grant(START, Revision::new(3)),
        key,
        holder,
        token: Token::new(5).unwrap(),
        ttl: Ttl::from_millis(1_000).unwrap(),
        on_outage: OnOutage::default(),
        release_on_death: false,
        acquired_at: START,
        expires_at: LATER,
        renewed_at: None,
        status: Status::Active,
        labels: lease::Labels::default(),
        stats: None,
        handoff: None,
    }
}

fn record(session: &Session, revision: Revision) -> Record {
    let write = session.to_write();
    Record {
        key: write.key,
        value: write.value.unwrap(),
        revision,
    }
}

/// A transition by its name, with its change or what it says instead.
type Transition = (&'static str, fn(&Loaded) -> Result<Change, String>);

fn declined(why: Declined) -> String {
    match why {
        // The state itself is compared where the table is made.
        Declined::State(state) => format!("no:{}", state.as_str()),
        Declined::Attended => "attended".into(),
        Declined::Kept => "kept".into(),
    }
}

fn unclaimed(why: &Unclaimed) -> String {
    match why {
        Unclaimed::Start(_) => "start".into(),
        Unclaimed::End(Ending::Stopped) => "end".into(),
        Unclaimed::End(Ending::LeaseLost(_)) => "lost".into(),
        Unclaimed::End(other) => panic!("{other:?}"),
        Unclaimed::Leave => "leave".into(),
    }
}

fn end(loaded: &Loaded, ending: &Ending) -> Result<Change, String> {
    session::end(loaded, ending, &[], LATER).map_err(declined)
}

const TRANSITIONS: [Transition; 18] = [
    ("stop", |it| session::stop(it, LATER).map_err(declined)),
    ("claim", |it| {
        session::claim(it, &worker(), LATER).map_err(|why| unclaimed(&why))
    }),
    ("claim by another", |it| {
        session::claim(it, &holder("other", "one"), LATER).map_err(|why| unclaimed(&why))
    }),
    ("ready", |it| {
        session::ready(it, "0", LATER).map_err(declined)
    }),
    ("end: stopped", |it| end(it, &Ending::Stopped)),
    ("end: expired", |it| end(it, &Ending::Expired)),
    ("end: shutdown", |it| end(it, &Ending::Shutdown)),
    ("end: busy", |it| end(it, &Ending::Busy("why".into()))),
    ("end: no tuner", |it| {
        end(it, &Ending::NoTuner("why".into()))
    }),
    ("end: impossible", |it| {
        end(it, &Ending::Impossible("why".into()))
    }),
    ("end: lease lost", |it| {
        end(it, &Ending::LeaseLost("why".into()))
    }),
    ("end: failed", |it| {
        end(it, &Ending::PipelineFailed("why".into()))
    }),
    ("end: timeout", |it| {
        end(it, &Ending::PipelineTimeout("why".into()))
    }),
    ("expire", |it| {
        session::expire(&lapsed(it), LATER).map_err(declined)
    }),
    ("expire while kept", |it| {
        session::expire(it, LATER).map_err(declined)
    }),
    ("worker lost", |it| {
        session::worker_lost(it, &worker(), LATER).map_err(declined)
    }),
    ("another lost", |it| {
        session::worker_lost(it, &holder("worker", "two"), LATER).map_err(declined)
    }),
    ("restarted", |it| {
        session::worker_restarted(it, &holder("worker", "two"), LATER).map_err(declined)
    }),
];

/// `-`: declined, because of the state.
#[test]
fn every_transition_from_every_state() {
    let rows = TRANSITIONS.map(|(name, transition)| {
        let cells = State::ALL.map(|state| match transition(&loaded(state)) {
            Ok(change) => {
                assert_eq!(change.previous, state, "{name}");
                assert_eq!(change.session.updated_at, LATER, "{name} from {state:?}");
                change.session.state.as_str().to_owned()
            }
            Err(why) if why == format!("no:{}", state.as_str()) => "-".to_owned(),
            Err(why) => why,
        });
        format!("{name}: {}\n", cells.join(" "))
    });
    // new, starting, running, stopping; stopped, failed, ended.
    let expected = "\
stop: stopped stopping stopping - - - -
claim: starting start lost end leave leave leave
claim by another: starting leave leave leave leave leave leave
ready: - running - - - - -
end: stopped: stopped stopped stopped stopped - - -
end: expired: stopped stopped stopped stopped - - -
end: shutdown: stopped stopped stopped stopped - - -
end: busy: ended ended failed stopped - - -
end: no tuner: ended ended failed stopped - - -
end: impossible: ended ended failed stopped - - -
end: lease lost: failed failed failed failed - - -
end: failed: failed failed failed failed - - -
end: timeout: failed failed failed failed - - -
expire: stopped attended attended attended attended attended attended
expire while kept: kept attended attended attended attended attended attended
worker lost: attended failed failed failed - - -
another lost: attended attended attended attended attended attended attended
restarted: attended failed failed failed - - -
";
    assert_eq!(rows.concat(), expected);
}

#[test]
fn terminal_states_absorb_everything() {
    for state in State::ALL.into_iter().filter(|state| state.is_terminal()) {
        for attended in [None, Some(worker())] {
            let ended = loaded_with(state, attended);
            for (name, transition) in TRANSITIONS {
                let change = transition(&ended);
                assert!(change.is_err(), "{state:?}, {name}: {change:?}");
            }
        }
    }
    // A stop that arrives during start-up wins: the session never becomes running.
    let stopping = session::ready(&loaded(State::Stopping), "0", LATER);
    assert_eq!(stopping, Err(Declined::State(State::Stopping)));
}

#[test]
fn an_ended_session_gives_its_idempotency_key_back_in_the_same_step() {
    for state in State::ALL {
        for (name, transition) in TRANSITIONS {
            let before = loaded(state);
            let Ok(change) = transition(&before) else {
                continue;
            };
            let (own, step) = (session::key(before.session.session_id), &change.transaction);
            assert_eq!(step.expect.len(), 1, "{name}");
            assert_eq!(step.expect[0].key, own);
            assert_eq!(step.expect[0].revision, Some(before.revision));
            assert_eq!(step.writes[0], change.session.to_write());
            assert_eq!(step.acquire, None);
            let over = change.session.state.is_terminal();
            let removed: Vec<String> = step.writes[1..]
                .iter()
                .inspect(|write| assert_eq!(write.value, None))
                .map(|write| write.key.to_string())
                .collect();
            let intent =
                session::intent_key(Some("acme"), &before.session.idempotency_key).unwrap();
            let freed = [intent.to_string(), "service:channel".to_owned()];
            let freed = if over { &freed[..] } else { &[] };
            assert_eq!(removed, freed, "{name} from {state:?}");
            // And its own lease, so that no heartbeat keeps alive what is over.
            let released: Vec<&Key> = step.release.iter().map(|it| &it.key).collect();
            let has_lease = over && name != "expire";
            let expected = if has_lease { vec![&own] } else { vec![] };
            assert_eq!(released, expected, "{name} from {state:?}");
        }
    }
}

#[test]
fn what_its_worker_held_for_a_session_ends_with_it() {
    let before = loaded(State::Running);
    let held = ["service:channel", "tuner:0"]
        .map(|key| LeaseRef::from(&lease(key.parse().unwrap(), worker())));
    let own = before.lease.as_ref().map(LeaseRef::from).unwrap();
    let change = session::end(&before, &Ending::Stopped, &held, LATER).unwrap();
    assert_eq!(change.transaction.release, [&held[..], &[own]].concat());
    // A session whose lease expired has none to give back.
    let change = session::end(&lapsed(&before), &Ending::Expired, &held, LATER).unwrap();
    assert_eq!(change.transaction.release, held);
}

#[test]
fn an_end_says_why() {
    let reported = |state, ending: &Ending| {
        let after = session::end(&loaded(state), ending, &[], LATER)
            .unwrap()
            .session;
        (
            after.reason,
            after.outcome,
            after.reason_detail,
            after.stop_reason,
        )
    };
    let (why, busy) = (Some("why".to_owned()), Some("REJECTED_BUSY".to_owned()));
    let ending = Ending::Busy("why".into());
    assert_eq!(
        reported(State::Starting, &ending),
        (Reason::LeaseBusy, busy, why.clone(), None)
    );
    // A stop that was asked for stays the reason.
    assert_eq!(
        reported(State::Stopping, &ending),
        (Reason::ClientStop, None, why, None)
    );
    let mut stopping = session::stop(&loaded(State::Running), LATER).unwrap();
    stopping.session.state = State::Stopping;
    let stopping = Loaded {
        session: stopping.session,
        ..loaded(State::Running)
    };
    let shutdown = session::end(&stopping, &Ending::Shutdown, &[], LATER).unwrap();
    assert_eq!(shutdown.session.reason, Reason::ClientStop);
    let expired = Some("LEASE_EXPIRED".to_owned());
    assert_eq!(
        reported(State::Running, &Ending::Expired),
        (Reason::LeaseExpired, None, None, expired.clone())
    );
    let unclaimed = session::expire(&lapsed(&loaded(State::New)), LATER)
        .unwrap()
        .session;
    assert_eq!(unclaimed.reason, Reason::LeaseExpired);
    assert_eq!(unclaimed.stop_reason, expired);
    let lost = session::worker_lost(&loaded(State::Running), &worker(), LATER).unwrap();
    assert_eq!(lost.session.reason, Reason::WorkerLost);
    let detail = lost.session.reason_detail.as_deref();
    assert_eq!(detail, Some("worker worker#one is gone"));
}

#[test]
fn a_start_is_put_down_once_while_it_is_under_way() {
    let ttl = Ttl::from_millis(1_000).unwrap();
    for state in State::ALL {
        let existing = loaded(state).session;
        let pointer = Record {
            key: session::intent_key(Some("acme"), &existing.idempotency_key).unwrap(),
            value: format!("\"{}\"", session::key(existing.session_id)).into(),
            revision: Revision::new(6),
        };
        let mapping = Mapping {
            session: Some(record(&existing, Revision::new(7))),
            pointer: Some(pointer.clone()),
        };
        let id = session::new_id(LATER, [8; 10]);
        let again = Session::new(id, request(), true, LATER);
        match session::start(&again, &mapping, ttl).unwrap() {
            Put::Replay(replayed) => {
                assert_eq!(*replayed, existing);
                assert!(!state.is_terminal(), "{state:?}");
            }
            Put::Commit(step) => {
                assert!(state.is_terminal(), "{state:?}");
                assert_eq!(step.expect[0].revision, Some(pointer.revision));
                assert_eq!(
                    (&step.expect[1].key, step.expect[1].revision),
                    (&session::key(id), None)
                );
                assert_eq!(step.acquire.unwrap().want.keys(), [session::key(id)]);
            }
        }
        // The record of its service points to it, too: reserved for as long as it is not over.
        let mut step = lease::Transaction::default();
        let reserved = session::reserve(&again, &mapping, &mut step);
        assert_eq!(reserved.is_err(), !state.is_terminal(), "{state:?}");
        assert_eq!(step.writes.len(), usize::from(state.is_terminal()));
    }
}

#[test]
fn only_sessions_that_nobody_works_on_are_unattended() {
    for state in State::ALL {
        let session = loaded(state).session;
        let found = |present: bool| session::unattended(&session, |_| present);
        let (there, gone) = match state {
            State::New => (Some(Unattended::Unclaimed), Some(Unattended::Unclaimed)),
            _ if state.is_terminal() => (None, None),
            _ => (None, session.worker.as_ref().map(Unattended::Left)),
        };
        assert_eq!((found(true), found(false)), (there, gone), "{state:?}");
        let forgettable = session::is_forgettable(&session, LATER, 1_000);
        assert_eq!(forgettable, state.is_terminal());
        assert!(!session::is_forgettable(&session, LATER, 1_001));
    }
}

#[test]
fn a_heartbeat_within_half_the_interval_renews_nothing() {
    let mut lease = loaded(State::Running).lease.unwrap();
    assert!(
        session::heartbeat(&lease, START, 1_000).is_some(),
        "the first"
    );
    lease.renewed_at = Some(START);
    assert!(session::heartbeat(&lease, START.plus(499), 1_000).is_none());
    let renew = session::heartbeat(&lease, START.plus(500), 1_000).unwrap();
    assert_eq!(renew.holder, lease.holder);
}
