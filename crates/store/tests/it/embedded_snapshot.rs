//! Snapshots are put together beside the writer: exact all the same, and nobody's renewal waits for one.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::StreamExt as _;
use lease::{
    Acquire, Authority, EventKind, Holder, Key, LeaseId, LeaseRef, Notice, Renew, Renewals,
    Revision, Snapshot, Transaction, Ttl, Want, Watch, Watching, Write,
};
use leasehold_store::embedded::Embedded;

use crate::embedded_kit::{LIMIT, ask, granted, key, manual, memory, open};

/// A revision that no history reaches.
const NEVER: Revision = Revision::new(1 << 50);

async fn fill(store: &Embedded, leases: usize) {
    for first in (0..leases).step_by(100) {
        let keys = (first..first + 100)
            .map(|id| key(&format!("{id:06}")))
            .collect();
        let holder = Holder::new(&format!("h{}", first / 1000), "1").unwrap();
        let ttl = Ttl::from_secs(3600).unwrap();
        store
            .acquire(Acquire::of(Want::All(keys), holder, ttl))
            .await
            .unwrap();
    }
}

async fn snapshot(watch: &mut Watch) -> Snapshot {
    let notice = tokio::time::timeout(LIMIT, watch.next()).await.unwrap();
    match notice.unwrap().unwrap() {
        Notice::Snapshot(snapshot) => *snapshot,
        other => panic!("{other:?}"),
    }
}

/// Takes, releases and writes for as long as it is told to.
fn churn(store: &Embedded, stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<()> {
    let (store, stop) = (store.clone(), stop.clone());
    tokio::spawn(async move {
        let mut round = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            round += 1;
            let id = format!("{:06}", (round * 7919) % 5_000);
            if let Some(lease) = store.lease(key(&id)).await.unwrap() {
                store.release(LeaseRef::from(&lease)).await.unwrap();
            }
            granted(
                store
                    .acquire(ask(&id, &format!("churn-{round}")))
                    .await
                    .unwrap(),
            );
            let write = Write {
                key: Key::new("note", &id).unwrap(),
                value: (!round.is_multiple_of(3)).then(|| format!("{round}").into()),
                note: None,
            };
            let transaction = Transaction {
                writes: vec![write],
                ..Transaction::default()
            };
            store.commit(transaction).await.unwrap();
            tokio::task::yield_now().await;
        }
    })
}

async fn a_snapshot_and_the_events_after_it_are_the_whole_truth(store: Embedded) {
    fill(&store, 5_000).await;
    let stop = Arc::new(AtomicBool::new(false));
    let churning = churn(&store, &stop);
    for _ in 0..5 {
        let mut watch = store
            .watch(Watching::everything().after(NEVER))
            .await
            .unwrap();
        let snapshot = snapshot(&mut watch).await;
        let mut held: BTreeMap<Key, LeaseId> = snapshot
            .leases
            .iter()
            .map(|lease| (lease.key.clone(), lease.id))
            .collect();
        let mut records: BTreeMap<Key, Revision> = snapshot
            .records
            .iter()
            .map(|it| (it.key.clone(), it.revision))
            .collect();
        assert_eq!(held.len(), snapshot.leases.len());
        let mut revision = snapshot.revision;
        // A few hundred changes on top, none missing, each one possible after what is known.
        while revision.get() < snapshot.revision.get() + 300 {
            let notice = tokio::time::timeout(LIMIT, watch.next()).await.unwrap();
            let Notice::Event(event) = notice.unwrap().unwrap() else {
                panic!("a snapshot")
            };
            if event.kind == EventKind::LeaseRenewed {
                continue;
            }
            assert_eq!(event.revision, revision.next(), "no gap and no repeat");
            revision = event.revision;
            match (event.kind, &event.lease) {
                (EventKind::LeaseAcquired, Some(lease)) => {
                    let before = held.insert(event.key.clone(), lease.id);
                    assert_eq!(before, None, "{} was free", event.key);
                }
                (kind, Some(lease)) if kind.ends_lease() => {
                    assert_eq!(held.remove(&event.key), Some(lease.id), "{}", event.key);
                }
                (EventKind::RecordPut, _) => {
                    let before = records.insert(event.key.clone(), event.revision);
                    assert!(before.is_none_or(|before| before < event.revision));
                }
                (EventKind::RecordRemoved, _) => {
                    assert!(
                        records.remove(&event.key).is_some(),
                        "{} was there",
                        event.key
                    );
                }
                _ => {}
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    churning.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_disk_a_snapshot_is_exact() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &manual()).await.unwrap();
    a_snapshot_and_the_events_after_it_are_the_whole_truth(store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_memory_a_snapshot_is_exact() {
    a_snapshot_and_the_events_after_it_are_the_whole_truth(memory(&manual())).await;
}

#[tokio::test]
async fn renewals_show_in_a_snapshot() {
    let clock = manual();
    let store = memory(&clock);
    let lease = granted(store.acquire(ask("a", "x")).await.unwrap());
    clock.advance(5_000);
    let renew = Renew {
        holder: lease.holder.clone(),
        leases: Renewals::All,
    };
    store.renew(renew).await.unwrap();
    let mut watch = store
        .watch(Watching::everything().after(NEVER))
        .await
        .unwrap();
    let snapshot = snapshot(&mut watch).await;
    assert_eq!(snapshot.leases[0].expires_at, lease.expires_at.plus(5_000));
}

/// The largest number of jobs that a renewal waits for is bounded, whatever is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_go_on_between_the_pages_of_snapshots() {
    let clock = manual();
    let store = memory(&clock);
    fill(&store, 20_000).await;
    let bystander = granted(store.acquire(ask("zz", "bystander")).await.unwrap());
    let renew = || Renew {
        holder: bystander.holder.clone(),
        leases: Renewals::All,
    };
    let readers: Vec<_> = (0..20)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut watch = store
                    .watch(Watching::everything().after(NEVER))
                    .await
                    .unwrap();
                assert_eq!(snapshot(&mut watch).await.leases.len(), 20_001);
            })
        })
        .collect();
    // While they are at it, a renewal is answered many times over.
    let mut renewals = 0;
    while readers.iter().any(|reader| !reader.is_finished()) {
        store.renew(renew()).await.unwrap();
        renewals += 1;
    }
    for reader in readers {
        reader.await.unwrap();
    }
    // Twenty pages each, at most a few of them before any one renewal.
    assert!(
        renewals >= 60,
        "only {renewals} renewals during 20 snapshots"
    );
}
