//! Everything that can be configured. Field names are the keys of the file.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use ipnet::IpNet;
use leasehold_api::redact;
use leasehold_server::auth::{Scope, TokenSpec};
use leasehold_store::embedded::OnDamage;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};

use super::{Limits, Period, Sessions};

/// The whole configuration.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `leasehold serve`.
    pub server: Server,
    /// Every verb that talks to a server.
    pub client: Client,
    /// How `leasehold run` and `leasehold lease acquire` own a key.
    pub lease: LeaseDefaults,
    /// Sessions: how long they live and how they are run.
    pub sessions: Sessions,
    /// How a server looks after runners and their cameras.
    pub runners: Runners,
    /// `leasehold poll`.
    pub poll: leasehold_agents::poller::program::Settings,
    /// What is logged, and how.
    pub log: Log,
}

/// `leasehold serve`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Server {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Where the state lives: `embedded:FOLDER`, `memory:`, `postgres://…`, `redis://…`. By default
    /// embedded, in the data folder.
    #[serde(serialize_with = "without_password")]
    pub store: Option<String>,
    /// The data folder: the embedded store and the first admin token.
    pub data_dir: Option<PathBuf>,
    /// Listen without TLS on an address that others can reach.
    pub insecure_listen: bool,
    /// TLS.
    pub tls: Tls,
    /// Tokens that are accepted besides those in the store.
    pub tokens: Vec<TokenEntry>,
    /// What to do when the embedded store is damaged: `refuse` to start, or `go_on` without what is lost.
    pub on_damage: OnDamage,
    /// Let only private and loopback networks connect, and those in `allow`.
    pub lan_guard: bool,
    /// Networks that may connect; all when empty and `lan_guard` is off.
    pub allow: Vec<IpNet>,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// The RabbitMQ broker that every event is published to: `amqp://…`.
    #[serde(serialize_with = "hidden_option")]
    pub amqp: Option<SecretString>,
    /// How much it takes on at once, how large, and for how long.
    pub limits: Limits,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8740)),
            store: None,
            data_dir: None,
            insecure_listen: false,
            tls: Tls::default(),
            tokens: Vec::new(),
            on_damage: OnDamage::default(),
            lan_guard: false,
            allow: Vec::new(),
            trusted_proxies: Vec::new(),
            amqp: None,
            limits: Limits::default(),
        }
    }
}

/// TLS of the server.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// The certificate chain, PEM.
    pub certificate: Option<PathBuf>,
    /// Its private key, PEM.
    pub key: Option<PathBuf>,
    /// Make a certificate for development in the data folder.
    pub self_signed: bool,
}

/// A token that comes with the configuration.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEntry {
    /// The token itself.
    #[serde(serialize_with = "hidden")]
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

impl From<TokenSpec> for TokenEntry {
    fn from(spec: TokenSpec) -> Self {
        Self {
            token: spec.token,
            scopes: spec.scopes,
            tenant: spec.tenant,
            name: spec.name,
        }
    }
}

impl From<TokenEntry> for TokenSpec {
    fn from(entry: TokenEntry) -> Self {
        Self {
            token: entry.token,
            scopes: entry.scopes,
            tenant: entry.tenant,
            name: entry.name,
        }
    }
}

/// How a client finds its server.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Client {
    /// The server's address; by default the local one.
    #[serde(serialize_with = "without_passwords")]
    pub url: Option<String>,
    /// The credential.
    #[serde(serialize_with = "hidden_option")]
    pub token: Option<SecretString>,
    /// A file that holds the credential; by default the local server's own.
    pub token_file: Option<PathBuf>,
    /// The authority whose certificates are trusted, and no others, PEM; by default the system's.
    pub ca_file: Option<PathBuf>,
}

/// How keys are owned unless a flag says otherwise.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeaseDefaults {
    /// How long a grant or a renewal lasts.
    pub ttl: Period,
    /// How often it is renewed; a third of the ttl by default, and at most that.
    pub renew_every: Option<Period>,
    /// How much earlier than the authority the holder stops; a tenth of the ttl by default.
    pub margin: Option<Period>,
    /// How long a command has to end after it was asked to; a sixth of the ttl by default, at most
    /// ten seconds.
    pub stop_grace: Option<Period>,
    /// The holder's name; by default made from the user and the host.
    pub holder: Option<String>,
    /// Facts that travel with every lease.
    pub labels: BTreeMap<String, String>,
    /// The other holders, `HOST:PORT`: asked whether they reach the server before a lease with the
    /// outage policy `continue` goes on.
    pub peers: Vec<String>,
    /// Where `leasehold run` answers the others.
    pub peer_listen: Option<SocketAddr>,
}

impl Default for LeaseDefaults {
    fn default() -> Self {
        Self {
            ttl: Period::from_millis(30_000),
            renew_every: None,
            margin: None,
            stop_grace: None,
            holder: None,
            labels: BTreeMap::new(),
            peers: Vec::new(),
            peer_listen: None,
        }
    }
}

/// How a server looks after runners and their cameras.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Runners {
    /// A runner that has been away for so long is taken off the list; 0 means never.
    pub forget_after: Period,
    /// A camera that nobody has for so long is counted in `leasehold_cameras_unowned_long`.
    pub unowned_after: Period,
}

impl Default for Runners {
    fn default() -> Self {
        Self {
            forget_after: Period::from_millis(7 * 24 * 3_600_000),
            unowned_after: Period::from_millis(60_000),
        }
    }
}

/// What is logged.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// A filter such as `info` or `leasehold_server=debug,warn`.
    pub level: String,
    /// For people or for programs.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: "info".into(),
            format: LogFormat::Text,
        }
    }
}

/// How a line of the log looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

fn hidden<S: Serializer>(_: &SecretString, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(redact::HIDDEN)
}

#[expect(clippy::ref_option, reason = "serde hands out references")]
fn hidden_option<S: Serializer>(
    secret: &Option<SecretString>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match secret {
        Some(secret) if !secret.expose_secret().is_empty() => {
            serializer.serialize_some(redact::HIDDEN)
        }
        Some(_) | None => serializer.serialize_none(),
    }
}

#[expect(clippy::ref_option, reason = "serde hands out references")]
pub(super) fn without_password<S: Serializer>(
    store: &Option<String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match store {
        Some(store) => serializer.serialize_some(&redact::url(store)),
        None => serializer.serialize_none(),
    }
}

/// The same for several addresses with commas between them.
#[expect(clippy::ref_option, reason = "serde hands out references")]
fn without_passwords<S: Serializer>(
    urls: &Option<String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match urls {
        Some(urls) => {
            let shown: Vec<String> = urls.split(',').map(redact::url).collect();
            serializer.serialize_some(&shown.join(","))
        }
        None => serializer.serialize_none(),
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
        assert!(!format!("{config:?}").contains("[{token: hush"));
    }
}
