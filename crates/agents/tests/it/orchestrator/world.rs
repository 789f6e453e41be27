//! A store, its workers and reapers, and what an API would do.

use std::{path::Path, sync::Arc, time::Duration};

use lease::{
    Authority, Committed, Holder, Key, Status, Ttl,
    session::{self, Mapping, Put, Request, Session, State},
};
use leasehold_agents::{
    orchestrator::{Metrics, Options, Orchestrator, Profile, Reaper, ReaperOptions},
    supervise::Launcher,
};
use leasehold_client::sessions::{self, Changed};
use leasehold_clock::System;
use leasehold_store::embedded::{self, Embedded};
use leasehold_testkit::{Binary, wait::until};

/// Long enough for anything on a busy machine.
pub const SOON: Duration = Duration::from_secs(30);

pub struct World {
    /// The store as it is, without faults.
    pub authority: Arc<dyn Authority>,
    pub output: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        // Here, and not while somebody waits for a worker: it may have to be built.
        Binary::leasehold_path();
        let store = Embedded::memory(embedded::Options::default(), Arc::new(System)).unwrap();
        Self {
            authority: Arc::new(store),
            output: tempfile::tempdir().unwrap(),
        }
    }

    pub fn options(&self, name: &str, slots: &[&str]) -> Options {
        let mut options = Options::new(name.parse().unwrap(), self.output.path().into());
        options.tuner_slots = slots.iter().map(|slot| (*slot).to_owned()).collect();
        options.scan_interval_ms = 200;
        options
    }

    pub async fn worker(&self, options: Options) -> Orchestrator {
        self.worker_on(self.authority.clone(), options).await
    }

    /// A worker that sees the store through something else.
    pub async fn worker_on(&self, authority: Arc<dyn Authority>, options: Options) -> Orchestrator {
        let launcher = Launcher::at(Binary::leasehold_path());
        let started = Orchestrator::start(
            authority,
            Arc::new(System),
            options,
            launcher,
            Metrics::default(),
        );
        started.await.unwrap()
    }

    /// A profile whose stream is made by a child that notes its process id.
    pub fn child_profile(&self) -> Profile {
        let script = format!(
            "echo $$ >> {}; echo x > seg.ts; printf '#EXTM3U\\n#EXTINF:2,\\nseg.ts\\n' > index.m3u8; exec sleep 1000",
            self.children_file().display()
        );
        Profile::Command {
            command: vec!["sh".into(), "-c".into(), script],
        }
    }

    fn children_file(&self) -> std::path::PathBuf {
        self.output.path().join("children")
    }

    /// Every child that was ever started, and whether it still runs.
    pub fn children(&self) -> Vec<(u32, bool)> {
        let text = std::fs::read_to_string(self.children_file()).unwrap_or_default();
        let pids = text.lines().filter_map(|line| line.parse().ok());
        pids.map(|pid| (pid, is_alive(pid))).collect()
    }

    /// Waits until nothing of any session is left but what is remembered of it.
    pub async fn is_clean(&self, worker: &Orchestrator) {
        until(SOON, "nothing is left", async || {
            let mut leases = Vec::new();
            for kind in ["service", "tuner", "session"] {
                leases.extend(self.leases(kind).await);
            }
            let folders = std::fs::read_dir(self.output.path()).unwrap().flatten();
            let folders = folders.filter(|entry| entry.path().is_dir()).count();
            let sessions = worker.sessions();
            let alive = self.children().iter().filter(|(_, alive)| *alive).count();
            let clean = leases.is_empty() && folders == 0 && sessions == 0 && alive == 0;
            if !clean {
                eprintln!(
                    "left: {folders} folders, {sessions} sessions, {alive} children, {leases:?}"
                );
            }
            clean
        })
        .await;
    }

    pub fn reaper(&self, interval_ms: u64, remember_ms: u64) -> Reaper {
        Self::reaper_on(self.authority.clone(), interval_ms, remember_ms)
    }

    /// A reaper that sees the store through something else.
    pub fn reaper_on(authority: Arc<dyn Authority>, interval_ms: u64, remember_ms: u64) -> Reaper {
        let options = ReaperOptions {
            interval_ms,
            remember_ms,
        };
        Reaper::start(authority, Arc::new(System), options, Metrics::default())
    }

    /// What the API does: session, key and lease in one step.
    pub async fn accept(&self, service: &str, profile: &str, ttl_ms: u64) -> Key {
        let now = self.authority.now().await.unwrap();
        let id = session::new_id(now, rand::random());
        let key = session::key(id);
        let request = Request {
            service_ref: service.into(),
            profile: profile.into(),
            start_ms: None,
            correlation_id: "test".into(),
            tenant: None,
        };
        let session = Session::new(id, request, false, now);
        let ttl = Ttl::from_millis(ttl_ms).unwrap();
        let put = session::start(&session, &Mapping::default(), ttl).unwrap();
        let Put::Commit(transaction) = put else {
            panic!("nothing to replay");
        };
        let committed = self.authority.commit(*transaction).await.unwrap();
        assert!(matches!(committed, Committed::Done { .. }), "{committed:?}");
        key
    }

    pub async fn session(&self, key: &Key) -> Session {
        let record = self.authority.record(key.clone()).await.unwrap().unwrap();
        Session::from_record(&record).unwrap()
    }

    pub async fn reaches(&self, key: &Key, state: State) -> Session {
        until(SOON, &format!("{key} is {state:?}"), async || {
            let session = self.session(key).await;
            assert!(
                session.state == state || !session.state.is_terminal(),
                "{session:?}"
            );
            session.state == state
        })
        .await;
        self.session(key).await
    }

    /// The session's last state.
    pub async fn over(&self, key: &Key) -> Session {
        until(SOON, &format!("{key} is over"), async || {
            self.session(key).await.state.is_terminal()
        })
        .await;
        self.session(key).await
    }

    pub async fn ask_to_stop(&self, key: &Key) {
        let stopped = sessions::change(&*self.authority, key, session::stop).await;
        assert!(matches!(stopped, Ok(Changed::Done { .. })), "{stopped:?}");
    }

    /// What a worker does first.
    pub async fn claim(&self, key: &Key, worker: &Holder) {
        let claim = |loaded: &_, now| session::claim(loaded, worker, now);
        let claimed = sessions::change(&*self.authority, key, claim).await;
        assert!(matches!(claimed, Ok(Changed::Done { .. })), "{claimed:?}");
    }

    pub async fn leases(&self, kind: &str) -> Vec<String> {
        let query = lease::LeaseQuery {
            kind: Some(kind.into()),
            status: Some(Status::Active),
            limit: 1000,
            ..lease::LeaseQuery::default()
        };
        let page = self.authority.leases(query).await.unwrap();
        page.items
            .iter()
            .map(|lease| lease.key.id().to_owned())
            .collect()
    }
}

fn is_alive(pid: u32) -> bool {
    let status = Path::new("/proc").join(pid.to_string()).join("stat");
    let Ok(stat) = std::fs::read_to_string(status) else {
        return false;
    };
    !stat
        .rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}
