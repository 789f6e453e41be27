//! Remembering: each change an event, streams that never lie, a history that answers (L19–L21).

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use lease::{
    Acquire, Acquired, Event, EventKind, EventQuery, LeaseRef, Notice, Revision, Transaction,
    Watch, Watching, Write, history,
};

use super::{Harness, Stage};

/// How long a notice may take.
const PATIENCE: Duration = Duration::from_secs(10);

async fn watch(stage: &Stage<'_>, from: Option<Revision>) -> Watch {
    let watching = Watching::everything().after(from);
    let watch = stage.authority.watch(watching).await;
    watch.expect("a watch starts")
}

async fn notice(watch: &mut Watch) -> Notice {
    tokio::time::timeout(PATIENCE, watch.next())
        .await
        .expect("a notice comes in time")
        .expect("a stream does not end")
        .expect("a stream does not fail")
}

/// The next events of this test's keys, without renewals.
async fn follow(stage: &Stage<'_>, watch: &mut Watch, count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    while events.len() < count {
        match notice(watch).await {
            Notice::Event(event) if event.key.kind() != stage.kind() => {}
            Notice::Event(event) if event.kind == EventKind::LeaseRenewed => {}
            Notice::Event(event) => events.push(Arc::unwrap_or_clone(event)),
            Notice::Progress(_) => {}
            Notice::Snapshot(snapshot) => panic!("nothing was missed, so not {snapshot:?}"),
        }
    }
    events
}

/// A life with every kind of end.
async fn live_a_little(stage: &Stage<'_>) {
    let a = stage.take("a", "ann").await;
    stage.release(&a).await;
    let b = stage.take("b", "ann").await;
    stage.revoke(&b, "test").await;
    let write = |value: Option<&str>| Transaction {
        writes: vec![Write {
            key: stage.key("r"),
            value: value.map(Into::into),
            note: None,
        }],
        ..Transaction::default()
    };
    stage.commit(write(Some("1"))).await;
    stage.commit(write(None)).await;
    let c = stage.take_short("c", "ann").await;
    stage.lapse().await;
    stage.until_expired(&c).await;
}

/// One event per change, with growing revisions and the facts of the lease.
pub async fn l19_each_change_is_one_event_in_order(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    live_a_little(&stage).await;
    let lease = stage.take("a", "bob").await;
    let events = stage.events().await;
    let kinds: Vec<_> = events
        .iter()
        .map(|event| (event.key.id(), event.kind))
        .collect();
    assert_eq!(
        kinds,
        [
            ("a", EventKind::LeaseAcquired),
            ("a", EventKind::LeaseReleased),
            ("b", EventKind::LeaseAcquired),
            ("b", EventKind::LeaseRevoked),
            ("r", EventKind::RecordPut),
            ("r", EventKind::RecordRemoved),
            ("c", EventKind::LeaseAcquired),
            ("c", EventKind::LeaseExpired),
            ("a", EventKind::LeaseAcquired),
        ]
    );
    for pair in events.windows(2) {
        assert!(pair[0].revision < pair[1].revision, "revisions only grow");
        assert!(pair[0].at <= pair[1].at, "and so does time");
    }
    let last = events.last().expect("nine events");
    let about = last.lease.as_ref().expect("about a lease");
    assert_eq!(
        (about.id, &about.holder, about.token, about.expires_at),
        (lease.id, &lease.holder, lease.token, lease.expires_at)
    );
    assert_eq!(last.at, lease.acquired_at);
    let page = stage.authority.events(EventQuery {
        limit: 1,
        ..EventQuery::default()
    });
    let page = page.await.expect("answered");
    assert!(page.oldest <= events[0].revision && page.newest >= last.revision);
}

/// Force is reported as such, with its reason.
pub async fn l19_a_forced_take_is_stolen_then_acquired(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let old = stage.take("a", "ann").await;
    let request = Acquire {
        force: Some("maintenance".into()),
        ..stage.ask("a", "bob")
    };
    stage.grant(request).await;
    let story = [
        EventKind::LeaseAcquired,
        EventKind::LeaseStolen,
        EventKind::LeaseAcquired,
    ];
    assert_eq!(stage.story("a").await, story);
    let stolen = &stage.events().await[1];
    assert_eq!(stolen.detail.as_deref(), Some("maintenance"));
    assert_eq!(stolen.lease.as_ref().map(|it| it.id), Some(old.id));
}

/// What did not happen is not reported.
pub async fn l19_a_refusal_leaves_no_event(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    stage.refuse(stage.ask("a", "bob")).await;
    stage.refuse(stage.ask_all(["x", "a"], "bob")).await;
    stage
        .release_as(LeaseRef {
            holder: stage.holder("bob"),
            ..LeaseRef::from(&lease)
        })
        .await;
    stage.acquire(stage.ask("a", "ann")).await;
    assert_eq!(stage.events().await.len(), 1);
}

/// The live stream and the history are the same.
pub async fn l20_a_watcher_sees_every_change_in_order(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    stage.take("before", "ann").await;
    let mut live = watch(&stage, None).await;
    live_a_little(&stage).await;
    let seen = follow(&stage, &mut live, 8).await;
    let history = stage.events().await;
    assert_eq!(seen, history[1..], "from now on, and nothing left out");
}

