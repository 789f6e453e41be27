//! What a manager can be told: the keys of `manager.yaml`, each also as an environment variable.

use std::{collections::BTreeMap, fmt, net::SocketAddr, path::PathBuf};

use lease::{Grace, Invalid, OnOutage, Ttl, registry::is_name};
use leasehold_api::Seconds;
use secrecy::SecretString;
use serde::{Deserialize, Serialize, Serializer, de::DeserializeOwned};

/// Every variable begins with this; the rest is the key in capitals, `worker.command` as
/// `WORKER_COMMAND`.
pub const PREFIX: &str = "LEASEHOLD_MANAGER_";
/// What names look like.
const NAME: &str = "1 to 255 characters of A-Z a-z 0-9 . _ -";
/// Shown instead of a secret.
const HIDDEN: &str = "(hidden)";

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

/// The keys of `manager.yaml`.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Where the control plane is: one address, or several of the same control plane.
    pub control_plane_url: Words,
    /// The credential.
    #[serde(serialize_with = "hidden")]
    pub api_key: Option<SecretString>,
    /// A file that holds the credential.
    pub api_key_file: Option<PathBuf>,
    /// Trust servers whose certificate this authority issued, and no others.
    pub ca_file: Option<PathBuf>,
    /// PostgreSQL instead of a control plane: the manager then decides on the database itself.
    #[serde(serialize_with = "hidden")]
    pub database_url: Option<SecretString>,
    /// This manager's name; the host's when absent.
    pub runner_id: Option<String>,
    /// Whose cameras.
    pub tenant_id: String,
    /// Which site's cameras.
    pub site_id: String,
    /// The group that is deployed together.
    pub deployment_group: String,
    /// The version that is deployed.
    pub deployment_version: String,
    /// What cameras may demand of this manager.
    pub capabilities: Vec<String>,
    /// The most worker processes.
    pub max_workers: usize,
    /// The most cameras of one worker.
    pub max_cameras_per_worker: usize,
    /// How long a lease lasts unless renewed.
    pub lease_ttl_seconds: Seconds,
    /// How often the control plane gets a heartbeat; a third of the ttl if that is shorter.
    pub heartbeat_interval_seconds: Seconds,
    /// How often free cameras are looked for, beside every event.
    pub lease_retry_interval_seconds: Seconds,
    /// How often the configuration is looked at, beside every event.
    pub config_sync_interval_seconds: Seconds,
    /// What happens while the control plane is out of reach.
    pub on_outage: OutageWord,
    /// For how long it may happen.
    pub outage_grace_seconds: Seconds,
    /// Other managers, `http://HOST:PORT`, beside those that the control plane names.
    pub peers: Words,
    /// How many cameras are connected per second, after a burst of as many.
    pub connects_per_second: u32,
    /// How many cameras are given up at once when this manager is drained.
    pub drain_batch: usize,
    /// Where configurations are kept for the time without a control plane; in the state folder when
    /// absent.
    pub cache_file: Option<PathBuf>,
    /// A cache that is older is not used.
    pub cache_max_age_seconds: Seconds,
    /// Where the workers' files are; below the runtime folder or /tmp when absent.
    pub state_dir: Option<PathBuf>,
    /// Where `/healthz`, `/ready`, `/workers`, `/leases` and `/reachable` are served.
    pub listen: SocketAddr,
    /// Where Prometheus metrics are served; workers have the ports after it.
    pub metrics_listen: SocketAddr,
    /// The host under which other managers reach `listen`; the host's name when absent.
    pub advertise_host: Option<String>,
    /// How workers are run.
    pub worker: WorkerSettings,
    /// Always true: a manager that is none has nothing to do.
    pub manager_mode: bool,
}

