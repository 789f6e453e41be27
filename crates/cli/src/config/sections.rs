//! Everything that can be configured. Field names are the keys of the file.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use ipnet::IpNet;
use leasehold_agents::poller::program::Settings as Poll;
use leasehold_api::{
    config::{DEFAULT_PORT, Period, Plain, json, shown, word},
    section,
};
use leasehold_server::{
    Limits, RunnerOptions, TlsOptions,
    auth::{Scope, TokenSpec},
};
use leasehold_store::{Kept, RenewalEvents, embedded};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::{Sessions, wrong};
use crate::exit::Failure;

section! {
    /// The whole configuration.
    pub struct Config {
        /// `leasehold serve`.
        server: Server = Server::default(),
        /// Every command that talks to a server.
        client: Client = Client::default(),
        /// How `leasehold run` and `leasehold lease acquire` own a key.
        lease: LeaseDefaults = LeaseDefaults::default(),
        /// Sessions: how long they live and how they are run.
        sessions: Sessions = Sessions::default(),
        /// How a server looks after runners and their cameras.
        runners: RunnerOptions = RunnerOptions::default(),
        /// `leasehold poll`.
        poll: Poll = Poll::default(),
        /// What is logged, and how.
        log: Log = Log::default(),
    }
}

section! {
    /// `leasehold serve`.
    pub struct Server {
        /// Where to listen.
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)),
        /// Where the state lives: `embedded:FOLDER`, `memory:`, `postgres://…`, `redis://…`. By default
        /// embedded, in the data folder.
        #[serde(serialize_with = "shown::url_option")]
        store: Option<String> = None,
        /// The data folder: the embedded store and the first admin credential. By default
        /// `leasehold` in `$XDG_DATA_HOME`, or in `~/.local/share`.
        data_dir: Option<PathBuf> = None,
        /// Listen without TLS on an address that others can reach.
        insecure_listen: bool = false,
        /// How connections are encrypted.
        tls: TlsOptions = TlsOptions::default(),
        /// Credentials that are accepted besides those in the data folder, each with `token` (the secret
        /// itself), `scopes`, and if wanted `tenant` and `name`.
        credentials | "tokens": Vec<CredentialEntry> = Vec::new(),
        /// What to do when the embedded store is damaged: `refuse` to start, or `go_on` without what is
        /// lost.
        on_damage: OnDamage = OnDamage::Refuse,
        /// How much of the past is kept.
        history: History = History::default(),
        /// How many keys without a lease are remembered one by one; the tokens of older ones are folded
        /// into one floor below all new tokens. 100,000 if not set.
        idle_keys: Option<usize> = None,
        /// How long a key without a lease is remembered at most; 1h if not set.
        idle_key_age: Option<Period> = None,
        /// Let only private and loopback networks connect, and those in `allow`.
        lan_guard: bool = false,
        /// Networks that may connect; all if empty and `lan_guard` is off.
        allow: Vec<IpNet> = Vec::new(),
        /// Proxies whose `X-Forwarded-For` is trusted.
        trusted_proxies: Vec<IpNet> = Vec::new(),
        /// The RabbitMQ broker that every event is published to: `amqp://…` or `amqps://…`.
        #[serde(serialize_with = "shown::secret_option")]
        amqp: Option<SecretString> = None,
        /// How much it takes on at the same time, how large, and for how long.
        limits: Limits = Limits::default(),
    }
}

section! {
    /// How much of the past a store keeps. Whichever limit is reached first counts.
    pub struct History {
        /// The age at which an event is forgotten: 30d if not set, 7d on PostgreSQL. Redis goes by their
        /// number alone.
        max_age: Option<Period> = None,
        /// How many events are kept: 1,000,000 if not set, and about 200,000 on Redis.
        max_events: Option<u64> = None,
        /// Which renewals become events: `off`, `live` for the live stream only, or `kept` in the history
        /// too.
        renewals: Renewals = Renewals::Live,
    }
}

