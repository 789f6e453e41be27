//! What the tests of the embedded store share.
#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use lease::{
    Acquire, Acquired, Authority, Event, EventQuery, Holder, Key, Lease, LeaseQuery, Renew,
    Renewal, Renewals, Revision, Status, Ttl, UnixMillis,
};
use leasehold_clock::Manual;
use leasehold_store::embedded::{Embedded, OpenError, Options};
use leasehold_testkit::wait;

/// No step of a test takes longer.
pub const LIMIT: Duration = Duration::from_secs(20);

pub fn manual() -> Manual {
    Manual::new(UnixMillis::new(1_700_000_000_000))
}

pub fn memory(clock: &Manual) -> Embedded {
    Embedded::memory(Options::default(), Arc::new(clock.clone())).unwrap()
}

pub async fn open(dir: &Path, clock: &Manual) -> Result<Embedded, OpenError> {
    Embedded::open(Options::at(dir), Arc::new(clock.clone())).await
}

pub fn key(id: &str) -> Key {
    Key::new("job", id).unwrap()
}

/// A request for ten seconds.
pub fn ask(id: &str, who: &str) -> Acquire {
    let holder = Holder::new(who, "1").unwrap();
    Acquire::one(key(id), holder, Ttl::from_secs(10).unwrap())
}

pub fn granted(acquired: Acquired) -> Lease {
    match acquired {
        Acquired::Granted { mut leases, .. } => leases.remove(0),
        Acquired::Refused(refusal) => panic!("refused: {refusal:?}"),
    }
}

pub async fn events(store: &Embedded) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    loop {
        let after = events.last().map_or(Revision::ZERO, |event| event.revision);
        let query = EventQuery {
            after,
            limit: 10_000,
            ..EventQuery::default()
        };
        let page = store.events(query).await.unwrap();
        events.extend(page.events);
        if !page.more {
            return events;
        }
    }
}

/// What a crash at this moment would leave behind: the files of a running store.
pub fn crash_image(dir: &Path) -> tempfile::TempDir {
    let image = tempfile::tempdir().unwrap();
    for name in ["leasehold.db", "leasehold.db-wal", "guard"] {
        let from = dir.join(name);
        if from.exists() {
            std::fs::copy(from, image.path().join(name)).unwrap();
        }
    }
    image
}

/// A small file system of its own, gone with this value.
pub struct SmallDisk {
    pub dir: tempfile::TempDir,
}

impl SmallDisk {
    /// Needs root, like every mount.
    pub fn new(options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(dir.path())
            .output()
            .unwrap();
        assert!(mount.status.success(), "mount needs root: {mount:?}");
        Self { dir }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    pub fn remount(&self, options: &str) {
        let mount = std::process::Command::new("mount")
            .args(["-o", &format!("remount,{options}")])
            .arg(self.dir.path())
            .output()
            .unwrap();
        assert!(mount.status.success(), "{mount:?}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(self.dir.path())
            .status();
    }
}

/// Lets every write of one kind to a table fail, as a disk without room does, until it is dropped.
pub struct Refused(rusqlite::Connection);

impl Refused {
    /// `what` is for example `INSERT ON events`.
    pub fn of(tables: rusqlite::Connection, what: &str) -> Self {
        let sql = format!(
            "CREATE TRIGGER refused BEFORE {what} BEGIN SELECT RAISE(ABORT, 'no room'); END"
        );
        tables.execute_batch(&sql).unwrap();
        Self(tables)
    }

    /// The same in a folder.
    pub fn in_folder(dir: &Path, what: &str) -> Self {
        let tables = rusqlite::Connection::open(dir.join("leasehold.db")).unwrap();
        Self::of(tables, what)
    }
}

impl Drop for Refused {
    fn drop(&mut self) {
        self.0.execute_batch("DROP TRIGGER refused").unwrap();
    }
}

/// Renews a lease with another ttl, which no event says.
pub async fn lengthen(store: &Embedded, lease: &Lease, ttl_ms: u64) {
    let renewal = Renewal {
        ttl: Some(Ttl::from_millis(ttl_ms).unwrap()),
        ..Renewal::of(lease)
    };
    let request = Renew {
        holder: lease.holder.clone(),
        leases: Renewals::These(vec![renewal]),
    };
    let renewed = store.renew(request).await.unwrap();
    assert!(renewed[0].outcome.is_ok(), "{renewed:?}");
}

/// Waits until so many acquires wait.
pub async fn until_waiting(store: &Embedded, waiting: usize) {
    let query = LeaseQuery {
        status: Some(Status::Pending),
        limit: 100,
        ..LeaseQuery::default()
    };
    wait::until(LIMIT, "they wait", async || {
        store.leases(query.clone()).await.unwrap().items.len() == waiting
    })
    .await;
}

/// Waits until the store takes changes again, its disk being whole.
pub async fn until_recovered(store: &Embedded, clock: &Manual) {
    wait::until(LIMIT, "changes are taken again", async || {
        clock.advance(1_000);
        // A look wakes the writer.
        store.now().await.unwrap();
        !store.capabilities().degraded
    })
    .await;
}
