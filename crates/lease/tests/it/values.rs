//! Values that cannot be wrong once made, whichever way they come in.

use lease::{
    Acquire, EventCause, EventKind, Grace, Holder, HolderName, Incarnation, Key, Labels, LeaseId,
    Loss, OnOutage, Status, Token, Ttl, UnixMillis, session::State,
};
use proptest::prelude::*;
use serde::de::DeserializeOwned;

fn reads<T: DeserializeOwned>(json: &str) -> bool {
    serde_json::from_str::<T>(json).is_ok()
}

#[test]
fn reading_json_goes_through_the_checks() {
    assert!(reads::<Key>(r#""camera:front""#));
    for wrong in [
        r#""camera""#,
        r#"":x""#,
        r#""camera:""#,
        r#""ca mera:x""#,
        r#""a:b c""#,
    ] {
        assert!(!reads::<Key>(wrong), "{wrong}");
    }
    assert!(reads::<Token>("9007199254740991") && !reads::<Token>("9007199254740992"));
    assert!(!reads::<Token>("-1") && !reads::<Token>("1.5"));
    assert!(reads::<Ttl>("1") && reads::<Ttl>("86400000"));
    assert!(!reads::<Ttl>("0") && !reads::<Ttl>("86400001"));
    assert!(reads::<Grace>("1") && !reads::<Grace>("0") && !reads::<Grace>("86400001"));
    assert!(reads::<OnOutage>(r#"{"policy":"fail_closed"}"#));
    assert!(reads::<OnOutage>(r#"{"policy":"hold","grace_ms":5}"#));
    assert!(!reads::<OnOutage>(r#"{"policy":"hold","grace_ms":0}"#));
    assert!(!reads::<OnOutage>(r#"{"policy":"hold"}"#));
    assert!(reads::<Holder>(r#"{"name":"ann","incarnation":"1"}"#));
    assert!(!reads::<Holder>(r#"{"name":"","incarnation":"1"}"#));
    assert!(!reads::<Holder>(r#"{"name":"ann","incarnation":"a b"}"#));
    assert!(reads::<Labels>(r#"{"tenant":"acme"}"#));
    assert!(!reads::<Labels>(r#"{"a b":"acme"}"#) && !reads::<Labels>(r#"{"a":"x\ny"}"#));
}

#[test]
fn limits_are_inclusive() {
    let long = |length: usize| "x".repeat(length);
    assert!(Key::new(&long(64), &long(512)).is_ok());
    assert!(Key::new(&long(65), "x").is_err() && Key::new("x", &long(513)).is_err());
    assert!(HolderName::new(long(255)).is_ok() && HolderName::new(long(256)).is_err());
    assert!(Incarnation::new(long(64)).is_ok() && Incarnation::new(long(65)).is_err());
    let labels = |count: usize, length: usize| {
        Labels::new((0..count).map(|n| (n.to_string(), long(length))).collect())
    };
    assert!(labels(32, 512).is_ok());
    assert!(labels(33, 1).is_err() && labels(1, 513).is_err());
    let ttl = Ttl::from_secs(1).unwrap();
    let holder = Holder::new("ann", "1").unwrap();
    let all = |count: usize| {
        let keys = (0..count).map(|n| Key::new("key", &n.to_string()).unwrap());
        Acquire::of(lease::Want::All(keys.collect()), holder.clone(), ttl).validate()
    };
    assert!(all(1).is_ok() && all(256).is_ok() && all(257).is_err() && all(0).is_err());
    assert_eq!(all(0).unwrap_err().field, "keys");
}

#[test]
fn words_and_values_go_both_ways() {
    for kind in EventKind::ALL {
        assert_eq!(EventKind::parse(kind.as_str()), Some(kind));
        let json = serde_json::to_string(&kind).unwrap();
        assert_eq!(json, format!("\"{}\"", kind.as_str()));
    }
    for status in ["pending", "active", "expired", "released", "revoked"] {
        assert_eq!(Status::parse(status).unwrap().as_str(), status);
    }
    assert_eq!(Status::parse("Active"), None);
}

/// How a lease ends: its words, numbers, events and statuses belong together.
#[test]
fn the_ends_of_a_lease_go_both_ways() {
    let revoked = Loss::Revoked { why: "why".into() };
    let table = [
        (
            Loss::Expired,
            "expired",
            1,
            Status::Expired,
            Some(EventKind::LeaseExpired),
        ),
        (
            revoked,
            "revoked",
            2,
            Status::Revoked,
            Some(EventKind::LeaseRevoked),
        ),
        (
            Loss::Stolen,
            "stolen",
            3,
            Status::Expired,
            Some(EventKind::LeaseStolen),
        ),
        (
            Loss::Released,
            "released",
            4,
            Status::Released,
            Some(EventKind::LeaseReleased),
        ),
        (Loss::Unknown, "unknown", 5, Status::Expired, None),
        (Loss::Deadline, "deadline", 6, Status::Expired, None),
    ];
    for (loss, word, code, status, event) in table {
        assert_eq!(loss.as_str(), word);
        assert_eq!(Loss::parse(word, "why").as_ref(), Some(&loss));
        assert_eq!(loss.code(), code);
        assert_eq!(Loss::from_code(code, "why").as_ref(), Some(&loss));
        assert_eq!((loss.status(), loss.event_kind()), (status, event));
        let json: serde_json::Value = serde_json::to_value(&loss).unwrap();
        assert_eq!(json["reason"], word);
        assert_eq!(loss.why().is_some(), word == "revoked");
    }
    for kind in EventKind::ALL {
        let ends = (1..=6).filter_map(|code| Loss::from_code(code, "")?.event_kind());
        assert_eq!(
            ends.filter(|it| *it == kind).count() == 1,
            kind.ends_lease()
        );
    }
    for status in [Status::Expired, Status::Released, Status::Revoked] {
        assert_eq!(Loss::from_status(status).status(), status);
        assert_eq!(Loss::from_status(status).as_str(), status.as_str());
    }
    assert_eq!(Loss::from_status(Status::Active), Loss::Unknown);
    assert_eq!(Loss::parse("gone", ""), None);
    assert_eq!(Loss::from_code(0, ""), None);
}

/// Causes have one form in every store and on the wire, and their words are for people only.
#[test]
fn causes_of_events_have_one_form() {
    let bob = || Holder::new("bob", "7").unwrap();
    let holder = r#"{"name":"bob","incarnation":"7"}"#;
    let table = [
        (EventCause::HandedOverTo(bob()), "handed over to bob#7"),
        (EventCause::HandedOver, "handed over by the previous holder"),
        (EventCause::Successor(bob()), "bob#7"),
        (EventCause::CancelledBy(bob()), "called off by bob#7"),
        (EventCause::HolderDied, "its holder died"),
        (EventCause::HolderLeft, "its holder left"),
        (EventCause::HolderRestarted, "its holder restarted"),
        (EventCause::Session(State::Stopping), "stopping"),
    ];
    for (cause, words) in table {
        let word = cause.as_str();
        let json = match (cause.holder(), cause.session()) {
            (Some(_), _) => format!(r#"{{"{word}":{holder}}}"#),
            (_, Some(state)) => format!(r#"{{"{word}":"{}"}}"#, state.as_str()),
            _ => format!(r#""{word}""#),
        };
        assert_eq!(serde_json::to_string(&cause).unwrap(), json);
        assert_eq!(serde_json::from_str::<EventCause>(&json).unwrap(), cause);
        assert_eq!(cause.to_string(), words);
    }
}

proptest! {
    /// A key is what it was written as, with any number of colons in its id.
    #[test]
    fn keys_are_split_at_the_first_colon(kind in "[A-Za-z0-9._-]{1,20}", id in "[!-~é]{1,40}") {
        let key: Key = format!("{kind}:{id}").parse().unwrap();
        prop_assert_eq!((key.kind(), key.id()), (kind.as_str(), id.as_str()));
        let json = serde_json::to_string(&key).unwrap();
        prop_assert_eq!(serde_json::from_str::<Key>(&json).unwrap(), key);
    }

    /// Whatever comes in, a key is well formed or refused; nothing panics.
    #[test]
    fn any_text_is_a_good_key_or_none(text in ".{0,80}") {
        if let Ok(key) = text.parse::<Key>() {
            prop_assert_eq!(key.as_str(), text.as_str());
            prop_assert!(!text.chars().any(|c| c.is_whitespace() || c.is_control()));
        }
    }

    /// L3: `max(last + 1, now)`, below 2^53.
    #[test]
    fn l3_the_next_token_is_larger_and_follows_the_clock(last in 0..=Token::MAX.get(), now in any::<u64>()) {
        let next = Token::after(Token::new(last).unwrap(), UnixMillis::new(now));
        let expected = (last + 1).max(now);
        prop_assert_eq!(next.map(Token::get), (expected < 1 << 53).then_some(expected));
    }

    /// Lease ids of one authority differ, and survive being written.
    #[test]
    fn lease_ids_differ_by_revision(at in 0..1_u64 << 47, a in 1..1_u64 << 60, b in 1..1_u64 << 60) {
        let id = |revision| LeaseId::from_grant(UnixMillis::new(at), lease::Revision::new(revision));
        prop_assert_eq!(id(a) == id(b), a == b);
        prop_assert_eq!(id(a).to_string().parse::<LeaseId>().unwrap(), id(a));
    }
}
