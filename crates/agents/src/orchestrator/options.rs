//! How sessions are run.

use std::{collections::BTreeMap, path::PathBuf};

use lease::{HolderName, Invalid, Ttl};
use serde::{Deserialize, Serialize};

/// How a stream is made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "pipeline", deny_unknown_fields)]
pub enum Profile {
    /// ffmpeg to HLS, with the picture this high; `virtual` where ffmpeg is not installed.
    Ffmpeg {
        /// Lines of the picture.
        #[serde(default = "default_height")]
        height: u16,
    },
    /// Any program that writes HLS. `{source}`, `{playlist}`, `{dir}` and `{start_seconds}` are
    /// replaced in each argument; there is no shell in between. `{source}` has no login: the whole address
    /// is in the variable `LEASEHOLD_SOURCE`.
    Command {
        /// The program and its arguments.
        command: Vec<String>,
    },
    /// A tiny generated stream, without a child.
    Virtual,
}

fn default_height() -> u16 {
    360
}

/// The profiles that are there without configuration.
pub fn built_in_profiles() -> BTreeMap<String, Profile> {
    BTreeMap::from([
        ("auto".into(), Profile::Ffmpeg { height: 360 }),
        ("high".into(), Profile::Ffmpeg { height: 720 }),
        ("low".into(), Profile::Ffmpeg { height: 180 }),
        ("virtual".into(), Profile::Virtual),
    ])
}

/// Settings of an orchestrator.
#[derive(Clone, Debug)]
pub struct Options {
    /// The worker's stable name. A restart under the same name frees what its predecessor held.
    pub name: HolderName,
    /// Whether nobody chose the name: then another one is taken when a live worker has it already.
    pub default_name: bool,
    /// The slots of the pool `tuner`, in order of preference.
    pub tuner_slots: Vec<String>,
    /// How a stream is made, by name.
    pub profiles: BTreeMap<String, Profile>,
    /// Where streams come from: a URL with `{service_ref}`. Without it, a generated test picture.
    pub source_template: Option<String>,
    /// Where playlists and segments are written: a folder per session.
    pub output_dir: PathBuf,
    /// Where servers on other machines fetch them: `http://HOST:PORT` of [`crate::serve_worker`].
    pub streams_url: Option<String>,
    /// The ttl of the dedup and tuner leases.
    pub lease_ttl: Ttl,
    /// How many pipelines may be launched at the same time. Until one is playable, it holds up neither
    /// another start nor a stop.
    pub concurrent_starts: usize,
    /// How long a pipeline may take until it is playable, in ms.
    pub start_limit_ms: u64,
    /// How long a pipeline may take to stop before it is killed, in ms.
    pub stop_limit_ms: u64,
    /// How long a running pipeline may produce nothing, in ms.
    pub stall_limit_ms: u64,
    /// How often sessions are looked through, in case an event was lost, in ms.
    pub scan_interval_ms: u64,
}

impl Options {
    /// The defaults of the contract.
    pub fn new(name: HolderName, output_dir: PathBuf) -> Self {
        Self {
            name,
            default_name: false,
            tuner_slots: ["0", "1", "2", "3"].map(String::from).to_vec(),
            profiles: built_in_profiles(),
            source_template: None,
            output_dir,
            streams_url: None,
            lease_ttl: Ttl::from_secs(30).expect("30 seconds are a ttl"),
            concurrent_starts: 8,
            start_limit_ms: 20_000,
            stop_limit_ms: 3_000,
            stall_limit_ms: 15_000,
            scan_interval_ms: 10_000,
        }
    }

    /// Refuses settings that cannot work.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.tuner_slots.is_empty() || self.tuner_slots.len() > lease::Acquire::MAX_KEYS {
            return Err(Invalid::new("sessions.tuner_slots", "1 to 256 slots"));
        }
        for (index, slot) in self.tuner_slots.iter().enumerate() {
            lease::Key::new("tuner", slot)?;
            if self.tuner_slots[..index].contains(slot) {
                return Err(Invalid::new("sessions.tuner_slots", "each slot only once"));
            }
        }
        if self.concurrent_starts == 0
            || self.start_limit_ms == 0
            || self.stop_limit_ms == 0
            || self.stall_limit_ms == 0
            || self.scan_interval_ms == 0
        {
            return Err(Invalid::new("sessions", "limits and intervals above 0"));
        }
        // The holder must have stopped the pipeline before its lease ends.
        if self.stop_limit_ms > self.lease_ttl.millis() / 2 {
            return Err(Invalid::new(
                "sessions.stop_limit",
                "at most half of the lease's ttl",
            ));
        }
        if let Some(template) = &self.source_template {
            super::pipeline::check_source(&template.replace("{service_ref}", "x"))?;
        }
        for profile in self.profiles.values() {
            if let Profile::Command { command } = profile
                && command.first().is_none_or(String::is_empty)
            {
                return Err(Invalid::new("sessions.profiles.command", "a program"));
            }
        }
        Ok(())
    }
}
