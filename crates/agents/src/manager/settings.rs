//! The keys of `manager.yaml`, each also as an environment variable.

mod changes;
mod check;

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use lease::{Grace, Invalid, OnOutage, Ttl};
use leasehold_api::{
    config::{self, Period, Plain, shown, word},
    section,
};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

pub use changes::Change;

/// What the paths of the keys begin with where there are others beside them: in the names of variables.
pub const SECTION: &str = "manager";

/// One value or a list of them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(from = "OneOrMany", into = "Vec<String>")]
pub struct Words(pub Vec<String>);

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl From<OneOrMany> for Words {
    fn from(words: OneOrMany) -> Self {
        match words {
            // Addresses have no commas or spaces, and a command as one text has no shell.
            OneOrMany::One(text) => Self(
                text.split([',', ' '])
                    .filter(|word| !word.is_empty())
                    .map(str::to_owned)
                    .collect(),
            ),
            OneOrMany::Many(words) => Self(words),
        }
    }
}

impl Plain for Words {
    const EXPECTS: &'static str = "one or more, separated by commas or spaces";

    fn read(text: &str) -> Result<Self, String> {
        Ok(OneOrMany::One(text.to_owned()).into())
    }
}

impl From<Words> for Vec<String> {
    fn from(words: Words) -> Self {
        words.0
    }
}

/// What happens to a site's cameras while the control plane is out of reach (L13).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OutageWord {
    /// Stop at the deadline.
    FailClosed,
    /// Go on for the grace; nobody else gets the camera meanwhile.
    Hold,
    /// Go on for the grace, though another runner may get the camera: only the newer token counts.
    #[default]
    Continue,
}

impl Plain for OutageWord {
    const EXPECTS: &'static str = "fail_closed, hold or continue";

    fn read(text: &str) -> Result<Self, String> {
        word(text)
    }
}

section! {
    /// The keys of `manager.yaml`.
    pub struct Settings {
        /// Where the control plane is: one address, or several of the same control plane.
        control_plane_url: Words = Words::default(),
        /// The credential.
        #[serde(serialize_with = "shown::secret_option")]
        api_key: Option<SecretString> = None,
        /// A file that holds the credential; read again when it changes.
        api_key_file: Option<PathBuf> = None,
        /// Trust servers whose certificate this authority issued, and no others.
        ca_file: Option<PathBuf> = None,
        /// PostgreSQL instead of a control plane: the manager then decides on the database itself.
        #[serde(serialize_with = "shown::secret_option")]
        database_url: Option<SecretString> = None,
        /// This manager's name; the host's when absent.
        runner_id: Option<String> = None,
        /// Whose cameras.
        tenant_id: String = String::new(),
        /// Which site's cameras.
        site_id: String = String::new(),
        /// The group that is deployed together.
        deployment_group: String = "default".into(),
        /// The version that is deployed.
        deployment_version: String = "1".into(),
        /// What cameras may demand of this manager.
        capabilities: Vec<String> = Vec::new(),
        /// The most worker processes.
        max_workers: usize = 4,
        /// The most cameras of one worker.
        max_cameras_per_worker: usize = 16,
        /// How long a lease lasts unless renewed.
        lease_ttl_seconds: Period = Period::whole(60),
        /// How often the control plane gets a heartbeat; a third of the ttl if that is shorter.
        heartbeat_interval_seconds: Period = Period::whole(30),
        /// How often free cameras are looked for, beside every event.
        lease_retry_interval_seconds: Period = Period::whole(10),
        /// How often the configuration is looked at, beside every event.
        config_sync_interval_seconds: Period = Period::whole(60),
        /// What happens while the control plane is out of reach.
        on_outage: OutageWord = OutageWord::Continue,
        /// For how long it may happen.
        outage_grace_seconds: Period = Period::whole(300),
        /// Other managers, `http://HOST:PORT`, beside those that the control plane names.
        peers: Words = Words::default(),
        /// How many cameras are connected per second, after a burst of as many.
        connects_per_second: u32 = 20,
        /// How many cameras are given up at the same time when this manager is drained.
        drain_batch: usize = 4,
        /// Report how busy this host is: while it is too busy for all of its cameras, it is given fewer. Switch
        /// it off where several managers share a host.
        report_load: bool = true,
        /// Where configurations are kept for the time without a control plane; in the state folder when
        /// absent.
        cache_file: Option<PathBuf> = None,
        /// A cache that is older is not used.
        cache_max_age_seconds: Period = Period::whole(24 * 3600),
        /// Where the workers' files are; below the runtime folder or /tmp when absent.
        state_dir: Option<PathBuf> = None,
        /// Where `/healthz`, `/ready`, `/workers`, `/leases` and `/reachable` are served.
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8080)),
        /// Where Prometheus metrics are served; workers have the ports after it.
        metrics_listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 9107)),
        /// The host under which other managers reach `listen`; the host's name when absent. Managers with the same
        /// one count as one host when cameras are spread.
        advertise_host: Option<String> = None,
        /// How workers are run.
        worker: WorkerSettings = WorkerSettings::default(),
        /// Always true: a manager that is none has nothing to do.
        manager_mode: bool = true,
    }
}

