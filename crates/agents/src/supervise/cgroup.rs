//! A cgroup (version 2) for one tree, where this process may make one: the kernel then kills the
//! whole tree in one step, however fast it forks.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A cgroup of our own, removed on drop.
#[derive(Debug)]
pub(super) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes one below this process's own. `None` where that is not possible: no cgroup v2, no
    /// permission, or a kernel that cannot kill a cgroup.
    pub(super) fn create() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = own_folder(&mounts, &own)?.join(format!("leasehold-{}", std::process::id()));
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