/// From any revision, then on with what happens.
pub async fn l20_a_watcher_resumes_where_it_stopped(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    for round in 0..20 {
        let lease = stage.take(&format!("a{round}"), "ann").await;
        stage.release(&lease).await;
    }
    assert_eq!(stage.events().await.len(), 40);
    for stopped in [0, 17, 39] {
        let history = stage.events().await;
        let mut resumed = watch(&stage, Some(history[stopped].revision)).await;
        let missed = follow(&stage, &mut resumed, history.len() - stopped - 1).await;
        assert_eq!(missed, history[stopped + 1..]);
        let lease = stage.take("next", "ann").await;
        let next = follow(&stage, &mut resumed, 1).await;
        assert_eq!(next[0].lease.as_ref().map(|it| it.id), Some(lease.id));
        stage.release(&lease).await;
    }
}

/// A gap is never silent: what is gone is replaced by a snapshot, and the stream goes on from it.
pub async fn l20_a_forgotten_revision_is_told_by_a_snapshot(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let gone = stage.take("gone", "ann").await;
    stage.release(&gone).await;
    let lease = stage.take("a", "ann").await;
    stage
        .commit(Transaction {
            writes: vec![Write {
                key: stage.key("r"),
                value: Some("1".into()),
                note: None,
            }],
            ..Transaction::default()
        })
        .await;
    let first = stage.events().await[0].revision;
    let forgot = harness.forget_history().await;
    let stage = stage.again();
    let page = stage.authority.events(EventQuery {
        after: first,
        limit: 10,
        ..EventQuery::default()
    });
    let oldest = page.await.expect("answered").oldest;
    let mut resumed = watch(&stage, Some(first)).await;
    if !forgot {
        // This backend keeps all of it here: then nothing may be missing.
        assert!(oldest <= first.next(), "the history is whole");
        assert_eq!(follow(&stage, &mut resumed, 3).await.len(), 3);
        return;
    }
    assert!(oldest > first.next(), "the history tells what it has left");
    let Notice::Snapshot(snapshot) = notice(&mut resumed).await else {
        panic!("what is gone must be told");
    };
    assert!(snapshot.revision > first);
    let mine: Vec<_> = snapshot
        .leases
        .iter()
        .filter(|it| it.key.kind() == stage.kind())
        .collect();
    assert_eq!(mine, [&lease], "all that is live, and nothing else");
    assert!(
        snapshot
            .records
            .iter()
            .any(|record| record.key == stage.key("r"))
    );
    assert!(stage.release(&lease).await);
    let next = follow(&stage, &mut resumed, 1).await;
    assert_eq!(next[0].kind, EventKind::LeaseReleased);
    assert!(next[0].revision > snapshot.revision);
}

/// Renewals appear on the live stream and change no revision of other events.
pub async fn l20_renewals_are_live(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let lease = stage.take("a", "ann").await;
    let mut live = watch(&stage, None).await;
    let renewed = stage.renew(&lease).await.expect("kept");
    let event = loop {
        match notice(&mut live).await {
            Notice::Event(event) if event.key == lease.key => break event,
            Notice::Event(_) | Notice::Progress(_) => {}
            Notice::Snapshot(snapshot) => panic!("nothing was missed, so not {snapshot:?}"),
        }
    };
    assert_eq!(event.kind, EventKind::LeaseRenewed);
    let about = event.lease.as_ref().expect("about a lease");
    assert_eq!((about.id, about.token), (lease.id, lease.token));
    assert_eq!(about.expires_at, renewed.expires_at);
    stage.release(&lease).await;
    let next = follow(&stage, &mut live, 1).await;
    assert!(next[0].revision > event.revision, "it came later");
}

/// Who owned this key at that time, under which token, and why did it end?
pub async fn l21_the_history_names_the_owner_at_any_time(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let first = stage.take("a", "ann").await;
    stage.pass(40).await;
    stage.revoke(&first, "test").await;
    stage.pass(40).await;
    let second = stage.take("a", "bob").await;
    stage.pass(40).await;
    let query = EventQuery {
        key: Some(stage.key("a")),
        limit: 100,
        ..EventQuery::default()
    };
    let page = stage.authority.events(query).await.expect("answered");
    let events: Vec<_> = page
        .events
        .into_iter()
        .filter(|event| event.kind != EventKind::LeaseRenewed)
        .collect();
    let (ended, began) = (events[1].at, events[2].at);
    let at = |time| history::owner_at(&events, time);
    let owner = at(first.acquired_at).expect("ann had it");
    assert_eq!((owner.lease.id, owner.lease.token), (first.id, first.token));
    assert_eq!(owner.until, Some((ended, EventKind::LeaseRevoked)));
    assert_eq!(owner.detail.as_deref(), Some("test"));
    assert_eq!(at(ended), None, "nobody");
    let owner = at(began.plus(20)).expect("bob has it");
    assert_eq!((owner.lease.id, owner.until), (second.id, None));
    assert!(at(lease::UnixMillis::new(first.acquired_at.get() - 1)).is_none());
}

