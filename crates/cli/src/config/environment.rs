//! The environment: one variable per setting, listed once.

use std::str::FromStr;

use super::{Config, file::nearest, wrong};
use crate::exit::Failure;

/// One setting that a variable can change.
pub struct Setting {
    /// The key in the file.
    pub path: &'static str,
    /// The variable.
    pub variable: &'static str,
    /// Another name that is honoured, for those who come from there.
    pub alias: Option<&'static str>,
    set: fn(&mut Config, &str) -> Result<(), String>,
}

/// Variables with our prefix that are no settings: for the command line itself, and those that
/// `leasehold run` gives to its command.
const OTHERS: [&str; 4] = [
    super::FILE_VARIABLE,
    "LEASEHOLD_FENCE",
    "LEASEHOLD_FENCE_FILE",
    "LEASEHOLD_KEY",
];
/// Every setting's variable begins with this.
const PREFIX: &str = "LEASEHOLD_";
/// Belong to the tests, to `leasehold manager`, which checks its own, and to the workers of a manager.
const OTHER_PREFIXES: [&str; 3] = ["LEASEHOLD_TEST", "LEASEHOLD_MANAGER_", "LEASEHOLD_WORKER_"];

macro_rules! setting {
    ($path:literal, $variable:literal, $set:expr) => {
        setting!($path, $variable, None, $set)
    };
    ($path:literal, $variable:literal, $alias:expr, $set:expr) => {
        Setting {
            path: $path,
            variable: $variable,
            alias: $alias,
            set: $set,
        }
    };
}

