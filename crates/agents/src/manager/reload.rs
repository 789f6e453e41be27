//! Reads the manager's own file again when it, or a file that it names, changes, or on SIGHUP. A wrong file is
//! reported and the running settings stay.

use std::{
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use leasehold_client::Outcome;
use rustix::{
    fs::inotify::{CreateFlags, WatchFlags, add_watch, init},
    io::{Errno, read},
};
use tokio::{
    io::unix::AsyncFd,
    signal::unix::{SignalKind, signal},
};

use super::{Settings, core::Core};

/// How often the files are looked at beside the kernel's notices: not every file system gives them.
const LOOK_MS: u64 = 500;
/// A file that is being written is read when it stood still for so long.
const SETTLE_MS: u64 = 200;

/// What a file came to.
pub struct Loaded {
    /// The settings, with the environment on top.
    pub settings: Settings,
    /// The control plane, with the credential.
    pub server: leasehold_client::Options,
}

/// Reads the file and the environment again.
pub type Load = Arc<dyn Fn() -> Result<Loaded, String> + Send + Sync>;

type Mark = Option<(u64, u64, i64, i64)>;

fn mark(file: &Path) -> Mark {
    let it = std::fs::metadata(file).ok()?;
    Some((it.ino(), it.len(), it.mtime(), it.mtime_nsec()))
}

fn marks(files: &[PathBuf]) -> Vec<Mark> {
    files.iter().map(|file| mark(file)).collect()
}

/// The kernel's notices of what happens in the folders of files, and in those of the files which they link to:
/// there a replacement by a rename or by a changed link shows.
struct Notices(Option<AsyncFd<OwnedFd>>);

impl Notices {
    fn of(files: &[PathBuf]) -> Self {
        Self(Self::open(files).ok())
    }

    #[expect(
        deprecated,
        reason = "sound for a descriptor that nobody else can close"
    )]
    fn open(files: &[PathBuf]) -> std::io::Result<AsyncFd<OwnedFd>> {
        let notices = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let what = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE
            | WatchFlags::ONLYDIR;
        let linked = files.iter().filter_map(|file| file.canonicalize().ok());
        for file in files.iter().cloned().chain(linked) {
            let folder = file.parent().filter(|it| !it.as_os_str().is_empty());
            add_watch(&notices, folder.unwrap_or(Path::new(".")), what)?;
        }
        AsyncFd::new(notices)
    }

    /// Waits for the next; for ever where there are none.
    async fn next(&mut self) {
        if let Some(notices) = &self.0
            && Self::read(notices).await.is_err()
        {
            self.0 = None;
        }
        if self.0.is_none() {
            std::future::pending::<()>().await;
        }
    }

    async fn read(notices: &AsyncFd<OwnedFd>) -> std::io::Result<()> {
        let mut ready = notices.readable().await?;
        // What they say does not matter: the files are looked at.
        let mut buffer = [0; 4096];
        loop {
            match read(notices.get_ref(), &mut buffer) {
                Ok(1..) | Err(Errno::INTR) => {}
                Ok(0) | Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        ready.clear_ready();
        Ok(())
    }
}

pub(super) async fn run(core: Arc<Core>, file: PathBuf, load: Load) {
    let mut hangup = signal(SignalKind::hangup()).ok();
    let files = || {
        let settings = core.settings.load();
        let named = [&settings.api_key_file, &settings.ca_file];
        let named = named.into_iter().flatten().cloned();
        std::iter::once(file.clone()).chain(named).collect()
    };
    let mut watched: Vec<PathBuf> = files();
    let mut notices = Notices::of(&watched);
    let mut seen = marks(&watched);
    loop {
        let asked = async {
            match &mut hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        let forced = tokio::select! {
            _ = asked => true,
            () = notices.next() => false,
            () = core.sleep_ms(LOOK_MS) => false,
        };
        let mut now = marks(&watched);
        if !forced && now == seen {
            continue;
        }
        loop {
            core.sleep_ms(SETTLE_MS).await;
            let again = marks(&watched);
            if again == now {
                break;
            }
            now = again;
        }
        match load() {
            Ok(loaded) => apply(&core, loaded).await,
            Err(error) => {
                tracing::error!(%error, "wrong configuration; the running one stays");
            }
        }
        // They may be others, or link to other folders, by now. What changed since they were read shows.
        let newer = files();
        let known = |file: &PathBuf| watched.iter().zip(&now).find(|(it, _)| *it == file);
        seen = newer
            .iter()
            .map(|file| known(file).map_or_else(|| mark(file), |(_, mark)| *mark))
            .collect();
        watched = newer;
        notices = Notices::of(&watched);
    }
}

async fn apply(core: &Arc<Core>, loaded: Loaded) {
    let old = core.settings.load_full();
    let changes = old.changes(&loaded.settings);
    let mut shown: Vec<String> = changes.iter().map(ToString::to_string).collect();
    let new = loaded.settings.keeping_identity(&old);
    let changed = |keys: &[&str]| changes.iter().any(|it| keys.contains(&it.key.as_str()));
    let mut causes = Vec::new();
    // A manager on the database has a control plane of its own.
    if old.database_url.is_none() && !core.plane.uses(&loaded.server) {
        if let Err(error) = core.plane.replace(loaded.server) {
            tracing::error!(%error, "wrong configuration; the running one stays");
            return;
        }
        if !changed(&["control_plane_url", "api_key", "api_key_file", "ca_file"]) {
            shown.push("API key or certificates: as their files have them".into());
        }
        causes.push("new client");
        core.replaced.notify_one();
    }
    if shown.is_empty() {
        tracing::info!("configuration read again: nothing changed");
        return;
    }
    let registers = changed(&[
        "max_workers",
        "max_cameras_per_worker",
        "deployment_group",
        "deployment_version",
        "capabilities",
        "advertise_host",
    ]);
    if changed(&["worker.command", "worker.environment", "worker.log_level"]) {
        causes.push("workers replaced one by one");
    }
    if changed(&["lease_ttl_seconds", "on_outage", "outage_grace_seconds"]) {
        causes.push("leases acquired from now on");
    }
    core.peers.configured(new.peers.0.clone());
    core.settings.store(Arc::new(new));
    core.set_slots();
    if registers {
        causes.push("registered again");
        if let Outcome::No(error) | Outcome::Unknown(error) =
            core.plane.register(&core.registration()).await
        {
            tracing::warn!(%error, "not re-registered; the next start will");
        }
        shrink(core);
    }
    core.beat.notify_one();
    core.acquire.notify_one();
    tracing::info!(
        changes = shown.join("; "),
        causes = causes.join("; "),
        "configuration changed"
    );
}

/// Gives up what there is no room for any more, the newest first.
fn shrink(core: &Core) {
    let capacity = core.settings.load().capacity();
    let extra: Vec<String> = {
        let state = core.state();
        let mut held: Vec<_> = state
            .held
            .iter()
            .map(|(name, it)| (it.since, name))
            .collect();
        held.sort();
        held.into_iter()
            .skip(capacity)
            .map(|(_, name)| name.clone())
            .collect()
    };
    core.give_up(&extra, "capacity");
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn writing_replacing_and_linking_a_file_anew_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("manager.yaml");
        fs::write(&file, "a").unwrap();
        let files = [file.clone()];
        let mut notices = Notices::of(&files);
        assert!(notices.0.is_some(), "the kernel gives notices");
        fs::write(&file, "b").unwrap();
        notices.next().await;
        let fresh = folder.path().join("fresh");
        fs::write(&fresh, "c").unwrap();
        fs::rename(&fresh, &file).unwrap();
        notices.next().await;

        // A link into another folder: what happens there shows too.
        let elsewhere = tempfile::tempdir().unwrap();
        let target = elsewhere.path().join("target.yaml");
        fs::write(&target, "d").unwrap();
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&target, &file).unwrap();
        let mut notices = Notices::of(&files);
        fs::write(&target, "e").unwrap();
        notices.next().await;
    }
}