/// Many holders fight for few keys; the history proves that no two owners' times overlap, and the
/// live stream reports the same.
pub async fn l21_no_two_owners_overlap_under_load(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let mut live = watch(&stage, None).await;
    let fighters: Vec<_> = (0..8)
        .map(|fighter| {
            let authority = stage.authority.clone();
            let requests: Vec<_> = (0..15)
                .map(|round| {
                    let id = format!("k{}", (fighter + round) % 3);
                    stage.ask(&id, &format!("fighter-{fighter}"))
                })
                .collect();
            tokio::spawn(async move {
                let mut changes = 0;
                for request in requests {
                    let answer = authority.acquire(request).await.expect("answered");
                    if let Acquired::Granted { leases, .. } = answer {
                        let lease = LeaseRef::from(&leases[0]);
                        assert!(authority.release(lease).await.expect("answered"));
                        changes += 2;
                    }
                }
                changes
            })
        })
        .collect();
    let mut changes = 0;
    for fighter in fighters {
        changes += fighter.await.expect("a fighter does not panic");
    }
    assert!(changes >= 6, "each key was had at least once");
    let events = stage.events().await;
    assert_eq!(events.len(), changes, "each change is an event");
    let mut verifier = history::Verifier::new(history::Extent::Some);
    for event in &events {
        verifier.see(event);
    }
    let (seen, faults) = verifier.finish();
    assert_eq!(seen, changes as u64);
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(follow(&stage, &mut live, changes).await, events);
}

/// By key, kind, sort and tenant, in pages.
pub async fn events_are_filtered_and_paged(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let bound = Acquire {
        labels: lease::Labels::new([("tenant".into(), "acme".into())].into()).expect("well-formed"),
        ..stage.ask("a", "ann")
    };
    let lease = stage.grant(bound).await;
    stage.release(&lease).await;
    let lease = stage.take("b", "ann").await;
    stage.release(&lease).await;
    let all = stage.events().await;
    let kind = EventQuery {
        kind: Some(stage.kind().to_owned()),
        limit: 100,
        ..EventQuery::default()
    };
    let get = async |query: EventQuery| {
        let page = stage.authority.events(query).await.expect("answered");
        let kinds: Vec<_> = page
            .events
            .iter()
            .map(|event| (event.key.id().to_owned(), event.kind))
            .collect();
        (kinds, page.more)
    };
    let (a, b) = ("a".to_owned(), "b".to_owned());
    let (acquired, released) = (EventKind::LeaseAcquired, EventKind::LeaseReleased);
    let key = EventQuery {
        key: Some(stage.key("b")),
        kind: None,
        ..kind.clone()
    };
    let of_b = vec![(b.clone(), acquired), (b.clone(), released)];
    assert_eq!(get(key).await, (of_b.clone(), false));
    let sort = EventQuery {
        event: Some(released),
        ..kind.clone()
    };
    let ends = vec![(a.clone(), released), (b, released)];
    assert_eq!(get(sort).await, (ends, false));
    let tenant = EventQuery {
        tenant: Some("acme".into()),
        ..kind.clone()
    };
    let of_a = vec![(a.clone(), acquired), (a, released)];
    assert_eq!(get(tenant).await, (of_a.clone(), false));
    let page = EventQuery {
        limit: 2,
        ..kind.clone()
    };
    assert_eq!(get(page).await, (of_a, true), "and there is more");
    let rest = EventQuery {
        after: all[1].revision,
        limit: 2,
        ..kind
    };
    assert_eq!(get(rest).await, (of_b, false), "and no more");
}

/// Soon after it happened every event is under a seal, and the whole history agrees with its seals; so
/// does each key's part on its own.
pub async fn l21_every_event_is_sealed_as_it_was_written(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    live_a_little(&stage).await;
    let last = stage.take("a", "bob").await;
    let events = stage.events().await;
    let newest = events.last().expect("some events").revision;
    let authority = stage.authority.clone();
    let audit = async |key: Option<&lease::Key>| {
        let scope = history::Scope {
            key: key.cloned(),
            after: Revision::new(events[0].revision.get() - 1),
            ..history::Scope::default()
        };
        let mut seen = Vec::new();
        let audit = history::audit(&*authority, &scope, |event| seen.push(event.clone())).await;
        (audit.expect("the history is answered"), seen)
    };
    stage
        .eventually("the events are sealed", async || {
            let (audit, _) = audit(None).await;
            audit.head.is_some_and(|(sealed, _)| sealed >= newest)
        })
        .await;
    let (whole, seen) = audit(None).await;
    assert_eq!(whole.breaks, []);
    assert!(
        events.iter().all(|event| seen.contains(event)),
        "all were looked at"
    );
    let (part, seen) = audit(Some(&last.key)).await;
    assert_eq!(part.breaks, []);
    let own: Vec<_> = events
        .iter()
        .filter(|event| event.key == last.key)
        .collect();
    assert_eq!(seen.iter().collect::<Vec<_>>(), own, "one key on its own");
}