/// Everything that the environment can set.
pub const SETTINGS: &[Setting] = &[
    setting!("server.listen", "LEASEHOLD_LISTEN", |config, text| {
        parse(text).map(|value| config.server.listen = value)
    }),
    setting!("server.store", "LEASEHOLD_STORE", |config, text| {
        config.server.store = Some(text.into());
        Ok(())
    }),
    setting!("server.data_dir", "LEASEHOLD_DATA_DIR", |config, text| {
        config.server.data_dir = Some(text.into());
        Ok(())
    }),
    setting!(
        "server.insecure_listen",
        "LEASEHOLD_INSECURE_LISTEN",
        |config, text| parse_flag(text).map(|value| config.server.insecure_listen = value)
    ),
    setting!(
        "server.tls.certificate",
        "LEASEHOLD_TLS_CERTIFICATE",
        |config, text| {
            config.server.tls.certificate = Some(text.into());
            Ok(())
        }
    ),
    setting!("server.tls.key", "LEASEHOLD_TLS_KEY", |config, text| {
        config.server.tls.key = Some(text.into());
        Ok(())
    }),
    setting!(
        "server.tls.self_signed",
        "LEASEHOLD_TLS_SELF_SIGNED",
        |config, text| parse_flag(text).map(|value| config.server.tls.self_signed = value)
    ),
    setting!(
        "server.tokens",
        "LEASEHOLD_TOKENS",
        Some("XG2G_API_TOKENS"),
        |config, text| {
            let tokens = leasehold_server::auth::parse_tokens("tokens", text)
                .map_err(|error| error.to_string())?;
            config.server.tokens = tokens.into_iter().map(Into::into).collect();
            Ok(())
        }
    ),
    setting!("server.lan_guard", "LEASEHOLD_LAN_GUARD", |config, text| {
        parse_flag(text).map(|value| config.server.lan_guard = value)
    }),
    setting!("server.allow", "LEASEHOLD_ALLOW", |config, text| {
        parse_list(text).map(|value| config.server.allow = value)
    }),
    setting!(
        "server.trusted_proxies",
        "LEASEHOLD_TRUSTED_PROXIES",
        Some("XG2G_TRUSTED_PROXIES"),
        |config, text| parse_list(text).map(|value| config.server.trusted_proxies = value)
    ),
    setting!("server.amqp", "LEASEHOLD_AMQP", |config, text| {
        config.server.amqp = Some(text.into());
        Ok(())
    }),
    setting!(
        "runners.forget_after",
        "LEASEHOLD_RUNNERS_FORGET_AFTER",
        |config, text| parse(text).map(|value| config.runners.forget_after = value)
    ),
    setting!(
        "runners.unowned_after",
        "LEASEHOLD_RUNNERS_UNOWNED_AFTER",
        |config, text| parse(text).map(|value| config.runners.unowned_after = value)
    ),
    setting!(
        "server.limits.keeps",
        "LEASEHOLD_LIMITS_KEEPS",
        |config, text| parse_number(text).map(|value| config.server.limits.keeps = value)
    ),
    setting!(
        "server.limits.acquires",
        "LEASEHOLD_LIMITS_ACQUIRES",
        |config, text| parse_number(text).map(|value| config.server.limits.acquires = value)
    ),
    setting!(
        "server.limits.waiters",
        "LEASEHOLD_LIMITS_WAITERS",
        |config, text| parse_number(text).map(|value| config.server.limits.waiters = value)
    ),
    setting!(
        "server.limits.others",
        "LEASEHOLD_LIMITS_OTHERS",
        |config, text| parse_number(text).map(|value| config.server.limits.others = value)
    ),
    setting!(
        "server.limits.streams",
        "LEASEHOLD_LIMITS_STREAMS",
        |config, text| parse_number(text).map(|value| config.server.limits.streams = value)
    ),
    setting!(
        "server.limits.connections",
        "LEASEHOLD_LIMITS_CONNECTIONS",
        |config, text| parse_number(text).map(|value| config.server.limits.connections = value)
    ),
    setting!(
        "server.limits.connections_per_address",
        "LEASEHOLD_LIMITS_CONNECTIONS_PER_ADDRESS",
        |config, text| parse_number(text)
            .map(|value| config.server.limits.connections_per_address = value)
    ),
    setting!(
        "server.limits.body_bytes",
        "LEASEHOLD_LIMITS_BODY_BYTES",
        |config, text| parse_number(text).map(|value| config.server.limits.body_bytes = value)
    ),
    setting!(
        "server.limits.request_timeout",
        "LEASEHOLD_LIMITS_REQUEST_TIMEOUT",
        |config, text| parse(text).map(|value| config.server.limits.request_timeout = value)
    ),
    setting!(
        "server.limits.shutdown",
        "LEASEHOLD_LIMITS_SHUTDOWN",
        |config, text| parse(text).map(|value| config.server.limits.shutdown = value)
    ),
    setting!(
        "server.limits.stream_heartbeat",
        "LEASEHOLD_LIMITS_STREAM_HEARTBEAT",
        |config, text| parse(text).map(|value| config.server.limits.stream_heartbeat = value)
    ),
    setting!(
        "server.limits.death_linger",
        "LEASEHOLD_LIMITS_DEATH_LINGER",
        |config, text| parse(text).map(|value| config.server.limits.death_linger = value)
    ),
    setting!(
        "server.limits.acquires_per_second",
        "LEASEHOLD_LIMITS_ACQUIRES_PER_SECOND",
        |config, text| parse_number(text)
            .map(|value| config.server.limits.acquires_per_second = Some(value))
    ),
    setting!(
        "server.limits.acquire_burst",
        "LEASEHOLD_LIMITS_ACQUIRE_BURST",
        |config, text| parse_number(text)
            .map(|value| config.server.limits.acquire_burst = Some(value))
    ),
    setting!(
        "sessions.lease_ttl",
        "LEASEHOLD_SESSIONS_LEASE_TTL",
        |config, text| parse(text).map(|value| config.sessions.lease_ttl = value)
    ),
    setting!(
        "sessions.heartbeat_interval",
        "LEASEHOLD_SESSIONS_HEARTBEAT_INTERVAL",
        |config, text| parse(text).map(|value| config.sessions.heartbeat_interval = value)
    ),
    setting!(
        "sessions.expiry_check_interval",
        "LEASEHOLD_SESSIONS_EXPIRY_CHECK_INTERVAL",
        |config, text| parse(text).map(|value| config.sessions.expiry_check_interval = value)
    ),
    setting!(
        "sessions.idempotency_ttl",
        "LEASEHOLD_SESSIONS_IDEMPOTENCY_TTL",
        |config, text| parse(text).map(|value| config.sessions.idempotency_ttl = value)
    ),
    setting!(
        "sessions.remember",
        "LEASEHOLD_SESSIONS_REMEMBER",
        |config, text| parse(text).map(|value| config.sessions.remember = value)
    ),
    setting!(
        "sessions.api_leases",
        "LEASEHOLD_SESSIONS_API_LEASES",
        Some("XG2G_V3_API_LEASES"),
        |config, text| parse_flag(text).map(|value| config.sessions.api_leases = value)
    ),
    setting!(
        "sessions.worker",
        "LEASEHOLD_SESSIONS_WORKER",
        |config, text| parse_flag(text).map(|value| config.sessions.worker = value)
    ),
    setting!(
        "sessions.worker_name",
        "LEASEHOLD_SESSIONS_WORKER_NAME",
        |config, text| {
            config.sessions.worker_name = Some(text.into());
            Ok(())
        }
    ),
    setting!(
        "sessions.tuner_slots",
        "LEASEHOLD_SESSIONS_TUNER_SLOTS",
        Some("XG2G_V3_TUNER_SLOTS"),
        |config, text| parse_list(text).map(|value| config.sessions.tuner_slots = value)
    ),
    setting!(
        "sessions.source_template",
        "LEASEHOLD_SESSIONS_SOURCE_TEMPLATE",
        |config, text| {
            config.sessions.source_template = Some(text.into());
            Ok(())
        }
    ),
    setting!(
        "sessions.output_dir",
        "LEASEHOLD_SESSIONS_OUTPUT_DIR",
        |config, text| {
            config.sessions.output_dir = Some(text.into());
            Ok(())
        }
    ),
    setting!("client.url", "LEASEHOLD_URL", |config, text| {
        config.client.url = Some(text.into());
        Ok(())
    }),
    setting!("client.token", "LEASEHOLD_API_TOKEN", |config, text| {
        config.client.token = Some(text.into());
        Ok(())
    }),
    setting!(
        "client.token_file",
        "LEASEHOLD_TOKEN_FILE",
        |config, text| {
            config.client.token_file = Some(text.into());
            Ok(())
        }
    ),
    setting!("client.ca_file", "LEASEHOLD_CA_FILE", |config, text| {
        config.client.ca_file = Some(text.into());
        Ok(())
    }),
    setting!("lease.ttl", "LEASEHOLD_TTL", |config, text| {
        parse(text).map(|value| config.lease.ttl = value)
    }),
    setting!(
        "lease.renew_every",
        "LEASEHOLD_RENEW_EVERY",
        |config, text| { parse(text).map(|value| config.lease.renew_every = Some(value)) }
    ),
    setting!("lease.margin", "LEASEHOLD_MARGIN", |config, text| {
        parse(text).map(|value| config.lease.margin = Some(value))
    }),
    setting!(
        "lease.stop_grace",
        "LEASEHOLD_STOP_GRACE",
        |config, text| { parse(text).map(|value| config.lease.stop_grace = Some(value)) }
    ),
    setting!("lease.holder", "LEASEHOLD_HOLDER", |config, text| {
        config.lease.holder = Some(text.into());
        Ok(())
    }),
    setting!("lease.peers", "LEASEHOLD_PEERS", |config, text| {
        parse_list(text).map(|value| config.lease.peers = value)
    }),
    setting!(
        "lease.peer_listen",
        "LEASEHOLD_PEER_LISTEN",
        |config, text| { parse(text).map(|value| config.lease.peer_listen = Some(value)) }
    ),
    setting!("log.level", "LEASEHOLD_LOG", |config, text| {
        config.log.level = text.into();
        Ok(())
    }),
    setting!("log.format", "LEASEHOLD_LOG_FORMAT", |config, text| {
        let format = clap::ValueEnum::from_str(text, true);
        format
            .map(|value| config.log.format = value)
            .map_err(|_| "expected text or json".into())
    }),
];

