//! Watches with a filter: only what is wanted, nothing of it left out, and a place to resume from (L20).

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use lease::{
    Acquire, Error, Event, EventKind, HolderName, Labels, Notice, Revision, TENANT, Transaction,
    Watch, Watching, Write,
};

use super::{Harness, Stage};

/// How long a notice may take: longer than the pause between two reports of progress.
const PATIENCE: Duration = Duration::from_secs(20);

async fn watch(stage: &Stage<'_>, watching: Watching) -> Watch {
    stage
        .authority
        .watch(watching)
        .await
        .expect("a watch starts")
}

async fn notice(watch: &mut Watch) -> Notice {
    tokio::time::timeout(PATIENCE, watch.next())
        .await
        .expect("a notice comes in time")
        .expect("a stream does not end")
        .expect("a stream does not fail")
}

/// The next events, which must all be wanted.
async fn follow(watch: &mut Watch, count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    while events.len() < count {
        match notice(watch).await {
            Notice::Event(event) => events.push(Arc::unwrap_or_clone(event)),
            Notice::Progress(_) => {}
            Notice::Snapshot(snapshot) => panic!("nothing was missed, so not {snapshot:?}"),
        }
    }
    events
}

fn reported(events: &[Event]) -> Vec<(&str, EventKind)> {
    events
        .iter()
        .map(|event| (event.key.id(), event.kind))
        .collect()
}

async fn put(stage: &Stage<'_>, id: &str) {
    let write = Write {
        key: stage.key(id),
        value: Some("1".into()),
        note: None,
    };
    stage
        .commit(Transaction {
            writes: vec![write],
            ..Transaction::default()
        })
        .await;
}

/// Kind of key, key, sort of event, tenant and renewals: each narrows the watch.
pub async fn l20_a_watch_carries_only_what_is_wanted(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let kind = stage.kind().to_owned();
    let mut of_kind = watch(&stage, Watching::kinds([&kind])).await;
    let mut of_key = watch(&stage, Watching::key(stage.key("b"))).await;
    let ends = Watching::kinds([&kind]).only([EventKind::LeaseReleased]);
    let mut of_sort = watch(&stage, ends).await;
    let mut renewed = watch(&stage, Watching::kinds([&kind]).with_renewals()).await;
    let mut of_tenant = watch(
        &stage,
        Watching {
            tenant: Some(kind.clone()),
            ..Watching::default()
        },
    )
    .await;

    let other = Acquire::one(
        stage.other_kind("x", "a"),
        stage.holder("ann"),
        stage.long(),
    );
    stage.grant(other).await;
    let a = stage.take("a", "ann").await;
    stage.renew(&a).await.expect("kept");
    put(&stage, "r").await;
    let labels = [(TENANT.to_owned(), kind.clone())].into();
    let b = stage
        .grant(Acquire {
            labels: Labels::new(labels).expect("a tenant"),
            ..stage.ask("b", "bob")
        })
        .await;
    stage.release(&a).await;
    stage.release(&b).await;

    let everything = [
        ("a", EventKind::LeaseAcquired),
        ("r", EventKind::RecordPut),
        ("b", EventKind::LeaseAcquired),
        ("a", EventKind::LeaseReleased),
        ("b", EventKind::LeaseReleased),
    ];
    assert_eq!(reported(&follow(&mut of_kind, 5).await), everything);
    let of_b = [everything[2], everything[4]];
    assert_eq!(reported(&follow(&mut of_key, 2).await), of_b);
    assert_eq!(reported(&follow(&mut of_tenant, 2).await), of_b);
    assert_eq!(reported(&follow(&mut of_sort, 2).await), everything[3..]);
    let with_renewal = follow(&mut renewed, 6).await;
    assert_eq!(reported(&with_renewal)[1], ("a", EventKind::LeaseRenewed));
}

/// A holder hears of its own losses, in this incarnation, and of nobody else's changes.
pub async fn l20_one_holder_sees_only_its_own(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let mut own = watch(&stage, Watching::holder(&stage.holder("ann"))).await;
    let mut name = watch(
        &stage,
        Watching {
            holder: Some(HolderName::new(format!("ann.{}", stage.kind())).expect("a name")),
            ..Watching::default()
        },
    )
    .await;
    put(&stage, "r").await;
    let theirs = stage.take("b", "bob").await;
    let before = Acquire {
        holder: stage.incarnation("ann", "0"),
        ..stage.ask("c", "ann")
    };
    stage.grant(before).await;
    let mine = stage.take("a", "ann").await;
    stage.renew(&mine).await.expect("kept");
    stage.release(&theirs).await;
    stage.revoke(&mine, "test").await;
    let story = [
        ("a", EventKind::LeaseAcquired),
        ("a", EventKind::LeaseRevoked),
    ];
    assert_eq!(reported(&follow(&mut own, 2).await), story);
    let all = follow(&mut name, 3).await;
    assert_eq!(reported(&all)[0], ("c", EventKind::LeaseAcquired));
    assert_eq!(reported(&all)[1..], story);
}

