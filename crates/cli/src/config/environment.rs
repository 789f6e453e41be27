//! The environment: the variables of a setting follow from its path.

use std::collections::BTreeMap;

use leasehold_api::config::{self, Described, PREFIX};

use super::{Config, file::nearest, wrong};
use crate::exit::Failure;

/// Sections whose name may be left out of a variable: `LEASEHOLD_LISTEN`, `LEASEHOLD_TTL`.
const SHORT: [&str; 3] = ["server.", "client.", "lease."];

/// Names that settings have beside those that follow from their paths.
const ALIASES: [(&str, &str); 6] = [
    ("server.credentials", "XG2G_API_TOKENS"),
    ("server.trusted_proxies", "XG2G_TRUSTED_PROXIES"),
    ("sessions.api_leases", "XG2G_V3_API_LEASES"),
    ("sessions.tuner_slots", "XG2G_V3_TUNER_SLOTS"),
    ("client.credential", "LEASEHOLD_API_TOKEN"),
    ("log.level", "LEASEHOLD_LOG"),
];

/// Variables with our prefix that are no settings: for the command line itself, and those that
/// `leasehold run` gives to its command.
const OTHERS: [&str; 4] = [
    super::FILE_VARIABLE,
    "LEASEHOLD_FENCE",
    "LEASEHOLD_FENCE_FILE",
    "LEASEHOLD_KEY",
];
/// Belong to the tests, to `leasehold manager`, which checks its own, and to the workers of a manager.
const OTHER_PREFIXES: [&str; 3] = ["LEASEHOLD_TEST", "LEASEHOLD_MANAGER_", "LEASEHOLD_WORKER_"];

/// The variables of a setting, strongest first.
pub fn variables(setting: &Described) -> Vec<String> {
    let paths = std::iter::once(&setting.path).chain(&setting.aliases);
    let mut names: Vec<String> = paths
        .flat_map(|path| {
            let short = SHORT.iter().find_map(|section| path.strip_prefix(section));
            [Some(config::variable(path)), short.map(config::variable)]
        })
        .flatten()
        .collect();
    let aliases = ALIASES.iter().filter(|(path, _)| *path == setting.path);
    names.extend(aliases.map(|(_, name)| (*name).to_owned()));
    names
}

/// The variables that hold credentials.
pub fn secret_variables() -> Vec<String> {
    let described = config::describe(&mut Config::default());
    described
        .iter()
        .filter(|setting| {
            matches!(
                setting.path.as_str(),
                "server.credentials" | "client.credential"
            )
        })
        .flat_map(variables)
        .collect()
}

/// Changes what variables say, and answers which variable changed each setting.
pub fn apply(
    config: &mut Config,
    environment: &[(String, String)],
) -> Result<BTreeMap<String, String>, Failure> {
    config::apply(config, "", environment, &variables).map_err(wrong)
}

