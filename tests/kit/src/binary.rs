//! The project's own binary, as built for the tests that run now.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::SystemTime;

use nix::fcntl::{Flock, FlockArg};

use crate::{Error, Program};

/// Finds the binary under test.
#[derive(Debug)]
pub struct Binary;

impl Binary {
    /// The binary `leasehold`, ready to be given arguments and spawned.
    ///
    /// # Panics
    ///
    /// When it is missing or outdated and cannot be built.
    pub fn leasehold() -> Program {
        Program::new(Self::leasehold_path())
    }

    /// Where the binary `leasehold` is. It is built first when it is missing or older than its
    /// sources; test processes that start together wait for one of them to do so.
    ///
    /// # Panics
    ///
    /// When it is missing or outdated and cannot be built.
    pub fn leasehold_path() -> &'static Path {
        static PATH: OnceLock<PathBuf> = OnceLock::new();
        PATH.get_or_init(|| match locate() {
            Ok(path) => path,
            Err(error) => panic!("{error}"),
        })
    }
}

/// The folder that this program was built into: `target/<profile>`.
pub(crate) fn profile_folder() -> Result<PathBuf, Error> {
    let this = std::env::current_exe().map_err(Error::io("find this test's own program"))?;
    // target/<profile>/deps/<test>, or target/<profile>/<program>.
    let folder = this.parent().unwrap_or(Path::new("/"));
    let profile = if folder.ends_with("deps") {
        folder.parent().unwrap_or(folder)
    } else {
        folder
    };
    Ok(profile.to_path_buf())
}

fn locate() -> Result<PathBuf, Error> {
    let profile = profile_folder()?;
    let binary = profile.join("leasehold");
    let stamp = profile.join(".leasehold-checked");
    if is_current(&binary, &stamp) {
        return Ok(binary);
    }
    let lock = File::create(profile.join(".leasehold-lock"))
        .map_err(Error::io("create the lock of the build"))?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusive)
        .map_err(|(_, errno)| Error::io("lock the build")(errno.into()))?;
    // Somebody else may have built while this process waited.
    if !is_current(&binary, &stamp) {
        build(&profile)?;
        // Cargo leaves a binary alone whose contents did not change, however new its sources look.
        File::create(&stamp).map_err(Error::io("note the build"))?;
    }
    Ok(binary)
}

fn build(profile: &Path) -> Result<(), Error> {
    let name = match profile.file_name().and_then(|name| name.to_str()) {
        None | Some("debug") => "dev",
        Some(other) => other,
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        // The whole workspace, so that dependencies keep the features they were built with.
        .args(["build", "--workspace", "--bin", "leasehold", "--profile", name])
        .arg("--target-dir")
        .arg(profile.parent().unwrap_or(profile))
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .stdin(Stdio::null())
        .output()
        .map_err(Error::io("run cargo"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Command {
        command: "cargo build --workspace --bin leasehold".into(),
        status: output.status.to_string(),
        output: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Whether the binary is there and none of its sources is newer. Cargo writes the list of sources
/// beside the binary, so this costs some hundred `stat` calls and no process.
fn is_current(binary: &Path, stamp: &Path) -> bool {
    let Some(built) = modified(binary) else {
        return false;
    };
    let checked = modified(stamp).map_or(built, |stamp| stamp.max(built));
    let Ok(list) = fs::read_to_string(binary.with_extension("d")) else {
        return false;
    };
    let Some((_, sources)) = list.split_once(": ") else {
        return false;
    };
    // Spaces in paths are escaped in that list; such a path is then "missing", and cargo decides.
    sources
        .split_whitespace()
        .all(|source| modified(Path::new(source)).is_some_and(|source| source <= checked))
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|data| data.modified()).ok()
}
