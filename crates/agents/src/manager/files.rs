//! Files that others must not read, replaced in one step.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use serde::Serialize;

/// Writes JSON with mode 0600: a reader sees the old file or the new one, never a part.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(value)?;
    let fresh = path.with_extension("new");
    // A leftover of a crash may have another mode.
    let _ = fs::remove_file(&fresh);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)?;
    file.write_all(&text)?;
    drop(file);
    fs::rename(&fresh, path)
}

/// Makes a folder that only its owner may look into, or makes sure that it is one.
pub(super) fn make_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let found = fs::metadata(path)?;
    let own = found.uid() == nix::unistd::geteuid().as_raw();
    if !own || found.mode() & 0o077 != 0 {
        let why = format!(
            "{}: expected a folder of this user with mode 0700",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(())
}

/// Removes the workers' files that a manager of this name left behind when it was killed.
pub(super) fn clean(folder: &Path, runner_id: &str) {
    let prefix = format!("{runner_id}-");
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(&prefix) && (name.ends_with(".json") || name.ends_with(".new")) {
            // Gone already is what we want.
            let _ = fs::remove_file(entry.path());
        }
    }
}
