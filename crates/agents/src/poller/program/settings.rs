//! What a polling program can be told, as it stands in its configuration file.

use std::{collections::BTreeMap, fmt, net::SocketAddr, path::PathBuf};

use lease::{Invalid, polling::INTERVAL_SECONDS, redact};
use serde::{Deserialize, Serialize, Serializer};

use super::super::Options;

/// The section `poll` of a configuration file.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Where the state lives: `redis://…`, `postgres://…`, `embedded:FOLDER`, `memory:`. By default
    /// a server, over HTTP.
    #[serde(serialize_with = "without_password_option")]
    pub store: Option<String>,
    /// A YAML or JSON file with a list of targets. By default they come from the store.
    pub targets_file: Option<PathBuf>,
    /// The address of targets that do not say their own; `{id}` stands for the target's id, `{field}`
    /// and `{field.inner}` for a field of its document, `{+field}` for one that is not to be escaped.
    #[serde(serialize_with = "without_password_option")]
    pub url: Option<String>,
    /// How often a target is polled that does not say so itself: 4 to 120 seconds.
    pub interval_seconds: f64,
    /// How long one poll may take. It always ends before the lease's deadline.
    pub timeout_seconds: f64,
    /// How many polls run at once.
    pub concurrency: usize,
    /// How many bytes of an answer are read.
    pub max_body_bytes: usize,
    /// Headers of every request.
    #[serde(serialize_with = "names_only")]
    pub headers: BTreeMap<String, String>,
    /// How targets are owned.
    pub lease: LeaseSettings,
    /// Where results go.
    pub sinks: Vec<SinkSettings>,
    /// Where this instance serves `/metrics`, for Prometheus, and `/api/v1/nodes`, to whoever can reach
    /// that address; nowhere by default.
    pub metrics_listen: Option<SocketAddr>,
    /// For tests only: allow intervals below 4 seconds.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_short_intervals: bool,
}

/// As it is shown: without secrets.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        f.write_str(&shown)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            store: None,
            targets_file: None,
            url: None,
            interval_seconds: 10.0,
            timeout_seconds: 10.0,
            concurrency: 64,
            max_body_bytes: 1024 * 1024,
            headers: BTreeMap::new(),
            lease: LeaseSettings::default(),
            sinks: vec![SinkSettings::Stdout],
            metrics_listen: None,
            allow_short_intervals: false,
        }
    }
}

/// How targets are owned. What is left out follows from the ttl.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeaseSettings {
    /// How long a lease lasts; 30 seconds by default.
    pub ttl_ms: Option<u64>,
    /// How often leases are renewed: at most a third of the ttl.
    pub renew_ms: Option<u64>,
    /// How long presence lasts.
    pub presence_ttl_ms: Option<u64>,
    /// How often presence is renewed.
    pub presence_ms: Option<u64>,
    /// How often everything is read again.
    pub discovery_ms: Option<u64>,
    /// How long a free target is left to the instance that should have it.
    pub preference_wait_ms: Option<u64>,
    /// How long the fleet must stand still before targets are handed over.
    pub settle_ms: Option<u64>,
    /// How many targets are handed over at once.
    pub moves_at_once: Option<usize>,
    /// This instance's share relative to the others.
    pub weight: Option<u32>,
    /// The most targets that this instance owns.
    pub capacity: Option<u32>,
    /// A name for people.
    pub name: Option<String>,
}

/// Where results go. Each checks the token that a result carries.
#[derive(Clone, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SinkSettings {
    /// One JSON object per line on standard output.
    Stdout,
    /// A POST per result, with the token in `X-Leasehold-Fence`.
    Http {
        /// Where to.
        #[serde(serialize_with = "without_password")]
        url: String,
    },
    /// Redis: Pub/Sub, a stream, or both. A script drops results with a stale token.
    Redis {
        /// Which server.
        #[serde(serialize_with = "without_password")]
        url: String,
        /// The Pub/Sub channel; `{id}` stands for the target's id.
        #[serde(default)]
        channel: Option<String>,
        /// The stream.
        #[serde(default)]
        stream: Option<String>,
        /// How many entries the stream keeps, about.
        #[serde(default)]
        stream_length: Option<usize>,
        /// What the keys `poll:fence:` and `poll:published:` begin with; the store's prefix by default.
        #[serde(default)]
        prefix: Option<String>,
    },
}

fn without_password<S: Serializer>(url: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&redact::url(url))
}

#[expect(clippy::ref_option, reason = "the signature that serde asks for")]
fn without_password_option<S: Serializer>(
    url: &Option<String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    url.as_deref().map(redact::url).serialize(serializer)
}

/// Headers often hold a credential.
fn names_only<S: Serializer>(
    headers: &BTreeMap<String, String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(headers.keys().map(|name| (name, redact::HIDDEN)))
}

