//! Records, and transactions over records and leases: everything or nothing.

use lease::{
    Committed, Error, EventCause, EventKind, Expect, LeaseRef, Note, RecordQuery, Revision,
    Transaction, Write, session::State,
};

use super::{Harness, Stage, stage::granted};

fn put(stage: &Stage<'_>, id: &str, value: &str) -> Write {
    Write {
        key: stage.key(id),
        value: Some(value.into()),
        note: None,
    }
}

fn expect(stage: &Stage<'_>, id: &str, revision: Option<Revision>) -> Expect {
    Expect {
        key: stage.key(id),
        revision,
    }
}

fn done(committed: Committed) -> Revision {
    match committed {
        Committed::Done { revision, .. } => revision,
        other => panic!("it goes through, so not {other:?}"),
    }
}

async fn write(stage: &Stage<'_>, writes: Vec<Write>) -> Revision {
    let transaction = Transaction {
        writes,
        ..Transaction::default()
    };
    done(stage.commit(transaction).await)
}

/// What was written is read back with its revision.
pub async fn a_transaction_writes_and_reads_back(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    assert_eq!(stage.record("a").await, None);
    let noted = Write {
        note: Some("created".into()),
        ..put(&stage, "a", r#"{"n":1}"#)
    };
    let held = stage.take("held", "ann").await;
    let both = Transaction {
        writes: vec![noted, put(&stage, "b", "[]")],
        ..Transaction::default()
    };
    let later = [0, 1].map(|index| both.revisions_after(index).expect("it only writes"));
    let removing = Transaction {
        release: vec![LeaseRef::from(&held)],
        ..both.clone()
    };
    assert_eq!(removing.revisions_after(0), None);
    let last = done(stage.commit(both).await).get();
    let a = stage.record("a").await.expect("written");
    let b = stage.record("b").await.expect("written");
    let known = later.map(|later| Revision::new(last - later));
    assert_eq!([a.revision, b.revision], known, "known without a look");
    assert_eq!((&*a.value, &*b.value), (r#"{"n":1}"#, "[]"));
    assert!(a.revision < b.revision, "each write has its own revision");
    let typed = Write {
        note: Some(Note::Session(State::Running)),
        ..put(&stage, "a", r#"{"n":2}"#)
    };
    write(&stage, vec![typed]).await;
    let changed = stage.record("a").await.expect("written");
    assert_eq!(&*changed.value, r#"{"n":2}"#);
    assert!(changed.revision > b.revision);
    let mut events = stage.events().await;
    events.retain(|it| it.kind == EventKind::RecordPut);
    assert_eq!(events.len(), 3);
    assert_eq!(events[0].detail.as_deref(), Some("created"));
    let running = EventCause::Session(State::Running);
    assert_eq!(
        (&events[2].cause, &events[2].detail),
        (&Some(running), &None)
    );
    assert_eq!(events[0].cause, None);
    assert_eq!(events[0].revision, a.revision);
    assert!(events[0].lease.is_none());
}

/// A stale expectation stops everything, and says what is there.
pub async fn a_conflict_changes_nothing(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    write(&stage, vec![put(&stage, "a", "1")]).await;
    let seen = stage.record("a").await.expect("written").revision;
    write(&stage, vec![put(&stage, "a", "2")]).await;
    let actual = stage.record("a").await.expect("written").revision;
    let held = stage.take("held", "ann").await;
    for (wrong, is) in [
        (expect(&stage, "a", Some(seen)), Some(actual)),
        (expect(&stage, "a", None), Some(actual)),
        (expect(&stage, "none", Some(seen)), None),
    ] {
        let transaction = Transaction {
            expect: vec![expect(&stage, "other", None), wrong.clone()],
            writes: vec![put(&stage, "other", "3")],
            acquire: Some(stage.ask("key", "ann")),
            release: vec![LeaseRef::from(&held)],
        };
        let conflict = Committed::Conflict {
            key: wrong.key,
            actual: is,
        };
        assert_eq!(stage.commit(transaction).await, conflict);
    }
    assert_eq!(stage.record("other").await, None);
    assert_eq!(stage.live("key").await, None);
    assert_eq!(stage.live("held").await, Some(held));
    assert_eq!(stage.events().await.len(), 3, "no event of what was not");
}

/// A refused grant inside stops everything.
pub async fn a_refused_grant_changes_nothing(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let foreign = stage.take("key", "bob").await;
    let own = stage.take("own", "ann").await;
    let transaction = Transaction {
        writes: vec![put(&stage, "a", "1")],
        acquire: Some(stage.ask_all(["free", "key"], "ann")),
        release: vec![LeaseRef::from(&own)],
        ..Transaction::default()
    };
    let answer = stage.commit(transaction).await;
    let Committed::Refused(refusal) = answer else {
        panic!("the grant is refused, so not {answer:?}");
    };
    assert_eq!(refusal.key, stage.key("key"));
    assert_eq!(
        super::stage::held(refusal),
        (foreign.holder.clone(), foreign.token)
    );
    assert_eq!(stage.record("a").await, None);
    assert_eq!(stage.live("free").await, None);
    assert_eq!(stage.live("own").await, Some(own));
    assert_eq!(stage.events().await.len(), 2);
}

/// A grant, writes and a release in one step.
pub async fn a_grant_and_writes_happen_together(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let own = stage.take("own", "ann").await;
    let transaction = Transaction {
        expect: vec![expect(&stage, "a", None)],
        writes: vec![put(&stage, "a", "1")],
        acquire: Some(stage.ask_any(["x", "y"], "ann")),
        release: vec![LeaseRef::from(&own)],
    };
    let answer = stage.commit(transaction).await;
    let Committed::Done { revision, leases } = answer else {
        panic!("it goes through, so not {answer:?}");
    };
    assert_eq!(leases.len(), 1);
    assert_eq!(stage.live("x").await.as_ref(), leases.first());
    assert_eq!(stage.live("own").await, None);
    assert!(stage.record("a").await.is_some());
    let events = stage.events().await;
    let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(
        kinds,
        [
            EventKind::LeaseAcquired,
            EventKind::LeaseAcquired,
            EventKind::RecordPut,
            EventKind::LeaseReleased,
        ]
    );
    assert!(events.iter().all(|event| event.revision <= revision));
}

/// What a transaction releases goes to whoever waits.
pub async fn a_release_inside_wakes_a_waiter(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let own = stage.take("own", "ann").await;
    let request = lease::Acquire {
        wait_ms: 60_000,
        ..stage.ask("own", "bob")
    };
    let waiting = stage.queue(request).await;
    let transaction = Transaction {
        writes: vec![put(&stage, "a", "1")],
        release: vec![LeaseRef::from(&own)],
        ..Transaction::default()
    };
    done(stage.commit(transaction).await);
    let next = granted(stage.answer(waiting).await).remove(0);
    assert_eq!(next.holder, stage.holder("bob"));
}

/// A lease that is gone already is no conflict (L16), and nobody else's is touched.
pub async fn releasing_what_is_gone_is_no_conflict(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let gone = stage.take("own", "ann").await;
    stage.release(&gone).await;
    let next = stage.take("own", "bob").await;
    let transaction = Transaction {
        writes: vec![put(&stage, "a", "1")],
        release: vec![LeaseRef::from(&gone)],
        ..Transaction::default()
    };
    done(stage.commit(transaction).await);
    assert!(stage.record("a").await.is_some());
    assert_eq!(stage.live("own").await, Some(next));
}

/// Removing is a change; removing nothing is none.
pub async fn removing_a_record_frees_its_name(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let remove = || Write {
        key: stage.key("a"),
        value: None,
        note: Some("over".into()),
    };
    write(&stage, vec![remove()]).await;
    write(&stage, vec![put(&stage, "a", "1")]).await;
    let before = stage.record("a").await.expect("written").revision;
    write(&stage, vec![remove()]).await;
    write(&stage, vec![remove()]).await;
    assert_eq!(stage.record("a").await, None);
    let create = Transaction {
        expect: vec![expect(&stage, "a", None)],
        writes: vec![put(&stage, "a", "2")],
        ..Transaction::default()
    };
    done(stage.commit(create).await);
    assert!(stage.record("a").await.expect("written").revision > before);
    let story = [
        EventKind::RecordPut,
        EventKind::RecordRemoved,
        EventKind::RecordPut,
    ];
    assert_eq!(stage.story("a").await, story);
}

/// Lists by prefix, in pages, in the order of bytes.
pub async fn records_are_listed_by_prefix_in_pages(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let ids = [
        "b/2", "a", "b/10", "B/1", "b/1", "b", "b:1", "b/é", "b_1", "c",
    ];
    write(&stage, ids.iter().map(|id| put(&stage, id, "1")).collect()).await;
    let foreign = Write {
        key: stage.other_kind("-x", "b/5"),
        value: Some("1".into()),
        note: None,
    };
    write(&stage, vec![foreign]).await;
    let pages = async |prefix: &str, limit: usize| {
        let mut found: Vec<String> = Vec::new();
        loop {
            let query = RecordQuery {
                kind: stage.kind().to_owned(),
                prefix: prefix.to_owned(),
                after: found.last().cloned(),
                limit,
            };
            let page = stage.authority.records(query).await.expect("answered");
            assert!(page.items.len() <= limit);
            assert!(!page.more || page.items.len() == limit, "full unless last");
            found.extend(page.items.iter().map(|it| it.key.id().to_owned()));
            if !page.more {
                return found;
            }
        }
    };
    let mut sorted: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
    sorted.sort();
    assert_eq!(pages("", 100).await, sorted);
    assert_eq!(pages("", 3).await, sorted);
    assert_eq!(pages("", ids.len()).await, sorted, "no empty page after");
    assert_eq!(pages("b/", 2).await, ["b/1", "b/10", "b/2", "b/é"]);
    // What means something to a pattern matcher means nothing here.
    assert_eq!(pages("b_", 2).await, ["b_1"]);
    assert_eq!(pages("%", 2).await, [""; 0]);
    assert_eq!(pages("b/3", 2).await, [""; 0]);
}

/// Ten writers count together, each with what it read as its expectation.
pub async fn racing_writers_lose_no_update(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    write(&stage, vec![put(&stage, "n", "0")]).await;
    let writers: Vec<_> = (0..10)
        .map(|_| {
            let authority = stage.authority.clone();
            let key = stage.key("n");
            tokio::spawn(async move {
                for _attempt in 0..1000 {
                    let seen = authority.record(key.clone()).await.expect("answered");
                    let seen = seen.expect("it is there");
                    let number: u64 = seen.value.parse().expect("a number");
                    let transaction = Transaction {
                        expect: vec![Expect {
                            key: key.clone(),
                            revision: Some(seen.revision),
                        }],
                        writes: vec![Write {
                            key: key.clone(),
                            value: Some((number + 1).to_string().into()),
                            note: None,
                        }],
                        ..Transaction::default()
                    };
                    let answer = authority.commit(transaction).await.expect("answered");
                    if matches!(answer, Committed::Done { .. }) {
                        return;
                    }
                }
                panic!("a writer never got through");
            })
        })
        .collect();
    for writer in writers {
        writer.await.expect("a writer gets through");
    }
    assert_eq!(&*stage.record("n").await.expect("there").value, "10");
}

/// A wrong transaction is rejected, and nothing happens.
pub async fn wrong_transactions_have_no_effect(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let twice = Transaction {
        writes: vec![put(&stage, "a", "1"), put(&stage, "a", "2")],
        ..Transaction::default()
    };
    let waits = Transaction {
        writes: vec![put(&stage, "a", "1")],
        acquire: Some(lease::Acquire {
            wait_ms: 10,
            ..stage.ask("key", "ann")
        }),
        ..Transaction::default()
    };
    let many = Transaction {
        writes: (0..257).map(|n| put(&stage, &n.to_string(), "1")).collect(),
        ..Transaction::default()
    };
    for transaction in [twice, waits, many] {
        let answer = stage.authority.commit(transaction).await;
        assert!(matches!(answer, Err(Error::Invalid(_))), "{answer:?}");
    }
    assert!(stage.events().await.is_empty());
    assert_eq!(stage.record("a").await, None);
}