/// What to do at the start when stored state is damaged or missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDamage {
    /// Do not start.
    Refuse,
    /// Go on without what is lost, with larger tokens.
    GoOn,
}

impl Plain for OnDamage {
    const EXPECTS: &'static str = "refuse or go_on";
    fn read(text: &str) -> Result<Self, String> {
        word(text)
    }
}

/// Which renewals become events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Renewals {
    /// None.
    Off,
    /// On the live stream only.
    Live,
    /// In the history too.
    Kept,
}

impl Plain for Renewals {
    const EXPECTS: &'static str = "off, live or kept";
    fn read(text: &str) -> Result<Self, String> {
        word(text)
    }
}

impl Server {
    /// Refuses what cannot work.
    pub fn check(&self) -> Result<(), Failure> {
        if self.history.max_events == Some(0) {
            return Err(wrong("server.history.max_events: expected at least 1"));
        }
        if self.history.max_age == Some(Period::default()) {
            return Err(wrong("server.history.max_age: expected more than 0"));
        }
        let limits = self.limits.check();
        limits.map_err(|invalid| wrong(format!("server.{invalid}")))
    }

    /// How a store is opened.
    pub fn store_options(&self) -> leasehold_store::Options {
        leasehold_store::Options {
            embedded: embedded::Options {
                on_damage: match self.on_damage {
                    OnDamage::Refuse => embedded::OnDamage::Refuse,
                    OnDamage::GoOn => embedded::OnDamage::GoOn,
                },
                ..embedded::Options::default()
            },
            kept: Kept {
                history_ms: self.history.max_age.map(Period::millis),
                history_events: self.history.max_events,
                renewals: Some(match self.history.renewals {
                    Renewals::Off => RenewalEvents::Off,
                    Renewals::Live => RenewalEvents::Live,
                    Renewals::Kept => RenewalEvents::Kept,
                }),
                idle_keys: self.idle_keys,
                idle_ms: self.idle_key_age.map(Period::millis),
            },
        }
    }
}

/// A credential that comes with the configuration.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CredentialEntry {
    /// The secret itself.
    #[serde(serialize_with = "shown::secret")]
    pub token: SecretString,
    /// What it allows.
    #[serde(default)]
    pub scopes: Vec<Scope>,
    /// The only tenant it may see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// A name for the logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Plain for CredentialEntry {
    const EXPECTS: &'static str = "a credential";

    fn read(text: &str) -> Result<Self, String> {
        json(text, "{\"token\":\"…\",\"scopes\":[\"leases:write\"]}")
    }

    fn read_list(text: &str) -> Result<Vec<Self>, String> {
        let specs = leasehold_server::auth::parse_tokens("credentials", text)
            .map_err(|error| error.to_string())?;
        Ok(specs.into_iter().map(Into::into).collect())
    }
}

impl From<TokenSpec> for CredentialEntry {
    fn from(spec: TokenSpec) -> Self {
        Self {
            token: spec.token,
            scopes: spec.scopes,
            tenant: spec.tenant,
            name: spec.name,
        }
    }
}

impl From<CredentialEntry> for TokenSpec {
    fn from(entry: CredentialEntry) -> Self {
        Self {
            token: entry.token,
            scopes: entry.scopes,
            tenant: entry.tenant,
            name: entry.name,
        }
    }
}

section! {
    /// How a client finds its server.
    pub struct Client {
        /// The server's address, or several of one service separated by commas; by default the local
        /// server's.
        #[serde(serialize_with = "shown::urls")]
        url: Option<String> = None,
        /// The credential.
        #[serde(serialize_with = "shown::secret_option")]
        credential | "token": Option<SecretString> = None,
        /// A file that holds the credential; by default the local server's own.
        credential_file | "token_file": Option<PathBuf> = None,
        /// The authority whose certificates are trusted, and no others, PEM; by default the system's.
        ca_file: Option<PathBuf> = None,
    }
}

