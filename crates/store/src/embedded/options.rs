//! Settings.

use std::path::PathBuf;

use lease::engine;

/// Settings of an embedded authority.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of the store. Made when it does not exist; not used by the in-memory variant.
    pub dir: PathBuf,
    /// The engine's own settings, among them which renewals are kept.
    pub engine: engine::Options,
    /// How much of the past is kept.
    pub history: History,
    /// How many requests may be queued before callers wait.
    pub queue: usize,
    /// How many events a watcher may be behind before it gets a snapshot instead.
    pub watch_buffer: usize,
    /// How many changed keys there may be of which the table of slots does not have the newest. With more of
    /// them it is written less often, and a restart has more to read.
    pub recent_keys: usize,
    /// What to do at the start when stored state is damaged or missing.
    pub on_damage: OnDamage,
}

impl Options {
    /// The defaults, in this folder.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            ..Self::default()
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dir: PathBuf::new(),
            engine: engine::Options::default(),
            history: History::default(),
            queue: 16_384,
            watch_buffer: 16_384,
            recent_keys: 524_288,
            on_damage: OnDamage::default(),
        }
    }
}

/// How much of the past is kept. Whichever limit is reached first counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct History {
    /// The age at which an event is deleted, in ms.
    pub max_age_ms: u64,
    /// How many events are kept.
    pub max_events: u64,
}

impl Default for History {
    /// Thirty days, and at most a million events (about 250 MB).
    fn default() -> Self {
        Self {
            max_age_ms: 30 * 24 * 3_600_000,
            max_events: 1_000_000,
        }
    }
}

/// What to do at the start when stored state is damaged or missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDamage {
    /// Say what is wrong, and do not start.
    #[default]
    Refuse,
    /// Move a damaged file aside, or take what an older one still has, and go on with larger tokens and
    /// revisions than were ever handed out. What was lost is lost: its holders find out at their next
    /// renewal.
    GoOn,
}