/// From any revision, whether or not what happened there was wanted.
pub async fn l20_a_filtered_watch_resumes_without_a_gap(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let begin = stage.take("begin", "bob").await;
    for round in 0..10 {
        stage.take(&format!("x{round}"), "bob").await;
        let lease = stage.take(&format!("a{round}"), "ann").await;
        stage.release(&lease).await;
    }
    stage.release(&begin).await;
    let wanted = Watching::holder(&stage.holder("ann"));
    for stopped in [0, 1, 7, 15, 30] {
        let history = stage.events().await;
        let from = history[stopped].revision;
        let mut resumed = watch(&stage, wanted.clone().after(from)).await;
        let expected: Vec<&Event> = history[stopped + 1..]
            .iter()
            .filter(|event| wanted.matches(event))
            .collect();
        let missed = follow(&mut resumed, expected.len()).await;
        assert_eq!(missed.iter().collect::<Vec<_>>(), expected);
        let next = stage.take("next", "ann").await;
        stage.release(&next).await;
        let live = follow(&mut resumed, 2).await;
        assert_eq!(live[0].lease.as_ref().map(|it| it.id), Some(next.id));
    }
}

/// What is gone is replaced by what is live and wanted, and the stream goes on from there.
pub async fn l20_a_filtered_snapshot_shows_only_what_is_wanted(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let mine = stage.take("a", "ann").await;
    stage.take("b", "bob").await;
    put(&stage, "r").await;
    let future = stage.events().await.last().expect("events").revision;
    let future = Revision::new(future.get() + 1_000_000);
    let wanted = Watching::holder(&stage.holder("ann")).after(future);
    let mut begun = watch(&stage, wanted).await;
    let Notice::Snapshot(snapshot) = notice(&mut begun).await else {
        panic!("a revision that never was is told");
    };
    assert_eq!(snapshot.leases, std::slice::from_ref(&mine));
    assert!(snapshot.records.is_empty(), "records belong to nobody");
    let mut key = watch(&stage, Watching::key(stage.key("r")).after(future)).await;
    let Notice::Snapshot(records) = notice(&mut key).await else {
        panic!("a revision that never was is told");
    };
    assert!(records.leases.is_empty());
    assert_eq!(records.records.len(), 1);
    stage.take("c", "bob").await;
    stage.release(&mine).await;
    let next = follow(&mut begun, 1).await;
    assert_eq!(reported(&next), [("a", EventKind::LeaseReleased)]);
    assert!(next[0].revision > snapshot.revision);
}

/// Whoever nothing comes for learns how far it got, and may resume from there.
pub async fn l20_a_filtered_watch_learns_how_far_it_got(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    let wanted = Watching::holder(&stage.holder("ann"));
    let mut quiet = watch(&stage, wanted.clone()).await;
    stage.take("b", "bob").await;
    let passed = stage.events().await.last().expect("an event").revision;
    let Notice::Progress(reached) = notice(&mut quiet).await else {
        panic!("nothing of it was wanted");
    };
    assert!(reached >= passed, "{reached} is before {passed}");
    let lease = stage.take("a", "ann").await;
    let mut resumed = watch(&stage, wanted.after(reached)).await;
    for watch in [&mut quiet, &mut resumed] {
        let seen = follow(watch, 1).await;
        assert_eq!(seen[0].lease.as_ref().map(|it| it.id), Some(lease.id));
    }
}

/// A filter that nothing can match is a wrong request.
pub async fn wrong_filters_are_refused(harness: &dyn Harness) {
    let stage = Stage::of(harness);
    for wrong in [
        Watching::kinds(["not a kind"]),
        Watching {
            kinds: vec!["k".to_owned(); Watching::MAX_KINDS + 1],
            ..Watching::default()
        },
    ] {
        let outcome = stage.authority.watch(wrong).await;
        assert!(matches!(outcome, Err(Error::Invalid(_))), "refused");
    }
}