section! {
    /// How keys are owned unless a flag says otherwise.
    pub struct LeaseDefaults {
        /// How long a grant or a renewal lasts.
        ttl: Period = Period::whole(30),
        /// How often it is renewed; a third of the ttl by default, and at most that.
        renew_every: Option<Period> = None,
        /// How much earlier than the authority the holder stops; a tenth of the ttl by default.
        margin: Option<Period> = None,
        /// How long a command has to end after it was asked to; a sixth of the ttl by default, at most
        /// ten seconds.
        stop_grace: Option<Period> = None,
        /// The holder's name; by default made from the user and the host.
        holder: Option<String> = None,
        /// Facts that travel with every lease.
        labels: BTreeMap<String, String> = BTreeMap::new(),
        /// The other holders, `HOST:PORT`: asked whether they reach the server before a lease with the
        /// outage policy `continue` goes on.
        peers: Vec<String> = Vec::new(),
        /// Where `leasehold run` answers the others.
        peer_listen: Option<SocketAddr> = None,
    }
}

section! {
    /// What is logged.
    pub struct Log {
        /// A filter such as `info` or `leasehold_server=debug,warn`.
        level: String = "info".into(),
        /// `text` for people, `json` for programs: one object per line.
        format: LogFormat = LogFormat::Text,
    }
}

/// How a line of the log looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Plain for LogFormat {
    const EXPECTS: &'static str = "text or json";
    fn read(text: &str) -> Result<Self, String> {
        word(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let config: Config = serde_saphyr::from_str(
            "server:\n  store: postgres://joe:hush@db/x?password=hush&a=b\n  tokens: [{token: hush, scopes: ['leases:read']}]\nclient: {token: hush, url: 'http://a:hush@b,http://c:hush@d'}\nsessions: {source_template: 'http://box/{service_ref}?password=hush'}\npoll: {url: 'http://u:hush@x/{id}?token=hush', sinks: [{http: {url: 'http://y/?api_key=hush'}}]}\n",
        )
        .unwrap();
        let shown = serde_saphyr::to_string(&config).unwrap();
        assert!(!shown.contains("hush"), "{shown}");
        assert!(!format!("{config:?}").contains("hush"));
    }

    #[test]
    fn limits_are_read_and_shown() {
        let read = |text: &str| serde_saphyr::from_str::<Config>(text).unwrap();
        let config = read("server: {limits: {keeps: 20, acquires: 10, request_timeout: 1500ms}}");
        let shown = serde_saphyr::to_string(&config).unwrap();
        let again = read(&shown).server.limits;
        assert_eq!(
            (again.keeps, again.acquires, again.request_timeout.millis()),
            (20, 10, 1_500)
        );
    }

    #[test]
    fn what_cannot_work_is_named() {
        let complaint = |text: &str| {
            let config: Config = serde_saphyr::from_str(text).unwrap();
            config.server.check().unwrap_err().to_string()
        };
        insta::assert_snapshot!(complaint("server: {limits: {keeps: 5, acquires: 10}}"), @"error: server.limits.keeps: expected at least as many as limits.acquires: who holds a lease must be able to keep it");
        insta::assert_snapshot!(complaint("server: {limits: {request_timeout: 11m}}"), @"error: server.limits.request_timeout: expected more than 0, at most 10 minutes");
        insta::assert_snapshot!(complaint("server: {history: {max_events: 0}}"), @"error: server.history.max_events: expected at least 1");
    }

    #[test]
    fn what_is_kept_reaches_the_store() {
        let config: Config = serde_saphyr::from_str(
            "server: {on_damage: go_on, idle_keys: 7, idle_key_age: 2m, history: {max_age: 1d, max_events: 9, renewals: kept}}",
        )
        .unwrap();
        let options = config.server.store_options();
        assert_eq!(options.embedded.on_damage, embedded::OnDamage::GoOn);
        assert_eq!(
            options.kept,
            Kept {
                history_ms: Some(86_400_000),
                history_events: Some(9),
                renewals: Some(RenewalEvents::Kept),
                idle_keys: Some(7),
                idle_ms: Some(120_000),
            }
        );
    }
}
