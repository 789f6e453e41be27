//! Where the local server keeps its state and its first credential.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::config::Config;

/// The file in the data folder with the admin credential that the first start makes.
pub const ADMIN_CREDENTIAL_FILE: &str = "admin.token";

/// The file in the data folder with the address of the server that uses it.
pub const ADDRESS_FILE: &str = "server.url";
/// An address is a line; a larger file is not one.
const MAX_ADDRESS_BYTES: u64 = 1024;

/// The address of the server that uses this folder, while it runs.
pub fn address(folder: &Path) -> Option<String> {
    let file = folder.join(ADDRESS_FILE);
    if fs::metadata(&file).ok()?.len() > MAX_ADDRESS_BYTES {
        return None;
    }
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned()).filter(|url| !url.is_empty())
}

/// The written-down address of a running server; gone when it stops.
pub struct Address(PathBuf);

impl Address {
    /// Writes it down.
    pub fn write(folder: &Path, url: &str) -> std::io::Result<Self> {
        let file = folder.join(ADDRESS_FILE);
        fs::write(&file, format!("{url}\n"))?;
        Ok(Self(file))
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        // The next start writes it anew; a client that reads an old one says which address it tried.
        let _ = fs::remove_file(&self.0);
    }
}

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