impl Settings {
    /// Checks everything that can be checked without talking to anybody.
    pub fn check(&self) -> Result<Options, Invalid> {
        self.check_interval(self.interval_seconds)?;
        if !(self.timeout_seconds > 0.0 && self.timeout_seconds <= 120.0) {
            return Err(Invalid::new(
                "poll.timeout_seconds",
                "more than 0, at most 120",
            ));
        }
        if self.concurrency == 0 || self.concurrency > 10_000 {
            return Err(Invalid::new("poll.concurrency", "1 to 10,000"));
        }
        if self.max_body_bytes == 0 || self.max_body_bytes > 64 * 1024 * 1024 {
            return Err(Invalid::new("poll.max_body_bytes", "1 byte to 64 MiB"));
        }
        if self.sinks.is_empty() {
            return Err(Invalid::new("poll.sinks", "at least one sink"));
        }
        let silent = self.sinks.iter().any(|sink| {
            matches!(
                sink,
                SinkSettings::Redis {
                    channel: None,
                    stream: None,
                    ..
                }
            )
        });
        if silent {
            return Err(Invalid::new("poll.sinks", "a channel or a stream of Redis"));
        }
        let options = self.lease.options();
        options.check()?;
        Ok(options)
    }

    pub(super) fn check_interval(&self, seconds: f64) -> Result<(), Invalid> {
        let least = if self.allow_short_intervals {
            0.01
        } else {
            INTERVAL_SECONDS.0
        };
        if (least..=INTERVAL_SECONDS.1).contains(&seconds) {
            return Ok(());
        }
        Err(Invalid::new("interval_seconds", "4 to 120 seconds"))
    }
}

impl LeaseSettings {
    fn options(&self) -> Options {
        let ttl_ms = self.ttl_ms.unwrap_or(Options::default().lease_ttl_ms);
        let scaled = Options::with_ttl_ms(ttl_ms);
        let presence_ttl_ms = self.presence_ttl_ms.unwrap_or(scaled.presence_ttl_ms);
        Options {
            renew_ms: self.renew_ms.unwrap_or(scaled.renew_ms),
            presence_ttl_ms,
            presence_ms: self.presence_ms.unwrap_or(presence_ttl_ms / 3),
            discovery_ms: self.discovery_ms.unwrap_or(scaled.discovery_ms),
            preference_wait_ms: self.preference_wait_ms.unwrap_or(scaled.preference_wait_ms),
            settle_ms: self.settle_ms.unwrap_or(scaled.settle_ms),
            moves_at_once: self.moves_at_once.unwrap_or(scaled.moves_at_once),
            weight: self.weight.unwrap_or(scaled.weight),
            capacity: self.capacity,
            display_name: self.name.clone(),
            ..scaled
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Settings, String> {
        serde_saphyr::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_whole_file_is_understood() {
        let settings = read(
            "store: redis://localhost/\nurl: http://host/{id}\ninterval_seconds: 4\nlease: {ttl_ms: 6000, weight: 2}\nsinks:\n  - stdout\n  - http: {url: http://sink/}\n  - redis: {url: redis://localhost/, channel: 'poll:{id}', stream: results}\n",
        )
        .unwrap();
        let options = settings.check().unwrap();
        assert_eq!(
            (options.lease_ttl_ms, options.renew_ms, options.weight),
            (6_000, 2_000, 2)
        );
        assert_eq!(settings.sinks.len(), 3);
    }

    #[test]
    fn secrets_are_not_shown() {
        let settings = read("store: redis://joe:hush@h/1\nheaders: {authorization: hush}\nsinks: [{http: {url: 'http://a:hush@h/x'}}]").unwrap();
        let shown = serde_json::to_string(&settings).unwrap();
        assert!(!shown.contains("hush"), "{shown}");
        assert!(shown.contains("redis://joe:(hidden)@h/1"), "{shown}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let field = |text: &str| {
            read(text)
                .unwrap()
                .check()
                .map(|_| ())
                .map_err(|wrong| wrong.field)
        };
        assert_eq!(field("interval_seconds: 3"), Err("interval_seconds"));
        assert_eq!(field("interval_seconds: 121"), Err("interval_seconds"));
        assert_eq!(
            field("interval_seconds: 3\nallow_short_intervals: true"),
            Ok(())
        );
        assert_eq!(field("concurrency: 0"), Err("poll.concurrency"));
        assert_eq!(
            field("lease: {ttl_ms: 3000, renew_ms: 1001}"),
            Err("renew_ms")
        );
        assert_eq!(
            field("sinks: [{redis: {url: 'redis://localhost/'}}]"),
            Err("poll.sinks")
        );
        assert!(read("intervall: 3").unwrap_err().contains("intervall"));
    }
}
