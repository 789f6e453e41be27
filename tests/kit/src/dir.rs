//! Temporary folders that cannot be mistaken for anything else.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::{Error, janitor};

/// How every folder of the kit begins, below the system's folder for temporary files.
pub const PREFIX: &str = "leasehold-test-";

/// A temporary folder, removed with everything in it on drop.
#[derive(Debug)]
pub struct Dir {
    // `Option` only so that drop can remove the folder before it tells the janitor.
    inner: Option<TempDir>,
    path: PathBuf,
}

impl Dir {
    /// Makes a new, empty folder. `purpose` becomes part of its name.
    ///
    /// Anyone may look into it: services that run as another user live in it.
    ///
    /// # Panics
    ///
    /// When the folder cannot be made.
    pub fn new(purpose: &str) -> Self {
        match Self::try_new(purpose) {
            Ok(dir) => dir,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`Dir::new`], with the error returned.
    pub fn try_new(purpose: &str) -> Result<Self, Error> {
        let inner = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{purpose}-"))
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .map_err(Error::io("make a temporary folder"))?;
        let path = inner.path().to_path_buf();
        janitor::watch_dir(&path);
        // The process's umask may have narrowed the mode.
        fs::set_permissions(&path, Permissions::from_mode(0o755))
            .map_err(Error::io("open a temporary folder to other users"))?;
        Ok(Self {
            inner: Some(inner),
            path,
        })
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of `name` in the folder; nothing is created.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Makes a folder `name` in it.
    pub fn make(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.join(name);
        fs::create_dir_all(&path).map_err(Error::io(format!("make {}", path.display())))?;
        Ok(path)
    }

    /// Writes a file `name` in it.
    pub fn write(&self, name: &str, contents: &str) -> Result<PathBuf, Error> {
        let path = self.join(name);
        fs::write(&path, contents).map_err(Error::io(format!("write {}", path.display())))?;
        Ok(path)
    }
}

impl AsRef<Path> for Dir {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // A service that is still ending may add a file while the folder is being removed; the
        // janitor tries again when the process ends, because it is told only about success.
        if self.inner.take().is_some_and(|inner| inner.close().is_ok()) {
            janitor::forget_dir(&self.path);
        }
    }
}
