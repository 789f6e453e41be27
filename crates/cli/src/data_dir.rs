//! Where the local server keeps its state and its first credential.

use std::path::PathBuf;

use crate::config::Config;

/// The file in the data folder with the admin token that the first start makes.
pub const ADMIN_TOKEN_FILE: &str = "admin.token";

/// The data folder: configured, or in the user's data home. `None` when there is no home either.
pub fn find(config: &Config) -> Option<PathBuf> {
    config.server.data_dir.clone().or_else(|| {
        // The specification ignores relative paths.
        let absolute = |name| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let data_home = absolute("XDG_DATA_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
        data_home.map(|folder| folder.join("leasehold"))
    })
}
