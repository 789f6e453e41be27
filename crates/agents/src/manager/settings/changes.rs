//! What changed between two settings, and what of that a running manager can take.

use std::{collections::BTreeMap, fmt};

use leasehold_api::{config, redact};

use super::Settings;

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
    pub key: String,
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

impl Settings {
    /// What changed between two settings, one line per key, and whether it takes a restart.
    pub fn changes(&self, newer: &Self) -> Vec<Change> {
        let flat = |settings: &Self| {
            let mut flat = BTreeMap::new();
            let shown = serde_json::to_value(settings).unwrap_or_default();
            for config::Described { path, .. } in config::describe(&mut settings.clone()) {
                let found = path.split('.').try_fold(&shown, |at, part| at.get(part));
                let text = found.map_or_else(String::new, ToString::to_string);
                flat.insert(path, text);
            }
            // Shown as hidden, compared as they are.
            for (key, secret) in [
                ("api_key", &settings.api_key),
                ("database_url", &settings.database_url),
            ] {
                let text = secret.as_ref().map(secrecy::ExposeSecret::expose_secret);
                flat.insert(key.to_owned(), text.unwrap_or_default().to_owned());
            }
            flat
        };
        let (old, new) = (flat(self), flat(newer));
        old.into_iter()
            .filter(|(key, text)| new.get(key) != Some(text))
            .map(|(key, text)| {
                let secret = matches!(key.as_str(), "api_key" | "database_url");
                let show = |text: &str| match (secret, text.is_empty()) {
                    (true, false) => redact::HIDDEN.to_owned(),
                    _ => text.to_owned(),
                };
                Change {
                    from: show(&text),
                    to: show(new.get(&key).map_or("", String::as_str)),
                    needs_restart: NEED_RESTART.contains(&key.as_str()),
                    key,
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

#[cfg(test)]
mod tests {
    use super::super::tests::{LEAST, read};

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
