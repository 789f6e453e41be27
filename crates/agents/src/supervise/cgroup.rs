//! A cgroup (version 2) for one tree, where this process may make one: the kernel then kills the
//! whole tree in one step, however fast it forks.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::{errno::Errno, sys::signal::kill, unistd::Pid};

/// A cgroup of our own, removed on drop.
#[derive(Debug)]
pub(super) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes one below this process's own. `None` where that is not possible: no cgroup v2, no
    /// permission, or a kernel that cannot kill a cgroup.
    pub(super) fn create() -> Option<Self> {
        let path = folder()?.join(format!("{}{}", prefix()?, std::process::id()));
        fs::create_dir(&path).ok()?;
        let cgroup = Self { path };
        cgroup.path.join("cgroup.kill").exists().then_some(cgroup)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Kills everything in it.
    pub(super) fn kill(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.kill"), "1")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Fails while something still lives in it; then it is not ours to remove.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Kills what is left in the cgroups of guardians that are gone: when a guardian is killed, the kernel
/// ends its program, but nothing that the program started.
pub(super) fn end_orphans() {
    if let (Some(folder), Some(prefix)) = (folder(), prefix()) {
        end_orphans_in(&folder, &prefix);
    }
}

fn end_orphans_in(folder: &Path, prefix: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let guardian = name.to_str().and_then(|name| name.strip_prefix(prefix));
        let Some(guardian) = guardian.and_then(|pid| pid.parse().ok()) else {
            continue;
        };
        if kill(Pid::from_raw(guardian), None) == Err(Errno::ESRCH) {
            let orphaned = Cgroup { path: entry.path() };
            let _ = orphaned.kill();
        }
    }
}

/// How the cgroups are named that guardians of this process's namespace make: elsewhere, the same
/// process id is another process.
fn prefix() -> Option<String> {
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    let number = namespace.to_str()?.chars().filter(char::is_ascii_digit);
    Some(format!("leasehold-{}-", number.collect::<String>()))
}

fn folder() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    own_folder(&mounts, &own)
}

/// Moves this process into the cgroup at `path`.
pub(super) fn join(path: &Path) -> io::Result<()> {
    fs::write(path.join("cgroup.procs"), "0")
}

/// The folder of the cgroup v2 hierarchy in which this process lives.
fn own_folder(mounts: &str, own: &str) -> Option<PathBuf> {
    let mount = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (after.starts_with("cgroup2 ") && root == "/").then_some(point)
    })?;
    let inside = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount).join(inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cgroups_of_guardians_that_are_gone_are_ended() {
        let folder = tempfile::tempdir().unwrap();
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let (gone, alive) = (gone.id(), std::process::id());
        let names = [
            format!("leasehold-1-{gone}"),
            format!("leasehold-1-{alive}"),
            format!("leasehold-2-{gone}"),
            format!("other-1-{gone}"),
            "leasehold-1-".into(),
        ];
        for name in &names {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        end_orphans_in(folder.path(), "leasehold-1-");
        let killed = names.map(|name| folder.path().join(name).join("cgroup.kill").exists());
        assert_eq!(killed, [true, false, false, false, false]);
    }

    #[test]
    fn finds_the_folder_on_pure_and_mixed_systems() {
        let pure = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let own = "0::/user.slice/a.scope\n";
        let folder = own_folder(pure, own).unwrap();
        assert_eq!(folder, Path::new("/sys/fs/cgroup/user.slice/a.scope"));
        let mixed = "29 24 0:25 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                     30 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let own = "4:memory:/a\n0::/\n";
        let folder = own_folder(mixed, own).unwrap();
        assert_eq!(folder, Path::new("/sys/fs/cgroup/unified"));
        assert!(own_folder(pure, "4:memory:/a\n").is_none());
    }
}
