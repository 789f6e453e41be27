//! The tokens in the data folder: hashed, readable by the owner only, replaced in one step.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use lease::UnixMillis;
use leasehold_api::Time;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::{Error, Scope, new_secret, tokens::digest};

/// The list of tokens, hashed.
pub const TOKENS_FILE: &str = "tokens.json";
/// The administrator's token that the first start makes: the command line picks it up.
pub const ADMIN_TOKEN_FILE: &str = "admin.token";

/// A token as it is stored: everything but the secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// Names the token in lists and logs.
    pub id: String,
    /// What it is for.
    pub name: String,
    /// The SHA-256 digest of the secret, in hex.
    pub sha256: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// The tenant it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// When it was made.
    pub created_at: Time,
}

/// A token that was just made: the only time its secret is seen.
#[derive(Debug)]
pub struct Created {
    /// As it is stored.
    pub stored: Stored,
    /// The secret.
    pub secret: SecretString,
}

/// Tells one state of the file from another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Version {
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

/// The tokens of one data folder. Any number of processes may use it at the same time.
#[derive(Clone, Debug)]
pub struct TokenFile {
    dir: PathBuf,
}

impl TokenFile {
    /// The tokens in this folder.
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
        }
    }

    /// All tokens, oldest first.
    pub fn list(&self) -> Result<Vec<Stored>, Error> {
        let path = self.path();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io_error(&path, error)),
        };
        serde_json::from_str(&text).map_err(|error| Error::Invalid {
            place: path.display().to_string(),
            problem: error.to_string(),
        })
    }

    /// Makes a token.
    pub fn create(
        &self,
        name: &str,
        scopes: Vec<Scope>,
        tenant: Option<String>,
        now: UnixMillis,
    ) -> Result<Created, Error> {
        let _lock = self.lock()?;
        self.create_locked(name, scopes, tenant, now)
    }

    /// Removes the token with this id; `false` when there is none.
    pub fn revoke(&self, id: &str) -> Result<bool, Error> {
        let _lock = self.lock()?;
        let mut tokens = self.list()?;
        let before = tokens.len();
        tokens.retain(|token| token.id != id);
        if tokens.len() == before {
            return Ok(false);
        }
        self.save(&tokens)?;
        Ok(true)
    }

    /// Makes the first token and leaves its secret where only the owner can read it. When another
    /// process was faster, its token is kept.
    pub(super) fn create_admin(&self, now: UnixMillis) -> Result<(), Error> {
        let _lock = self.lock()?;
        if !self.list()?.is_empty() {
            return Ok(());
        }
        let created = self.create_locked("admin", Scope::everything(), None, now)?;
        let text = format!("{}\n", created.secret.expose_secret());
        self.replace(&self.dir.join(ADMIN_TOKEN_FILE), text.as_bytes())
    }

    pub(super) fn version(&self) -> Option<Version> {
        let metadata = fs::metadata(self.path()).ok()?;
        Some(Version {
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }

    fn create_locked(
        &self,
        name: &str,
        scopes: Vec<Scope>,
        tenant: Option<String>,
        now: UnixMillis,
    ) -> Result<Created, Error> {
        let secret = new_secret();
        let digest = digest(secret.expose_secret().as_bytes());
        let stored = Stored {
            // A part of the digest says nothing about the secret and differs for each.
            id: hex::encode(&digest[..6]),
            name: name.to_owned(),
            sha256: hex::encode(digest),
            scopes,
            tenant,
            created_at: now.into(),
        };
        let mut tokens = self.list()?;
        tokens.push(stored.clone());
        self.save(&tokens)?;
        Ok(Created { stored, secret })
    }

    fn save(&self, tokens: &[Stored]) -> Result<(), Error> {
        let path = self.path();
        let text = serde_json::to_vec_pretty(tokens).map_err(|error| Error::Invalid {
            place: path.display().to_string(),
            problem: error.to_string(),
        })?;
        self.replace(&path, &text)
    }

    /// Writes beside the file and renames: readers see the old or the new text, never a part.
    fn replace(&self, path: &Path, text: &[u8]) -> Result<(), Error> {
        let beside = path.with_extension("new");
        let write = || -> io::Result<()> {
            match fs::remove_file(&beside) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&beside)?;
            file.write_all(text)?;
            file.sync_all()?;
            fs::rename(&beside, path)?;
            File::open(&self.dir)?.sync_all()
        };
        write().map_err(|error| io_error(path, error))
    }

    /// Held while the list is read and replaced. The lock ends with the process, however it ends.
    fn lock(&self) -> Result<File, Error> {
        let path = self.dir.join("tokens.lock");
        let lock = || -> io::Result<File> {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.dir)?;
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .open(&path)?;
            file.lock()?;
            Ok(file)
        };
        lock().map_err(|error| io_error(&path, error))
    }

    fn path(&self) -> PathBuf {
        self.dir.join(TOKENS_FILE)
    }
}

fn io_error(path: &Path, source: io::Error) -> Error {
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
    fn tokens_are_kept_hashed_and_for_the_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = TokenFile::new(dir.path());
        let now = UnixMillis::new(1);
        let one = file
            .create("one", vec!["leases:read".parse().unwrap()], None, now)
            .unwrap();
        let two = file.create("two", vec![], Some("t".into()), now).unwrap();
        let text = fs::read_to_string(dir.path().join(TOKENS_FILE)).unwrap();
        assert!(!text.contains(one.secret.expose_secret()));
        let mode = |name: &str| {
            fs::metadata(dir.path().join(name))
                .unwrap()
                .permissions()
                .mode()
        };
        assert_eq!(mode(TOKENS_FILE) & 0o777, 0o600);
        assert!(file.revoke(&one.stored.id).unwrap());
        assert!(!file.revoke(&one.stored.id).unwrap());
        let left = file.list().unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].id, two.stored.id);
    }

    #[test]
    fn the_first_token_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = TokenFile::new(dir.path());
        file.create_admin(UnixMillis::new(1)).unwrap();
        let secret = fs::read_to_string(dir.path().join(ADMIN_TOKEN_FILE)).unwrap();
        file.create_admin(UnixMillis::new(2)).unwrap();
        assert_eq!(file.list().unwrap().len(), 1);
        assert_eq!(
            fs::read_to_string(dir.path().join(ADMIN_TOKEN_FILE)).unwrap(),
            secret
        );
        let mode = fs::metadata(dir.path().join(ADMIN_TOKEN_FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
