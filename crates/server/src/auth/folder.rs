//! The server's data folder: the first administrator's secret, and the credentials of older versions,
//! which kept them there.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use leasehold_api::Time;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use super::{Error, Scope, secret};

/// The list of credentials of older versions; what it holds is moved into the store.
const OLDER_FILE: &str = "tokens.json";
/// Where the list is put when it was moved.
const MOVED_FILE: &str = "tokens.json.moved";
/// The administrator's secret that the first start makes: the command line picks it up.
pub const ADMIN_TOKEN_FILE: &str = "admin.token";

/// A credential as older versions stored it.
#[derive(Debug, Deserialize)]
pub(super) struct Older {
    pub id: String,
    pub name: String,
    pub sha256: String,
    pub scopes: Vec<Scope>,
    #[serde(default)]
    pub tenant: Option<String>,
    pub created_at: Time,
}

/// The data folder.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    dir: PathBuf,
}

impl Folder {
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
        }
    }

    /// The administrator's secret: the one that is there, or a new one, readable by the owner only. Of
    /// two processes that make one at the same time, both have the one that was first.
    pub fn admin(&self) -> Result<SecretString, Error> {
        let path = self.dir.join(ADMIN_TOKEN_FILE);
        let made = secret::new_secret(&secret::new_id());
        let write = || -> io::Result<()> {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.dir)?;
            // Written beside it first: the file is whole or not there.
            let beside = self
                .dir
                .join(format!("{ADMIN_TOKEN_FILE}.{}", secret::new_id()));
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&beside)?;
            writeln!(file, "{}", made.expose_secret())?;
            file.sync_all()?;
            let linked = fs::hard_link(&beside, &path);
            fs::remove_file(&beside)?;
            linked?;
            File::open(&self.dir)?.sync_all()
        };
        if !path.exists() {
            match write() {
                Ok(()) => return Ok(made),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&path, error)),
            }
        }
        let text = fs::read_to_string(&path).map_err(|error| failed(&path, error))?;
        Ok(text.trim().to_owned().into())
    }

    /// What an older version left here.
    pub fn older(&self) -> Result<Vec<Older>, Error> {
        let path = self.dir.join(OLDER_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(&path, error)),
        };
        serde_json::from_str(&text).map_err(|error| Error::Invalid {
            place: path.display().to_string(),
            problem: error.to_string(),
        })
    }

    /// What an older version left is in the store now: it is not moved again, whatever is revoked there.
    pub fn moved(&self) -> Result<(), Error> {
        let path = self.dir.join(OLDER_FILE);
        fs::rename(&path, self.dir.join(MOVED_FILE)).map_err(|error| failed(&path, error))
    }
}

fn failed(path: &Path, source: io::Error) -> Error {
    Error::Io {
        path: path.display().to_string(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_first_secret_is_made_once_and_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(&dir.path().join("data"));
        let made = folder.admin().unwrap();
        assert_eq!(
            folder.admin().unwrap().expose_secret(),
            made.expose_secret()
        );
        let file = dir.path().join("data").join(ADMIN_TOKEN_FILE);
        let mode = fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path().join("data")).unwrap().count(), 1);
    }
}