/// How workers are run.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerSettings {
    /// The program and its arguments. `{config}`, `{runner_id}`, `{shard_id}`, `{manager_pid}` and
    /// `{port}` are replaced; without any of them the usual arguments are added. The reference worker
    /// when empty.
    pub command: Words,
    /// Further variables.
    pub environment: BTreeMap<String, String>,
    /// `LOG_LEVEL` of the workers.
    pub log_level: String,
    /// How often a worker is asked for its health.
    pub health_interval_seconds: Seconds,
    /// A worker without a sign of life for so long is started again.
    pub heartbeat_timeout_seconds: Seconds,
    /// How long a worker may take to start.
    pub start_grace_seconds: Seconds,
    /// How long a worker may take to finish what it has.
    pub drain_grace_seconds: Seconds,
    /// How long a worker may take to drop a camera whose lease is gone.
    pub takeaway_limit_seconds: Seconds,
    /// How long cameras of a worker that crashed again and again are left to other runners.
    pub crash_cooldown_seconds: Seconds,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self {
            command: Words::default(),
            environment: BTreeMap::new(),
            log_level: "info".into(),
            health_interval_seconds: Seconds::whole(5),
            heartbeat_timeout_seconds: Seconds::whole(60),
            start_grace_seconds: Seconds::whole(30),
            drain_grace_seconds: Seconds::whole(30),
            takeaway_limit_seconds: Seconds::whole(1),
            crash_cooldown_seconds: Seconds::whole(300),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            control_plane_url: Words::default(),
            api_key: None,
            api_key_file: None,
            ca_file: None,
            database_url: None,
            runner_id: None,
            tenant_id: String::new(),
            site_id: String::new(),
            deployment_group: "default".into(),
            deployment_version: "1".into(),
            capabilities: Vec::new(),
            max_workers: 4,
            max_cameras_per_worker: 16,
            lease_ttl_seconds: Seconds::whole(60),
            heartbeat_interval_seconds: Seconds::whole(30),
            lease_retry_interval_seconds: Seconds::whole(10),
            config_sync_interval_seconds: Seconds::whole(60),
            on_outage: OutageWord::Continue,
            outage_grace_seconds: Seconds::whole(300),
            peers: Words::default(),
            connects_per_second: 20,
            drain_batch: 4,
            cache_file: None,
            cache_max_age_seconds: Seconds::whole(24 * 3600),
            state_dir: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            metrics_listen: SocketAddr::from(([127, 0, 0, 1], 9107)),
            advertise_host: None,
            worker: WorkerSettings::default(),
            manager_mode: true,
        }
    }
}

/// As it is shown: without secrets.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        f.write_str(&shown)
    }
}

#[expect(clippy::ref_option, reason = "the signature that serde asks for")]
fn hidden<S: Serializer>(secret: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(|_| HIDDEN).serialize(serializer)
}

/// Sets one key from the text of a variable.
type Setter = fn(&mut Settings, &str) -> Result<(), String>;

fn value<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_saphyr::from_str(text).map_err(|error| {
        let error = error.without_snippet().to_string();
        error.lines().next().unwrap_or_default().to_owned()
    })
}

fn words(text: &str) -> Words {
    Words::from(OneOrMany::One(text.to_owned()))
}

macro_rules! keys {
    ($($key:literal => |$settings:ident, $text:ident| $set:expr;)*) => {
        /// Every key, and how a variable sets it.
        const KEYS: &[(&str, Setter)] = &[$(($key, |$settings, $text| { $set; Ok(()) })),*];
    };
}

keys! {
    "control_plane_url" => |it, text| it.control_plane_url = words(text);
    "api_key" => |it, text| it.api_key = Some(text.into());
    "api_key_file" => |it, text| it.api_key_file = Some(text.into());
    "ca_file" => |it, text| it.ca_file = Some(text.into());
    "database_url" => |it, text| it.database_url = Some(text.into());
    "runner_id" => |it, text| it.runner_id = Some(text.into());
    "tenant_id" => |it, text| it.tenant_id = text.into();
    "site_id" => |it, text| it.site_id = text.into();
    "deployment_group" => |it, text| it.deployment_group = text.into();
    "deployment_version" => |it, text| it.deployment_version = text.into();
    "capabilities" => |it, text| it.capabilities = words(text).0;
    "max_workers" => |it, text| it.max_workers = value(text)?;
    "max_cameras_per_worker" => |it, text| it.max_cameras_per_worker = value(text)?;
    "lease_ttl_seconds" => |it, text| it.lease_ttl_seconds = value(text)?;
    "heartbeat_interval_seconds" => |it, text| it.heartbeat_interval_seconds = value(text)?;
    "lease_retry_interval_seconds" => |it, text| it.lease_retry_interval_seconds = value(text)?;
    "config_sync_interval_seconds" => |it, text| it.config_sync_interval_seconds = value(text)?;
    "on_outage" => |it, text| it.on_outage = value(text)?;
    "outage_grace_seconds" => |it, text| it.outage_grace_seconds = value(text)?;
    "peers" => |it, text| it.peers = words(text);
    "connects_per_second" => |it, text| it.connects_per_second = value(text)?;
    "drain_batch" => |it, text| it.drain_batch = value(text)?;
    "cache_file" => |it, text| it.cache_file = Some(text.into());
    "cache_max_age_seconds" => |it, text| it.cache_max_age_seconds = value(text)?;
    "state_dir" => |it, text| it.state_dir = Some(text.into());
    "listen" => |it, text| it.listen = value(text)?;
    "metrics_listen" => |it, text| it.metrics_listen = value(text)?;
    "advertise_host" => |it, text| it.advertise_host = Some(text.into());
    "worker.command" => |it, text| it.worker.command = words(text);
    "worker.environment" => |it, text| it.worker.environment = value(text)?;
    "worker.log_level" => |it, text| it.worker.log_level = text.into();
    "worker.health_interval_seconds" => |it, text| it.worker.health_interval_seconds = value(text)?;
    "worker.heartbeat_timeout_seconds" => |it, text| it.worker.heartbeat_timeout_seconds = value(text)?;
    "worker.start_grace_seconds" => |it, text| it.worker.start_grace_seconds = value(text)?;
    "worker.drain_grace_seconds" => |it, text| it.worker.drain_grace_seconds = value(text)?;
    "worker.takeaway_limit_seconds" => |it, text| it.worker.takeaway_limit_seconds = value(text)?;
    "worker.crash_cooldown_seconds" => |it, text| it.worker.crash_cooldown_seconds = value(text)?;
    "manager_mode" => |it, text| it.manager_mode = value(text)?;
}

