//! Copies of a store that is at work, and what a restore does to tokens and revisions.
#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use lease::{Acquired, Authority, LeaseRef, Renew, Renewals};
use leasehold_clock::Manual;
use leasehold_store::embedded::{self, Copied, Embedded, OpenError};

use crate::{
    embedded_kit::{ask, events, granted, key, manual, open},
    seal_kit::sound,
};

async fn backup(dir: &Path, to: &Path) -> Result<Copied, OpenError> {
    let (dir, to) = (dir.to_owned(), to.to_owned());
    let copied = tokio::task::spawn_blocking(move || embedded::backup(&dir, &to));
    copied.await.unwrap()
}

async fn restore(
    from: &Path,
    dir: &Path,
    replace: bool,
    clock: &Manual,
) -> Result<embedded::Restored, OpenError> {
    let (from, dir, clock) = (from.to_owned(), dir.to_owned(), clock.clone());
    let restored =
        tokio::task::spawn_blocking(move || embedded::restore(&from, &dir, replace, &clock));
    restored.await.unwrap()
}

/// Takes and releases for as long as it is let, and notes the largest token.
fn load(
    store: &Embedded,
    stop: &Arc<AtomicBool>,
    largest: &Arc<AtomicU64>,
) -> Vec<tokio::task::JoinHandle<u64>> {
    (0..8)
        .map(|worker| {
            let (store, stop, largest) = (store.clone(), stop.clone(), largest.clone());
            tokio::spawn(async move {
                let mut rounds = 0;
                while !stop.load(Ordering::Acquire) {
                    let id = format!("k{}", (worker * 7 + rounds) % 20);
                    let acquired = store
                        .acquire(ask(&id, &format!("w{worker}")))
                        .await
                        .unwrap();
                    if let Acquired::Granted { leases, .. } = acquired {
                        largest.fetch_max(leases[0].token.get(), Ordering::AcqRel);
                        store.release(LeaseRef::from(&leases[0])).await.unwrap();
                    }
                    rounds += 1;
                }
                rounds
            })
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_made_under_load_is_one_moment_and_no_token_goes_back() {
    let (backend, copies, clock) = (
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
        manual(),
    );
    let store = open(backend.path(), &clock).await.unwrap();
    let kept = granted(store.acquire(ask("kept", "ann")).await.unwrap());
    let (stop, largest) = (Arc::default(), Arc::default());
    let tasks = load(&store, &stop, &largest);
    let mut made: Vec<(PathBuf, Copied)> = Vec::new();
    while made.len() < 3 {
        // Each copy while others take and release.
        let before = largest.load(Ordering::Acquire);
        while largest.load(Ordering::Acquire) == before {
            tokio::task::yield_now().await;
        }
        let to = copies.path().join(made.len().to_string());
        let copied = backup(backend.path(), &to).await.unwrap();
        assert!(copied.leases >= 1 && copied.events > 0, "{copied:?}");
        made.push((to, copied));
    }
    stop.store(true, Ordering::Release);
    for task in tasks {
        assert!(task.await.unwrap() > 0);
    }
    // Granted after the last copy, and unknown to it.
    let later = granted(store.acquire(ask("later", "ann")).await.unwrap());
    let newest = events(&store).await.last().unwrap().revision;
    let largest = largest.load(Ordering::Acquire).max(later.token.get());
    store.close().await.unwrap();
    clock.advance(1_000);

    let (copy, copied) = made.last().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let dir = elsewhere.path().join("store");
    let restored = restore(copy, &dir, false, &clock).await.unwrap();
    assert_eq!(restored.copied, *copied);
    assert!(restored.revision > newest && restored.floor.get() > largest);
    assert_eq!(restored.longest_ttl_ms, 10_000);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for path in [&copy.join("leasehold.db"), &dir.join("leasehold.db")] {
        assert_eq!(mode(path), 0o600, "{}", path.display());
    }
    assert_eq!(mode(&dir), 0o700);

    let again = open(&dir, &clock).await.unwrap();
    sound(&again).await;
    // What was live is live, with its token and its full ttl (L14).
    let found = again.lease(key("kept")).await.unwrap().unwrap();
    assert_eq!((found.id, found.token), (kept.id, kept.token));
    let renew = Renew {
        holder: kept.holder.clone(),
        leases: Renewals::All,
    };
    let renewed = again.renew(renew).await.unwrap();
    assert!(renewed[0].outcome.is_ok(), "{renewed:?}");
    // Whoever held a key when the copy was made is gone: its lease lapses.
    clock.advance(20_000);
    // What is granted now beats everything that was granted before (L3), also after the copy.
    for id in ["k1", "later", "never-seen"] {
        let lease = granted(again.acquire(ask(id, "bob")).await.unwrap());
        assert!(lease.token.get() > largest, "{id}: {:?}", lease.token);
        again.release(LeaseRef::from(&lease)).await.unwrap();
    }
    // No revision comes twice, so no message id does and no stream skips (L20).
    assert!(
        events(&again)
            .await
            .iter()
            .all(|event| event.revision > newest)
    );
    sound(&again).await;
    again.close().await.unwrap();
}

#[tokio::test]
async fn a_restore_takes_no_store_away_by_accident() {
    let (backend, copies, clock) = (
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
        manual(),
    );
    let copy = copies.path().join("copy");
    assert!(
        backup(backend.path(), &copy).await.is_err(),
        "there is nothing to copy"
    );
    let store = open(backend.path(), &clock).await.unwrap();
    granted(store.acquire(ask("a", "ann")).await.unwrap());
    backup(backend.path(), &copy).await.unwrap();
    let twice = backup(backend.path(), &copy).await.unwrap_err();
    assert!(twice.to_string().contains("already"), "{twice}");
    let newer = granted(store.acquire(ask("b", "ann")).await.unwrap());

    let in_use = restore(&copy, backend.path(), true, &clock)
        .await
        .unwrap_err();
    assert!(matches!(in_use, OpenError::InUse { .. }), "{in_use}");
    store.close().await.unwrap();
    let there = restore(&copy, backend.path(), false, &clock)
        .await
        .unwrap_err();
    assert!(there.to_string().contains("already"), "{there}");
    let restored = restore(&copy, backend.path(), true, &clock).await.unwrap();
    let aside = restored.set_aside.unwrap();
    assert!(aside.join("leasehold.db").exists());
    assert!(restored.floor > newer.token);
    let store = open(backend.path(), &clock).await.unwrap();
    assert!(store.lease(key("a")).await.unwrap().is_some());
    assert!(store.lease(key("b")).await.unwrap().is_none());
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_damaged_copy_is_refused_and_nothing_is_changed() {
    let (backend, copies, clock) = (
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
        manual(),
    );
    let copy = copies.path().join("copy");
    let store = open(backend.path(), &clock).await.unwrap();
    for id in 0..50 {
        granted(store.acquire(ask(&format!("k{id}"), "ann")).await.unwrap());
    }
    backup(backend.path(), &copy).await.unwrap();
    store.close().await.unwrap();
    let file = copy.join("leasehold.db");
    let mut bytes = std::fs::read(&file).unwrap();
    // One letter of one key, wherever it stands.
    let places: Vec<usize> = (0..bytes.len() - 7)
        .filter(|at| &bytes[*at..at + 7] == b"job:k42")
        .collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at + 6] = b'x';
    }
    std::fs::write(&file, bytes).unwrap();
    let refused = restore(&copy, backend.path(), true, &clock)
        .await
        .unwrap_err();
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
    let store = open(backend.path(), &clock).await.unwrap();
    assert!(store.lease(key("k42")).await.unwrap().is_some());
    store.close().await.unwrap();
}
