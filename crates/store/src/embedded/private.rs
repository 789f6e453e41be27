//! What is stored is for its owner only, whoever made the folder: it holds other people's secrets.

use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

/// For the owner only.
pub(super) const FILE_MODE: u32 = 0o600;

/// Makes the folder if there is none.
pub(super) fn folder(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Closes the files of a store to others. SQLite gives the files beside the database the same
/// permissions.
pub(super) fn file(database: &Path) -> io::Result<()> {
    for suffix in ["", "-wal", "-shm"] {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        match fs::metadata(&name) {
            Ok(found) if found.permissions().mode() & 0o077 != 0 => {
                fs::set_permissions(&name, Permissions::from_mode(FILE_MODE))?;
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes an empty file for the owner only, unless there is one.
pub(super) fn create(path: &Path) -> io::Result<()> {
    let made = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(path);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
