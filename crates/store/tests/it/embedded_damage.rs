//! Disks and files that fail: a clear message, and nothing lost that was acknowledged.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{os::unix::fs::FileExt, path::Path, sync::Arc};

use lease::{Authority, Error, EventKind, LeaseRef, Renew, Renewals, Revision, Transaction, Write};
use leasehold_clock::Manual;
use leasehold_store::embedded::{Embedded, OnDamage, OpenError, Options};

use crate::embedded_kit::{LIMIT, SmallDisk, ask, crash_image, events, granted, key, manual, open};

async fn go_on(dir: &Path, clock: &Manual) -> Embedded {
    let options = Options {
        on_damage: OnDamage::GoOn,
        ..Options::at(dir)
    };
    Embedded::open(options, Arc::new(clock.clone()))
        .await
        .unwrap()
}

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_full_disk_refuses_changes_keeps_renewals_and_loses_nothing() {
    let disk = SmallDisk::new("size=4m");
    let dir = disk.path().join("store");
    let filler = disk.path().join("filler");
    std::fs::write(&filler, vec![1; 2 << 20]).unwrap();
    let clock = manual();
    let store = open(&dir, &clock).await.unwrap();
    let mut leases = Vec::new();
    let error = loop {
        let id = leases.len().to_string();
        assert!(leases.len() < 100_000, "the disk never filled up");
        // Records make it full sooner.
        let fill = Transaction {
            writes: vec![Write {
                key: lease::Key::new("fill", &id).unwrap(),
                value: Some(format!("{:?}", "x".repeat(50_000)).into()),
                note: None,
            }],
            ..Transaction::default()
        };
        let lease = match store.acquire(ask(&id, "x")).await {
            Ok(acquired) => granted(acquired),
            Err(error) => break error,
        };
        leases.push(lease);
        if let Err(error) = store.commit(fill).await {
            break error;
        }
    };
    assert!(
        matches!(&error, Error::Unknown(why) if why.contains("full")),
        "{error}"
    );
    // No change is taken, and it is said that nothing happened.
    let refused = store.acquire(ask("new", "y")).await.unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused}");
    assert!(refused.has_no_side_effects());
    assert!(store.capabilities().degraded, "readiness says so");
    // Time stands still for the leases; their holders keep them.
    clock.advance(400);
    let all = Renew {
        holder: leases[0].holder.clone(),
        leases: Renewals::All,
    };
    let renewed = store.renew(all.clone()).await.unwrap();
    assert_eq!(renewed.len(), leases.len());
    assert!(renewed.iter().all(|renewed| renewed.outcome.is_ok()));
    assert!(store.lease(key("0")).await.unwrap().is_some());

    std::fs::remove_file(&filler).unwrap();
    leasehold_testkit::wait::until(LIMIT, "changes are taken again", async || {
        clock.advance(1_000);
        store.acquire(ask("new", "y")).await.is_ok()
    })
    .await;
    let renewed = store.renew(all).await.unwrap();
    assert_eq!(renewed.len(), leases.len());
    assert!(renewed.iter().all(|renewed| renewed.outcome.is_ok()));
    let history = events(&store).await;
    assert!(
        history
            .iter()
            .any(|event| event.kind == EventKind::AuthorityResumed)
    );
    let every = lease::history::Extent::After(lease::Revision::ZERO);
    let mut verifier = lease::history::Verifier::new(every);
    for event in &history {
        verifier.see(event);
    }
    assert_eq!(verifier.finish().1, []);
    store.close().await.unwrap();

    let store = open(&dir, &clock).await.unwrap();
    for lease in &leases {
        let found = store.lease(lease.key.clone()).await.unwrap().unwrap();
        assert_eq!(found.token, lease.token);
    }
}

