//! The life of a session, as its record tells it.

#![expect(clippy::unwrap_used, reason = "a test without its stage has failed")]

use lease::{
    Record, Revision, UnixMillis,
    session::{self, Reason, Session, State},
};
use serde_json::json;

fn session(state: State) -> Session {
    serde_json::from_value(json!({
        "session_id": session::new_id(UnixMillis::new(1_000), [7; 10]),
        "service_ref": "channel",
        "profile": "auto",
        "state": state,
        "correlation_id": "c",
        "idempotency_key": session::idempotency_key("channel", "auto", None),
        "created_at": 1_000,
        "updated_at": 1_000,
    }))
    .unwrap()
}

#[test]
fn terminal_states_absorb_everything() {
    for from in State::ALL.into_iter().filter(|state| state.is_terminal()) {
        for to in State::ALL {
            let mut ended = session(from);
            let before = ended.clone();
            let moved = ended.become_state(to, Reason::ClientStop, UnixMillis::new(2_000));
            assert!(!moved, "{from:?} became {to:?}");
            assert_eq!(ended, before, "nothing of it changed");
        }
    }
    // A stop that arrives during start-up wins: the session never becomes running.
    let mut stopping = session(State::Stopping);
    assert!(!stopping.become_state(State::Running, Reason::None, UnixMillis::new(2_000)));
}

#[test]
fn an_ended_session_gives_its_idempotency_key_back_in_the_same_step() {
    for state in State::ALL {
        let session = session(state);
        let write = session.to_write();
        let record = Record {
            key: write.key.clone(),
            value: write.value.unwrap(),
            revision: Revision::new(7),
        };
        let change = session.update(&record);
        let intent = session::intent_key(None, &session.idempotency_key).unwrap();
        let freed = change
            .writes
            .iter()
            .any(|write| write.key == intent && write.value.is_none());
        assert_eq!(freed, state.is_terminal(), "{state:?}");
        assert_eq!(change.expect[0].revision, Some(record.revision));
    }
}
