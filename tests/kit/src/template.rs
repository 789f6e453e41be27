//! The data of a fresh PostgreSQL, made once and copied for every server: a copy takes a fifth of what
//! `initdb` takes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::{
    Dir, Error, Program, binary,
    postgres::{SUPERUSER, as_service_user, give_to_service_user},
};

/// Makes `data` the folder of a fresh database, with the owner and the rights that a server wants.
pub(crate) async fn copy(programs: &Path, data: &Path) -> Result<(), Error> {
    let template = template(programs).await?;
    copy_folder(&template, data).await
}

/// Where the template is. It is made when it is missing; test processes that start together wait for
/// one of them to do so.
async fn template(programs: &Path) -> Result<PathBuf, Error> {
    let profile = binary::profile_folder()?;
    // The programs of version 15 are in `15/bin`. A change of how it is made wants another name here.
    let version = programs.parent().and_then(Path::file_name);
    let version = version.unwrap_or_default().to_string_lossy();
    let template = profile.join(format!("postgres-{version}-template-1"));
    if template.exists() {
        return Ok(template);
    }
    let lock = File::create(profile.join(".postgres-lock"))
        .map_err(Error::io("create the lock of the template"))?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusive)
        .map_err(|(_, errno)| Error::io("lock the template")(errno.into()))?;
    if !template.exists() {
        // Not where it will be: the user who makes it may have no way into that folder.
        let dir = Dir::try_new("postgres-template")?;
        let data = dir.make("data")?;
        give_to_service_user(&[&data])?;
        init(programs, &data).await?;
        let unfinished = template.with_extension("new");
        let _ = fs::remove_dir_all(&unfinished);
        copy_folder(&data, &unfinished).await?;
        fs::rename(&unfinished, &template).map_err(Error::io("finish the template"))?;
    }
    Ok(template)
}

async fn init(programs: &Path, data: &Path) -> Result<(), Error> {
    as_service_user(Program::new(programs.join("initdb")))
        .args(["--username", SUPERUSER])
        .args(["--auth", "trust"])
        .args(["--encoding", "UTF8", "--locale", "C"])
        .args(["--no-sync", "--no-instructions"])
        // Sixteen times smaller than usual: less to copy.
        .args(["--wal-segsize", "1", "--pgdata"])
        .arg(data)
        .current_dir(data)
        .run()
        .await?;
    Ok(())
}

async fn copy_folder(from: &Path, to: &Path) -> Result<(), Error> {
    Program::new("cp")
        .args(["--archive", "--reflink=auto", "--no-target-directory"])
        .args([from, to])
        .run()
        .await?;
    Ok(())
}