section! {
    /// How workers are run.
    #[derive(PartialEq, Eq)]
    pub struct WorkerSettings {
        /// The program and its arguments. `{config}`, `{runner_id}`, `{shard_id}`, `{manager_pid}` and
        /// `{port}` are replaced; without any of them the usual arguments are added. The reference worker
        /// when empty.
        command: Words = Words::default(),
        /// Further variables.
        environment: BTreeMap<String, String> = BTreeMap::new(),
        /// `LOG_LEVEL` of the workers.
        log_level: String = "info".into(),
        /// How often a worker is asked for its health.
        health_interval_seconds: Period = Period::whole(5),
        /// A worker without a sign of life for so long is started again.
        heartbeat_timeout_seconds: Period = Period::whole(60),
        /// How long a worker may take to start.
        start_grace_seconds: Period = Period::whole(30),
        /// How long a worker may take to finish what it has.
        drain_grace_seconds: Period = Period::whole(30),
        /// How long a worker may take to drop a camera whose lease is gone.
        takeaway_limit_seconds: Period = Period::whole(1),
        /// How long cameras of a worker that crashed again and again are left to other runners.
        crash_cooldown_seconds: Period = Period::whole(300),
    }
}

impl Settings {
    /// Every key with its variable.
    pub fn variables() -> Vec<(String, String)> {
        let described = config::describe(&mut Self::default());
        described
            .into_iter()
            .map(|it| (it.path.clone(), variable(&it.path)))
            .collect()
    }

    /// Changes what variables say; an empty one says nothing. The error names the variable.
    pub fn apply(&mut self, variables: &[(String, String)]) -> Result<(), String> {
        config::apply(self, "", variables, &|it| vec![variable(&it.path)]).map(|_| ())
    }

    /// How many cameras this manager takes.
    pub fn capacity(&self) -> usize {
        self.max_workers.saturating_mul(self.max_cameras_per_worker)
    }

    /// The lease's ttl.
    pub fn ttl(&self) -> Result<Ttl, Invalid> {
        Ttl::from_millis(self.lease_ttl_seconds.millis())
    }

    /// The outage policy of every camera.
    pub fn on_outage(&self) -> Result<OnOutage, Invalid> {
        let grace = || Grace::from_millis(self.outage_grace_seconds.millis());
        Ok(match self.on_outage {
            OutageWord::FailClosed => OnOutage::FailClosed,
            OutageWord::Hold => OnOutage::Hold(grace()?),
            OutageWord::Continue => OnOutage::Continue(grace()?),
        })
    }

    /// Between two heartbeats: often enough that two may go missing before presence ends.
    pub fn heartbeat_ms(&self) -> u64 {
        let third = self.lease_ttl_seconds.millis() / 3;
        self.heartbeat_interval_seconds.millis().min(third).max(100)
    }
}

/// The variable of a key.
fn variable(key: &str) -> String {
    config::variable(&format!("{SECTION}.{key}"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn read(text: &str) -> Settings {
        let mut settings: Settings = serde_saphyr::from_str(text).unwrap();
        settings.api_key.get_or_insert_with(|| "k".into());
        settings
    }

    pub const LEAST: &str = "{control_plane_url: http://h, tenant_id: t, site_id: s}";

    #[test]
    fn the_least_file_has_the_documents_defaults() {
        let settings = read(LEAST);
        settings.check().unwrap();
        assert_eq!(settings.capacity(), 64);
        assert_eq!(settings.heartbeat_ms(), 20_000, "a third of the ttl");
        let grace = Grace::from_millis(300_000).unwrap();
        assert_eq!(settings.on_outage().unwrap(), OnOutage::Continue(grace));
    }

    #[test]
    fn every_key_of_the_file_has_a_variable() {
        let shown = serde_json::to_value(Settings::default()).unwrap();
        let known = Settings::variables();
        for (key, _) in &known {
            let found = key.split('.').try_fold(&shown, |at, part| at.get(part));
            assert!(found.is_some(), "{key} is not shown");
        }
        let worker = shown["worker"].as_object().unwrap().len();
        assert_eq!(known.len(), shown.as_object().unwrap().len() - 1 + worker);
        assert!(known.contains(&(
            "worker.command".into(),
            "LEASEHOLD_MANAGER_WORKER_COMMAND".into()
        )));
    }

    #[test]
    fn variables_beat_the_file_and_are_named_when_wrong() {
        let mut settings = read(LEAST);
        let set = |name: &str, text: &str| vec![(name.to_owned(), text.to_owned())];
        settings
            .apply(&set(
                "LEASEHOLD_MANAGER_WORKER_COMMAND",
                "python3 worker.py",
            ))
            .unwrap();
        assert_eq!(settings.worker.command.0, ["python3", "worker.py"]);
        settings
            .apply(&set(
                "LEASEHOLD_MANAGER_CONTROL_PLANE_URL",
                "http://a,http://b",
            ))
            .unwrap();
        assert_eq!(settings.control_plane_url.0, ["http://a", "http://b"]);
        let wrong = settings.apply(&set("LEASEHOLD_MANAGER_MAX_WORKERS", "many"));
        assert!(
            wrong
                .unwrap_err()
                .starts_with("LEASEHOLD_MANAGER_MAX_WORKERS: ")
        );
    }
}
