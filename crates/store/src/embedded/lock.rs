//! One process per folder.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use super::{OpenError, private};

/// Held for as long as the store is open. The kernel lets go of it with the process, however that ends.
pub(super) struct Lock {
    _file: File,
}

/// Takes the folder, or says who has it.
pub(super) fn take(dir: &Path) -> Result<Lock, OpenError> {
    let path = dir.join("lock");
    let io = |source| OpenError::Io {
        path: path.clone(),
        source,
    };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(private::FILE_MODE)
        .open(&path)
        .map_err(io)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // Only for the message: a lock without a readable owner is a lock all the same.
            let _ = file.read_to_string(&mut pid);
            return Err(OpenError::InUse {
                dir: dir.to_owned(),
                pid: pid.trim().parse().ok(),
            });
        }
        Err(TryLockError::Error(source)) => return Err(io(source)),
    }
    let write = |file: &mut File| {
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        writeln!(file, "{}", std::process::id())
    };
    // The number is for people; a full disk does not make the lock less held.
    if let Err(error) = write(&mut file) {
        tracing::warn!(%error, "the process id could not be written to the lock file");
    }
    Ok(Lock { _file: file })
}
