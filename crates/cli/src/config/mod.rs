//! The configuration: defaults, then the file, then the environment, then flags; the later one wins.

mod environment;
mod file;
mod origin;
mod reference;
mod sections;
mod sessions;
mod timing;

use std::path::{Path, PathBuf};

pub use environment::{secret_variables, unknown_variables, variables};
pub use file::{nearest, read};
pub use leasehold_api::config::Period;
pub use origin::{Origin, Origins};
pub use reference::reference;
pub use sections::{Config, Log, LogFormat, Server};
pub use sessions::Sessions;
pub use timing::{check as check_timing, parse_ttl, worst_case};

use crate::exit::{Exit, Failure};

/// The environment variable that names the file.
pub const FILE_VARIABLE: &str = "LEASEHOLD_CONFIG";

/// Where a configuration comes from: everything but the flags of a command.
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

    /// Reads and layers everything, and notes where each setting comes from. Timing is not judged yet:
    /// flags may change it.
    pub fn load(&self) -> Result<(Config, Origins), Failure> {
        let mut origins = Origins::default();
        let mut config = match &self.file {
            Some(path) => {
                let (config, text) = file::read_with_text(path)?;
                origins.note_file(&text);
                config
            }
            None => Config::default(),
        };
        for (path, variable) in environment::apply(&mut config, &self.variables)? {
            origins.note(path, Origin::Environment(variable));
        }
        Ok((config, origins))
    }
}

/// A wrong configuration, with what is wrong.
pub(crate) fn wrong(message: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Config, message)
}