/// The variable of a key.
fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "_").to_ascii_uppercase())
}

impl Settings {
    /// Every key with its variable.
    pub fn variables() -> impl Iterator<Item = (&'static str, String)> {
        KEYS.iter().map(|(key, _)| (*key, variable(key)))
    }

    /// Changes what variables say; an empty one says nothing. The error names the variable.
    pub fn apply(&mut self, variables: &[(String, String)]) -> Result<(), String> {
        for (key, set) in KEYS {
            let name = variable(key);
            let found = variables.iter().find(|(variable, _)| *variable == name);
            if let Some((_, text)) = found
                && !text.is_empty()
            {
                set(self, text).map_err(|why| format!("{name}: {why}"))?;
            }
        }
        Ok(())
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

    /// Checks everything that can be checked without talking to anybody.
    pub fn check(&self) -> Result<(), Invalid> {
        let require = |ok: bool, field: &'static str, expected: &'static str| {
            if ok {
                Ok(())
            } else {
                Err(Invalid::new(field, expected))
            }
        };
        require(
            self.manager_mode,
            "manager_mode",
            "true: run `leasehold camera-worker` for a worker alone",
        )?;
        let has_url = !self.control_plane_url.0.is_empty();
        require(
            has_url != self.database_url.is_some(),
            "control_plane_url",
            "exactly one of control_plane_url and database_url",
        )?;
        require(is_name(&self.tenant_id), "tenant_id", NAME)?;
        require(is_name(&self.site_id), "site_id", NAME)?;
        require(
            is_name(self.runner_id.as_deref().unwrap_or("-")),
            "runner_id",
            NAME,
        )?;
        require(is_name(&self.deployment_group), "deployment_group", NAME)?;
        require(
            is_name(&self.deployment_version),
            "deployment_version",
            NAME,
        )?;
        require(
            (1..=64).contains(&self.max_workers),
            "max_workers",
            "1 to 64",
        )?;
        require(
            (1..=1000).contains(&self.max_cameras_per_worker),
            "max_cameras_per_worker",
            "1 to 1000",
        )?;
        require(
            (1_000..=3_600_000).contains(&self.lease_ttl_seconds.millis()),
            "lease_ttl_seconds",
            "1 to 3600 seconds",
        )?;
        for (field, period) in [
            (
                "heartbeat_interval_seconds",
                self.heartbeat_interval_seconds,
            ),
            (
                "lease_retry_interval_seconds",
                self.lease_retry_interval_seconds,
            ),
            (
                "config_sync_interval_seconds",
                self.config_sync_interval_seconds,
            ),
            (
                "worker.health_interval_seconds",
                self.worker.health_interval_seconds,
            ),
            (
                "worker.heartbeat_timeout_seconds",
                self.worker.heartbeat_timeout_seconds,
            ),
            (
                "worker.start_grace_seconds",
                self.worker.start_grace_seconds,
            ),
            (
                "worker.takeaway_limit_seconds",
                self.worker.takeaway_limit_seconds,
            ),
        ] {
            let fits = (100..=3_600_000).contains(&period.millis());
            require(fits, field, "0.1 to 3600 seconds")?;
        }
        require(
            self.worker.drain_grace_seconds.millis() <= 3_600_000,
            "worker.drain_grace_seconds",
            "at most 3600 seconds",
        )?;
        require(
            (1..=10_000).contains(&self.connects_per_second),
            "connects_per_second",
            "1 to 10,000",
        )?;
        require(self.drain_batch >= 1, "drain_batch", "at least 1")?;
        for url in &self.control_plane_url.0 {
            let http = url.starts_with("http://") || url.starts_with("https://");
            require(http, "control_plane_url", "http:// or https:// addresses")?;
        }
        for url in &self.peers.0 {
            let http = url.starts_with("http://");
            require(http, "peers", "addresses http://HOST:PORT")?;
        }
        self.ttl()?;
        self.on_outage().map(|_| ())
    }

    /// What changed between two settings, one line per key, and whether it takes a restart.
    pub fn changes(&self, newer: &Self) -> Vec<Change> {
        let flat = |settings: &Self| {
            let mut flat = BTreeMap::new();
            let shown = serde_json::to_value(settings).unwrap_or_default();
            for (key, _) in KEYS {
                let found = key.split('.').try_fold(&shown, |at, part| at.get(part));
                let text = found.map_or_else(String::new, ToString::to_string);
                flat.insert(*key, text);
            }
            // Shown as hidden, compared as they are.
            for (key, secret) in [
                ("api_key", &settings.api_key),
                ("database_url", &settings.database_url),
            ] {
                let text = secret.as_ref().map(secrecy::ExposeSecret::expose_secret);
                flat.insert(key, text.unwrap_or_default().to_owned());
            }
            flat
        };
        let (old, new) = (flat(self), flat(newer));
        old.into_iter()
            .filter(|(key, text)| new.get(key) != Some(text))
            .map(|(key, text)| {
                let secret = matches!(key, "api_key" | "database_url");
                let show = |text: &str| match (secret, text.is_empty()) {
                    (true, false) => HIDDEN.to_owned(),
                    _ => text.to_owned(),
                };
                Change {
                    key,
                    from: show(&text),
                    to: show(new.get(key).map_or("", String::as_str)),
                    needs_restart: NEED_RESTART.contains(&key),
                }
            })
            .collect()
    }

    /// These settings, with what cannot change while running as it is.
    pub fn keeping_identity(mut self, running: &Self) -> Self {
        self.runner_id.clone_from(&running.runner_id);
        self.tenant_id.clone_from(&running.tenant_id);
        self.site_id.clone_from(&running.site_id);
        self.listen = running.listen;
        self.metrics_listen = running.metrics_listen;
        self.state_dir.clone_from(&running.state_dir);
        self.database_url.clone_from(&running.database_url);
        self
    }
}

/// What identifies a running manager.
const NEED_RESTART: [&str; 7] = [
    "runner_id",
    "tenant_id",
    "site_id",
    "listen",
    "metrics_listen",
    "state_dir",
    "database_url",
];

/// One key that changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Which.
    pub key: &'static str,
    /// What it was.
    pub from: String,
    /// What it is.
    pub to: String,
    /// Whether it has no effect before the next start.
    pub needs_restart: bool,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} -> {}", self.key, self.from, self.to)?;
        if self.needs_restart {
            f.write_str(" (after a restart)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Settings {
        let mut settings: Settings = serde_saphyr::from_str(text).unwrap();
        settings.api_key.get_or_insert_with(|| "k".into());
        settings
    }

    const LEAST: &str = "{control_plane_url: http://h, tenant_id: t, site_id: s}";

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
        let mut keys: Vec<String> = Vec::new();
        for (key, value) in shown.as_object().unwrap() {
            match value.as_object() {
                Some(inner) if key == "worker" => {
                    keys.extend(inner.keys().map(|name| format!("worker.{name}")));
                }
                _ => keys.push(key.clone()),
            }
        }
        keys.sort();
        let mut known: Vec<String> = KEYS.iter().map(|(key, _)| (*key).to_owned()).collect();
        known.sort();
        assert_eq!(keys, known);
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

    #[test]
    fn what_is_wrong_is_named() {
        let field = |text: &str| read(text).check().map_err(|wrong| wrong.field);
        assert_eq!(
            field("{tenant_id: t, site_id: s}"),
            Err("control_plane_url")
        );
        assert_eq!(
            field("{control_plane_url: http://h, site_id: s}"),
            Err("tenant_id")
        );
        assert_eq!(
            field("{control_plane_url: http://h, tenant_id: t, site_id: s, max_workers: 0}"),
            Err("max_workers")
        );
        assert_eq!(
            field("{control_plane_url: http://h, tenant_id: t, site_id: s, manager_mode: false}"),
            Err("manager_mode")
        );
    }

    #[test]
    fn changes_are_shown_without_secrets() {
        let old = read(LEAST);
        let mut new = old.clone();
        new.api_key = Some("another".into());
        new.max_workers = 2;
        new.site_id = "x".into();
        let shown: Vec<String> = old.changes(&new).iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "api_key: (hidden) -> (hidden)",
                "max_workers: 4 -> 2",
                "site_id: \"s\" -> \"x\" (after a restart)"
            ]
        );
        assert!(!format!("{new:?}").contains("another"));
        let kept = new.keeping_identity(&old);
        assert_eq!((kept.site_id.as_str(), kept.max_workers), ("s", 2));
    }
}
