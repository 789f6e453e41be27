//! The configuration: defaults, then the file, then the environment, then flags; the later one wins.

mod environment;
mod file;
mod limits;
mod period;
mod sections;
mod sessions;
mod timing;

use std::path::{Path, PathBuf};

pub use environment::{SETTINGS, unknown_variables};
pub use file::{nearest, read};
pub use limits::Limits;
pub use period::Period;
pub use sections::{Config, Log, LogFormat, Server};
pub use sessions::Sessions;
pub use timing::{check as check_timing, worst_case};

use crate::exit::{Exit, Failure};

/// The environment variable that names the file.
pub const FILE_VARIABLE: &str = "LEASEHOLD_CONFIG";

/// Where a configuration comes from: everything but the flags of a verb.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file, if one is named.
    pub file: Option<PathBuf>,
    /// The environment.
    pub variables: Vec<(String, String)>,
}

impl Sources {
    /// This process's environment, and the file that a flag or the environment names.
    pub fn of_process(file: Option<&Path>) -> Self {
        let variables: Vec<(String, String)> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let named = variables
            .iter()
            .find(|(name, value)| name == FILE_VARIABLE && !value.is_empty())
            .map(|(_, value)| PathBuf::from(value));
        Self {
            file: file.map(Path::to_path_buf).or(named),
            variables,
        }
    }

    /// Reads and layers everything. Timing is not judged yet: flags may change it.
    pub fn load(&self) -> Result<Config, Failure> {
        let mut config = match &self.file {
            Some(path) => file::read(path)?,
            None => Config::default(),
        };
        environment::apply(&mut config, &self.variables)?;
        Ok(config)
    }
}

/// A wrong configuration, with what is wrong.
pub(crate) fn wrong(message: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Config, message)
}
