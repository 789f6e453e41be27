//! What the functions of PostgreSQL and the scripts of Redis take from Rust, on one page: numbers, the form
//! of ids, and sentences. It is put in when they are installed or loaded, so that no two copies differ.

use lease::{Token, engine};

/// How long a replica that is silent is remembered, with the answers that it did not fetch.
pub(crate) const REPLICA_KEPT_MS: u64 = 3_600_000;
/// After how much silence the answers of a replica's waiters are given back.
pub(crate) const REPLICA_GONE_MS: u64 = 30_000;
/// How often a replica with waiters is recorded as alive.
pub(crate) const SEEN_INTERVAL_MS: u64 = 500;
/// How long somebody who watches is notified without watching again.
pub(crate) const WATCHED_MS: u64 = 30_000;
/// How many values a script passes to one command at most: Lua's stack is limited.
pub(crate) const MOST_VALUES: u64 = 1_000;
/// How many keys a script reads with one command at most.
pub(crate) const MOST_KEYS: u64 = 500;

/// Why a lease that its waiter never heard of was released.
pub(crate) const WAITER_WENT_AWAY: &str = "its waiter went away";
/// Why a lease on Redis ended whose plain key has another value.
pub(crate) const KEY_TAKEN: &str = "its key was taken by another program";
/// Why a lease on Redis ended whose plain key is gone.
pub(crate) const KEY_REMOVED: &str = "its key was removed by another program";

/// The id of the grant with the revision `rev` at the time `n`, as [`lease::LeaseId::from_grant`] makes it.
pub(crate) const LEASE_ID_SQL: &str =
    "(lpad(to_hex(n), 12, '0') || '800080' || lpad(to_hex(rev), 14, '0'))::uuid";
/// The same in a script.
pub(crate) const LEASE_ID_LUA: &str = "
local function lease_id(at, revision)
  return string.format('%08x-%04x-8000-80%02x-%012x', math.floor(at / 65536), at % 65536,
    math.floor(revision / 281474976710656), revision % 281474976710656)
end
";

/// The numbers of both, by their names.
pub(crate) fn numbers() -> [(&'static str, u64); 8] {
    [
        ("MAX_TOKEN", Token::MAX.get()),
        ("MAX_WAITERS", engine::MAX_WAITERS as u64),
        ("REPLICA_KEPT_MS", REPLICA_KEPT_MS),
        ("REPLICA_GONE_MS", REPLICA_GONE_MS),
        ("SEEN_INTERVAL_MS", SEEN_INTERVAL_MS),
        ("WATCHED_MS", WATCHED_MS),
        ("MOST_VALUES", MOST_VALUES),
        ("MOST_KEYS", MOST_KEYS),
    ]
}

/// The sentences of both, by their names.
pub(crate) fn sentences() -> [(&'static str, &'static str); 3] {
    [
        ("WAITER_WENT_AWAY", WAITER_WENT_AWAY),
        ("KEY_TAKEN", KEY_TAKEN),
        ("KEY_REMOVED", KEY_REMOVED),
    ]
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// The lines of all functions and scripts, without comments.
    fn lines() -> Vec<(String, String)> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut lines = Vec::new();
        for folder in ["postgres/functions", "redis/lua"] {
            for file in fs::read_dir(source.join(folder)).expect("a folder") {
                let path = file.expect("a file").path();
                if !path
                    .extension()
                    .is_some_and(|end| end == "sql" || end == "lua")
                {
                    continue;
                }
                let text = fs::read_to_string(&path).expect("a text");
                for line in text.lines() {
                    let code = line.split("--").next().unwrap_or_default();
                    lines.push((path.display().to_string(), code.to_owned()));
                }
            }
        }
        assert!(lines.len() > 1_500, "{} lines", lines.len());
        lines
    }

    #[test]
    fn functions_and_scripts_have_no_numbers_of_their_own() {
        /// Seconds and milliseconds.
        const UNIT: &str = "1000";
        for (file, line) in lines() {
            let numbers =
                line.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            for number in numbers.filter(|word| word.bytes().all(|byte| byte.is_ascii_digit())) {
                assert!(number.len() < 3 || number == UNIT, "{file}: {line}");
            }
        }
    }

    #[test]
    fn ids_and_sentences_are_written_once() {
        for (file, line) in lines() {
            for text in ["to_hex", "%08x", "%012x"] {
                assert!(!line.contains(text), "{file}: {line}");
            }
            for (_, sentence) in sentences() {
                assert!(!line.contains(sentence), "{file}: {line}");
            }
        }
    }
}