#[tokio::test]
async fn a_read_only_folder_is_refused_with_its_name_and_reason() {
    let disk = SmallDisk::new("size=4m");
    let clock = manual();
    let store = open(&disk.path(), &clock).await.unwrap();
    store.acquire(ask("a", "x")).await.unwrap();
    store.close().await.unwrap();
    disk.remount("ro");
    let Err(error) = open(&disk.path(), &clock).await else {
        panic!("a read-only folder was opened");
    };
    let message = error.to_string();
    assert!(message.contains("Read-only"), "{message}");
    assert!(message.contains(disk.path().to_str().unwrap()), "{message}");
    disk.remount("rw");
    let store = open(&disk.path(), &clock).await.unwrap();
    assert!(store.lease(key("a")).await.unwrap().is_some());
}

#[tokio::test]
async fn a_damaged_file_is_reported_left_alone_and_set_aside_only_when_told() {
    let clock = manual();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &clock).await.unwrap();
    let lease = granted(store.acquire(ask("a", "x")).await.unwrap());
    store.close().await.unwrap();
    let whole = std::fs::read(dir.path().join("leasehold.db")).unwrap();
    // The head of the file, each page's head in turn, and the middle of the row itself.
    let row = whole
        .windows(6)
        .position(|window| window == b"job:a\x03")
        .unwrap();
    let pages = (1..whole.len() / 4096).map(|page| page * 4096);
    for place in [0, row + 11].into_iter().chain(pages) {
        let mut bytes = whole.clone();
        for byte in &mut bytes[place..place + 8] {
            *byte ^= 0xff;
        }
        let copy = crash_image(dir.path());
        let path = copy.path().join("leasehold.db");
        std::fs::write(&path, &bytes).unwrap();
        let error = match open(copy.path(), &clock).await {
            Err(error) => error,
            // A free page may hold anything.
            Ok(store) => {
                assert_eq!(
                    store.lease(key("a")).await.unwrap().unwrap().token,
                    lease.token
                );
                continue;
            }
        };
        assert!(
            matches!(error, OpenError::Damaged { .. }),
            "{place}: {error}"
        );
        assert!(error.to_string().contains("leasehold.db"), "{error}");
        let left = std::fs::read(&path).unwrap();
        let changed = (0..bytes.len().max(left.len())).find(|&at| bytes.get(at) != left.get(at));
        assert_eq!(changed, None, "{place}: changed by the attempt: {error}");

        let store = go_on(copy.path(), &clock).await;
        assert!(
            files(copy.path())
                .iter()
                .any(|name| name.contains(".damaged-"))
        );
        let again = granted(store.acquire(ask("a", "y")).await.unwrap());
        assert!(again.token > lease.token, "L3 holds even then");
        let newest = events(&store).await.last().unwrap().revision;
        assert!(newest > Revision::new(1));
    }
}

#[tokio::test]
async fn a_log_that_lost_acknowledged_changes_is_noticed() {
    let clock = manual();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &clock).await.unwrap();
    let mut last = None;
    for id in 0..20 {
        last = Some(granted(
            store.acquire(ask(&id.to_string(), "x")).await.unwrap(),
        ));
    }
    let last = last.unwrap();
    let log = std::fs::metadata(dir.path().join("leasehold.db-wal"))
        .unwrap()
        .len();
    for length in [0, log / 2, log - 100] {
        let image = crash_image(dir.path());
        let path = image.path().join("leasehold.db-wal");
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(length).unwrap();
        let Err(error) = open(image.path(), &clock).await else {
            panic!("a log cut to {length} of {log} bytes went unnoticed");
        };
        let message = error.to_string();
        match error {
            OpenError::Lost {
                found,
                acknowledged,
                ..
            } => {
                assert!(found < acknowledged);
                assert_eq!(acknowledged, 20);
            }
            // Cut so early that not even the tables are there.
            OpenError::Damaged { .. } => assert_eq!(length, 0, "{message}"),
            _ => panic!("{message}"),
        }
        let store = go_on(image.path(), &clock).await;
        let taken = granted(store.acquire(ask("19", "y")).await.unwrap());
        assert!(taken.token > last.token);
        let page = store
            .events(lease::EventQuery {
                limit: 9,
                ..Default::default()
            })
            .await;
        assert!(page.unwrap().newest > Revision::new(20));
    }
}