/// Variables with our prefix that set nothing, each with what was probably meant.
pub fn unknown_variables(environment: &[(String, String)]) -> Vec<(String, Option<String>)> {
    let described = config::describe(&mut Config::default());
    let known: Vec<String> = described.iter().flat_map(variables).collect();
    environment
        .iter()
        .map(|(name, _)| name)
        .filter(|name| name.starts_with(PREFIX))
        .filter(|name| !OTHER_PREFIXES.iter().any(|other| name.starts_with(other)))
        .filter(|name| !OTHERS.contains(&name.as_str()) && !known.contains(name))
        .map(|name| {
            let meant = nearest(name, known.iter().map(String::as_str));
            (name.clone(), meant.map(str::to_owned))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = pairs
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()));
        owned.collect()
    }

    #[test]
    fn the_environment_beats_the_file() {
        let mut config: Config =
            serde_saphyr::from_str("lease: {ttl: 5s}\nlog: {level: warn}").unwrap();
        let set = environment(&[
            ("LEASEHOLD_TTL", "8s"),
            ("LEASEHOLD_LEASE_TTL", "9s"),
            ("LEASEHOLD_LOG", ""),
        ]);
        let changed = apply(&mut config, &set).unwrap();
        assert_eq!(config.lease.ttl.millis(), 9_000);
        assert_eq!(config.log.level, "warn");
        let by = ("lease.ttl".to_owned(), "LEASEHOLD_LEASE_TTL".to_owned());
        assert_eq!(changed.into_iter().collect::<Vec<_>>(), [by]);
    }

    #[test]
    fn names_that_were_there_before_still_work() {
        for (name, text, path) in [
            ("LEASEHOLD_LISTEN", "127.0.0.1:1", "server.listen"),
            ("LEASEHOLD_TLS_CERTIFICATE", "x", "server.tls.certificate"),
            ("LEASEHOLD_TOKENS", "[]", "server.credentials"),
            ("XG2G_API_TOKENS", "[]", "server.credentials"),
            (
                "XG2G_TRUSTED_PROXIES",
                "10.0.0.0/8",
                "server.trusted_proxies",
            ),
            ("LEASEHOLD_LIMITS_KEEPS", "5", "server.limits.keeps"),
            ("LEASEHOLD_SESSIONS_LEASE_TTL", "5s", "sessions.lease_ttl"),
            ("XG2G_V3_API_LEASES", "true", "sessions.api_leases"),
            ("XG2G_V3_TUNER_SLOTS", "0,1", "sessions.tuner_slots"),
            ("LEASEHOLD_URL", "http://h", "client.url"),
            ("LEASEHOLD_API_TOKEN", "x", "client.credential"),
            ("LEASEHOLD_TOKEN_FILE", "x", "client.credential_file"),
            ("LEASEHOLD_RENEW_EVERY", "1s", "lease.renew_every"),
            ("LEASEHOLD_LOG", "warn", "log.level"),
            ("LEASEHOLD_LOG_FORMAT", "json", "log.format"),
            (
                "LEASEHOLD_RUNNERS_FORGET_AFTER",
                "1d",
                "runners.forget_after",
            ),
        ] {
            let changed = apply(&mut Config::default(), &environment(&[(name, text)])).unwrap();
            assert!(changed.contains_key(path), "{name}: {changed:?}");
        }
    }

    #[test]
    fn no_variable_has_two_settings() {
        let mut seen = std::collections::BTreeSet::new();
        for setting in config::describe(&mut Config::default()) {
            for name in variables(&setting) {
                assert!(seen.insert(name.clone()), "{name} has two settings");
            }
        }
    }

    #[test]
    fn wrong_values_name_the_variable_and_never_the_secret() {
        let mut config = Config::default();
        let wrong = environment(&[("LEASEHOLD_TTL", "soon")]);
        insta::assert_snapshot!(apply(&mut config, &wrong).unwrap_err(), @"error: LEASEHOLD_TTL: expected a duration such as 500ms, 30s, 1m30s or 2h");
        let wrong = environment(&[("LEASEHOLD_LIMITS_OTHERS", "-1")]);
        insta::assert_snapshot!(apply(&mut config, &wrong).unwrap_err(), @"error: LEASEHOLD_LIMITS_OTHERS: expected a whole number, not negative");
        let wrong = environment(&[("LEASEHOLD_TOKENS", "[{\"token\":\"hush\",\"scope\":[]}]")]);
        let complaint = apply(&mut config, &wrong).unwrap_err().to_string();
        assert!(
            complaint.contains("LEASEHOLD_TOKENS") && !complaint.contains("hush"),
            "{complaint}"
        );
    }

    #[test]
    fn unknown_variables_are_found_with_what_was_meant() {
        let set = environment(&[
            ("LEASEHOLD_LISEN", "x"),
            ("LEASEHOLD_TTL", "1s"),
            ("LEASEHOLD_FENCE", "7"),
            ("LEASEHOLD_TESTKIT_OWNER", "1"),
            ("PATH", "/bin"),
        ]);
        let meant = Some("LEASEHOLD_LISTEN".to_owned());
        assert_eq!(
            unknown_variables(&set),
            [("LEASEHOLD_LISEN".to_owned(), meant)]
        );
    }
}
