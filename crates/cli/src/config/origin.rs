//! Where each setting comes from, and the configuration shown with that.

use std::{collections::BTreeMap, fmt};

use leasehold_api::config;
use serde_json::Value;

use super::Config;

/// Who set a setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Nobody.
    Default,
    /// The file.
    File,
    /// This variable.
    Environment(String),
    /// This flag.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File => f.write_str("file"),
            Self::Environment(variable) => f.write_str(variable),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// Who set what, by the path of the setting.
#[derive(Clone, Debug, Default)]
pub struct Origins(BTreeMap<String, Origin>);

impl Origins {
    /// Notes who set a setting; the last one counts.
    pub fn note(&mut self, path: impl Into<String>, origin: Origin) {
        self.0.insert(path.into(), origin);
    }

    /// Notes what stands in a file that was read already.
    pub fn note_file(&mut self, text: &str) {
        let Ok(file) = serde_saphyr::from_str::<Value>(text) else {
            return;
        };
        for setting in config::describe(&mut Config::default()) {
            let mut paths = std::iter::once(&setting.path).chain(&setting.aliases);
            let there = paths.any(|path| {
                let found = path.split('.').try_fold(&file, |at, name| at.get(name));
                found.is_some()
            });
            if there {
                self.note(setting.path, Origin::File);
            }
        }
    }

    /// Who set a setting.
    pub fn of(&self, path: &str) -> Origin {
        self.0.get(path).cloned().unwrap_or(Origin::Default)
    }

    /// A configuration as YAML, with a comment behind each setting.
    pub fn annotate(&self, yaml: &str) -> String {
        let known: Vec<String> = config::describe(&mut Config::default())
            .into_iter()
            .map(|setting| setting.path)
            .collect();
        let (mut shown, mut sections) = (String::new(), Vec::new());
        for line in yaml.lines() {
            shown.push_str(line);
            let key = line.trim_start();
            let depth = (line.len() - key.len()) / 2;
            if let Some((key, _)) = key.split_once(':')
                && depth <= sections.len()
            {
                sections.truncate(depth);
                sections.push(key);
                let path = sections.join(".");
                if known.contains(&path) {
                    shown.push_str("  # ");
                    shown.push_str(&self.of(&path).to_string());
                }
            }
            shown.push('\n');
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_is_shown_with_where_it_comes_from() {
        let text = "lease: {ttl: 5s}\nserver:\n  tokens: [{token: hush}]\n";
        let mut config: Config = serde_saphyr::from_str(text).unwrap();
        config.log.level = "warn".into();
        let mut origins = Origins::default();
        origins.note_file(text);
        origins.note("log.level", Origin::Environment("LEASEHOLD_LOG".into()));
        origins.note("server.data_dir", Origin::Flag("--data-dir"));
        let yaml = serde_saphyr::to_string(&config).unwrap();
        let shown = origins.annotate(&yaml);
        for line in [
            "  ttl: 5s  # file",
            "  level: warn  # LEASEHOLD_LOG",
            "  margin: null  # default",
            "  data_dir: null  # --data-dir",
            "  credentials:  # file",
            "    keeps: 8192  # default",
        ] {
            assert!(shown.lines().any(|it| it == line), "{line}:\n{shown}");
        }
        // What is shown can be a file again.
        let again: Config = serde_saphyr::from_str(&shown).unwrap();
        assert_eq!(again.lease.ttl.millis(), 5_000);
    }
}