#[tokio::test]
async fn a_torn_tail_that_nobody_was_told_about_is_survived() {
    let clock = manual();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &clock).await.unwrap();
    let lease = granted(store.acquire(ask("a", "x")).await.unwrap());
    let image = crash_image(dir.path());
    let path = image.path().join("leasehold.db-wal");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let end = file.metadata().unwrap().len();
    file.write_all_at(&[0xA5; 3000], end).unwrap();
    let store = open(image.path(), &clock).await.unwrap();
    assert_eq!(
        store.lease(key("a")).await.unwrap().unwrap().token,
        lease.token
    );
}

#[tokio::test]
async fn a_missing_database_is_never_replaced_by_an_empty_one_silently() {
    let clock = manual();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &clock).await.unwrap();
    let lease = granted(store.acquire(ask("a", "x")).await.unwrap());
    store.release(LeaseRef::from(&lease)).await.unwrap();
    store.close().await.unwrap();
    std::fs::remove_file(dir.path().join("leasehold.db")).unwrap();
    let Err(error) = open(dir.path(), &clock).await else {
        panic!("started empty");
    };
    assert!(error.to_string().contains("missing"), "{error}");
    assert!(!files(dir.path()).contains(&"leasehold.db".to_owned()));
}

#[tokio::test]
async fn a_second_store_on_the_same_folder_is_refused_until_the_first_is_closed() {
    let clock = manual();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &clock).await.unwrap();
    let Err(error) = open(dir.path(), &clock).await else {
        panic!("two writers on one folder");
    };
    assert!(
        matches!(error, OpenError::InUse { pid: Some(pid), .. } if pid == std::process::id()),
        "{error}"
    );
    store.close().await.unwrap();
    open(dir.path(), &clock).await.unwrap();
}

/// Changes one byte of a table's rows behind the store's back.
async fn changed(sql: &str) -> Result<(), OpenError> {
    let clock = manual();
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), &clock).await.unwrap();
    granted(store.acquire(ask("one", "x")).await.unwrap());
    let transaction = Transaction {
        writes: vec![Write {
            key: lease::Key::new("note", "one").unwrap(),
            value: Some(r#"{"a":1}"#.into()),
            note: None,
        }],
        ..Transaction::default()
    };
    store.commit(transaction).await.unwrap();
    store.close().await.unwrap();
    let tables = rusqlite::Connection::open(dir.path().join("leasehold.db")).unwrap();
    tables.execute_batch(sql).unwrap();
    drop(tables);
    open(dir.path(), &clock).await.map(drop)
}

#[tokio::test]
async fn one_changed_byte_of_a_key_or_a_record_is_noticed() {
    changed("SELECT 1").await.unwrap();
    for sql in [
        "UPDATE slots SET key = 'job:onf'",
        "UPDATE records SET key = 'note:onf'",
        r#"UPDATE records SET value = '{"a":2}'"#,
        "UPDATE records SET revision = revision + 1",
        "UPDATE records SET sum = sum + 1",
    ] {
        let error = changed(sql).await.unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{sql}: {error}");
    }
}

#[tokio::test]
async fn what_is_stored_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let clock = manual();
    let parent = tempfile::tempdir().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let fresh = parent.path().join("fresh");
    let open_to_all = parent.path().join("open");
    std::fs::create_dir(&open_to_all).unwrap();
    std::fs::set_permissions(&open_to_all, std::fs::Permissions::from_mode(0o755)).unwrap();
    for dir in [&fresh, &open_to_all] {
        let store = open(dir, &clock).await.unwrap();
        granted(store.acquire(ask("a", "x")).await.unwrap());
        for name in files(dir) {
            assert_eq!(mode(&dir.join(&name)), 0o600, "{name}");
        }
        store.close().await.unwrap();
    }
    assert_eq!(mode(&fresh), 0o700);
    // An older store's files are closed to others.
    let file = fresh.join("leasehold.db");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let _store = open(&fresh, &clock).await.unwrap();
    assert_eq!(mode(&file), 0o600);
}