fn parse<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.trim()
        .parse()
        .map_err(|error: T::Err| error.to_string())
}

/// The standard library's words about numbers do not say what is expected.
fn parse_number<T: FromStr>(text: &str) -> Result<T, String> {
    let number = text.trim().parse::<T>();
    number.map_err(|_| "expected a whole number, not negative".into())
}

fn parse_list<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<Vec<T>, String> {
    text.split(',')
        .filter(|part| !part.trim().is_empty())
        .map(parse)
        .collect()
}

fn parse_flag(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" | "" => Ok(false),
        _ => Err("expected true or false".into()),
    }
}

/// Changes what variables say. An empty variable says nothing.
pub fn apply(config: &mut Config, variables: &[(String, String)]) -> Result<(), Failure> {
    for setting in SETTINGS {
        let names = setting.alias.into_iter().chain([setting.variable]);
        for name in names {
            let value = variables.iter().find(|(variable, _)| variable == name);
            if let Some((_, value)) = value
                && !value.is_empty()
            {
                (setting.set)(config, value).map_err(|why| wrong(format!("{name}: {why}")))?;
            }
        }
    }
    Ok(())
}

/// Variables with our prefix that set nothing, each with what was probably meant.
pub fn unknown_variables(variables: &[(String, String)]) -> Vec<(String, Option<&'static str>)> {
    variables
        .iter()
        .map(|(name, _)| name)
        .filter(|name| name.starts_with(PREFIX))
        .filter(|name| !OTHER_PREFIXES.iter().any(|other| name.starts_with(other)))
        .filter(|name| !OTHERS.contains(&name.as_str()))
        .filter(|name| {
            SETTINGS
                .iter()
                .all(|setting| setting.variable != name.as_str())
        })
        .map(|name| {
            let known = SETTINGS.iter().map(|setting| setting.variable);
            (name.clone(), nearest(name, known))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = pairs
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()));
        owned.collect()
    }

    #[test]
    fn the_environment_beats_the_file() {
        let mut config: Config =
            serde_saphyr::from_str("lease: {ttl: 5s}\nlog: {level: warn}").unwrap();
        let set = variables(&[("LEASEHOLD_TTL", "9s"), ("LEASEHOLD_LOG", "")]);
        apply(&mut config, &set).unwrap();
        assert_eq!(config.lease.ttl.millis(), 9_000);
        assert_eq!(config.log.level, "warn");
    }

    #[test]
    fn wrong_values_name_the_variable_and_never_the_secret() {
        let mut config = Config::default();
        let wrong = variables(&[("LEASEHOLD_TTL", "soon")]);
        insta::assert_snapshot!(apply(&mut config, &wrong).unwrap_err(), @"error: LEASEHOLD_TTL: duration: expected a length of time such as 500ms, 30s, 1m30s or 2h");
        let wrong = variables(&[("LEASEHOLD_TOKENS", "[{\"token\":\"hush\",\"scope\":[]}]")]);
        let complaint = apply(&mut config, &wrong).unwrap_err().to_string();
        assert!(
            complaint.contains("LEASEHOLD_TOKENS") && !complaint.contains("hush"),
            "{complaint}"
        );
    }

    #[test]
    fn limits_are_set_by_variables() {
        let mut config = Config::default();
        let set = variables(&[
            ("LEASEHOLD_LIMITS_KEEPS", "2000"),
            ("LEASEHOLD_LIMITS_ACQUIRES_PER_SECOND", "50"),
            ("LEASEHOLD_LIMITS_SHUTDOWN", "3s"),
        ]);
        apply(&mut config, &set).unwrap();
        let limits = config.server.limits.checked().unwrap();
        assert_eq!((limits.keeps, limits.shutdown_ms), (2_000, 3_000));
        assert_eq!(limits.acquires_per_second, Some(50));
        let wrong = variables(&[("LEASEHOLD_LIMITS_OTHERS", "-1")]);
        insta::assert_snapshot!(apply(&mut config, &wrong).unwrap_err(), @"error: LEASEHOLD_LIMITS_OTHERS: expected a whole number, not negative");
    }

    #[test]
    fn unknown_variables_are_found_with_what_was_meant() {
        let set = variables(&[
            ("LEASEHOLD_LISEN", "x"),
            ("LEASEHOLD_TTL", "1s"),
            ("LEASEHOLD_FENCE", "7"),
            ("LEASEHOLD_TESTKIT_OWNER", "1"),
            ("PATH", "/bin"),
        ]);
        assert_eq!(
            unknown_variables(&set),
            [("LEASEHOLD_LISEN".to_owned(), Some("LEASEHOLD_LISTEN"))]
        );
    }
}
