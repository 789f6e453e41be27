//! The section `poll` of a configuration file.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use lease::{Invalid, polling::INTERVAL_SECONDS};
use leasehold_api::{
    config::{Period, Plain, json, shown},
    section,
};
use serde::{Deserialize, Serialize};

use super::super::Options;

section! {
    /// `leasehold poll`: what is polled, how often, and where results go.
    pub struct Settings {
        /// Where the state lives: `redis://…`, `postgres://…`, `embedded:FOLDER`, `memory:`. By default
        /// a server, over HTTP.
        #[serde(serialize_with = "shown::url_option")]
        store: Option<String> = None,
        /// A YAML or JSON file with a list of targets. By default they come from the store.
        targets_file: Option<PathBuf> = None,
        /// The address of targets that do not say their own; `{id}` stands for the target's id, `{field}`
        /// and `{field.inner}` for a field of its document, `{+field}` for one that is not to be escaped.
        #[serde(serialize_with = "shown::url_option")]
        url: Option<String> = None,
        /// How often a target is polled that does not say so itself: 4s to 2m.
        interval | "interval_seconds": Period = Period::whole(10),
        /// How long one poll may take. It always ends before the lease's deadline.
        timeout | "timeout_seconds": Period = Period::whole(10),
        /// How many polls run at the same time.
        concurrency: usize = 64,
        /// How many bytes of an answer are read.
        max_body_bytes: usize = 1024 * 1024,
        /// Headers of every request.
        #[serde(serialize_with = "shown::names")]
        headers: BTreeMap<String, String> = BTreeMap::new(),
        /// How targets are owned.
        lease: LeaseSettings = LeaseSettings::default(),
        /// Where results go: `stdout`, `http` with a `url`, `redis` with a `url` and a `channel`, a
        /// `stream`, or both.
        sinks: Vec<SinkSettings> = vec![SinkSettings::Stdout],
        /// Where this instance serves `/metrics`, for Prometheus, and `/api/v1/nodes`, without a credential;
        /// nowhere by default.
        metrics_listen: Option<SocketAddr> = None,
        /// For tests only: allow intervals below 4s.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        allow_short_intervals: bool = false,
    }
}

section! {
    /// How targets are owned. What is left out follows from the ttl.
    pub struct LeaseSettings {
        /// How long a lease lasts; 30s if not set.
        ttl: Option<Period> = None,
        /// How often leases are renewed: at most a third of the ttl, which is the default.
        renew: Option<Period> = None,
        /// How long presence lasts; the ttl if not set.
        presence_ttl: Option<Period> = None,
        /// How often presence is renewed: at most a third of its ttl, which is the default.
        presence: Option<Period> = None,
        /// How often everything is read again; a third of the ttl if not set.
        discovery: Option<Period> = None,
        /// How long a free target is left to the instance that should have it; 500ms with a ttl of 30s.
        preference_wait: Option<Period> = None,
        /// How long the fleet must stand still before targets are handed over; 1s with a ttl of 30s.
        settle: Option<Period> = None,
        /// How long a successor has to answer an offer, and to confirm; 5s with a ttl of 30s.
        answer: Option<Period> = None,
        /// How long running polls may take to end during a hand-over; 10s with a ttl of 30s.
        drain: Option<Period> = None,
        /// How long a stop takes at most, polls and releases included; 10s with a ttl of 30s.
        stop: Option<Period> = None,
        /// How many targets are handed over at the same time; 32 if not set.
        moves_at_once: Option<usize> = None,
        /// This instance's share relative to the others; 1 if not set, and 0 takes nothing.
        weight: Option<u32> = None,
        /// The most targets that this instance owns.
        capacity: Option<u32> = None,
        /// A name for people.
        name: Option<String> = None,
    }
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
        #[serde(serialize_with = "shown::url")]
        url: String,
    },
    /// Redis: Pub/Sub, a stream, or both. A script drops results with a stale token.
    Redis {
        /// Which server.
        #[serde(serialize_with = "shown::url")]
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

impl Plain for SinkSettings {
    const EXPECTS: &'static str = "a sink";

    fn read(text: &str) -> Result<Self, String> {
        match text {
            "stdout" => Ok(Self::Stdout),
            _ => json(text, "`stdout`, or a sink as JSON"),
        }
    }

    fn read_list(text: &str) -> Result<Vec<Self>, String> {
        match text {
            "stdout" => Ok(vec![Self::Stdout]),
            _ => json(text, "`stdout`, or a JSON list of sinks"),
        }
    }
}

impl Settings {
    /// Checks everything that can be checked without talking to anybody.
    pub fn check(&self) -> Result<Options, Invalid> {
        self.check_interval(self.interval.duration().as_secs_f64())?;
        if !(1..=120_000).contains(&self.timeout.millis()) {
            return Err(Invalid::new("poll.timeout", "more than 0, at most 2m"));
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
        Err(Invalid::new("poll.interval", "4 to 120 seconds"))
    }
}

impl LeaseSettings {
    fn options(&self) -> Options {
        let millis = |period: Option<Period>, default: u64| period.map_or(default, Period::millis);
        let scaled = Options::with_ttl_ms(millis(self.ttl, Options::default().lease_ttl_ms));
        let presence_ttl_ms = millis(self.presence_ttl, scaled.presence_ttl_ms);
        Options {
            renew_ms: millis(self.renew, scaled.renew_ms),
            presence_ttl_ms,
            presence_ms: millis(self.presence, presence_ttl_ms / 3),
            discovery_ms: millis(self.discovery, scaled.discovery_ms),
            preference_wait_ms: millis(self.preference_wait, scaled.preference_wait_ms),
            settle_ms: millis(self.settle, scaled.settle_ms),
            answer_ms: millis(self.answer, scaled.answer_ms),
            drain_ms: millis(self.drain, scaled.drain_ms),
            stop_ms: millis(self.stop, scaled.stop_ms),
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
            "store: redis://localhost/\nurl: http://host/{id}\ninterval_seconds: 4\nlease: {ttl: 6s, weight: 2}\nsinks:\n  - stdout\n  - http: {url: http://sink/}\n  - redis: {url: redis://localhost/, channel: 'poll:{id}', stream: results}\n",
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
        assert_eq!(field("interval_seconds: 3"), Err("poll.interval"));
        assert_eq!(field("interval_seconds: 121"), Err("poll.interval"));
        assert_eq!(
            field("interval_seconds: 3\nallow_short_intervals: true"),
            Ok(())
        );
        assert_eq!(field("concurrency: 0"), Err("poll.concurrency"));
        assert_eq!(
            field("lease: {ttl: 3s, renew: 1001ms}"),
            Err("poll.lease.renew")
        );
        assert_eq!(
            field("sinks: [{redis: {url: 'redis://localhost/'}}]"),
            Err("poll.sinks")
        );
        assert!(read("intervall: 3").unwrap_err().contains("intervall"));
    }
}
