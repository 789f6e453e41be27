//! Reads the manager's own file again when it changes, or on SIGHUP. A wrong file is reported and the
//! running settings stay.

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

/// How often the file is looked at beside the kernel's notices: not every file system gives them.
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

/// The kernel's notices of what happens in the folder of a file, and in that of the file which it links to:
/// there a replacement by a rename or by a changed link shows.
struct Notices(Option<AsyncFd<OwnedFd>>);

impl Notices {
    fn of(file: &Path) -> Self {
        Self(Self::open(file).ok())
    }

    #[expect(
        deprecated,
        reason = "sound for a descriptor that nobody else can close"
    )]
    fn open(file: &Path) -> std::io::Result<AsyncFd<OwnedFd>> {
        let notices = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let what = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE
            | WatchFlags::ONLYDIR;
        let linked = file.canonicalize();
        for file in [Ok(file.to_owned()), linked].into_iter().flatten() {
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
        // What they say does not matter: the file is looked at.
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
    let mut notices = Notices::of(&file);
    let mut seen = mark(&file);
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
        let mut now = mark(&file);
        if !forced && now == seen {
            continue;
        }
        loop {
            core.sleep_ms(SETTLE_MS).await;
            let again = mark(&file);
            if again == now {
                break;
            }
            now = again;
        }
        seen = now;
        // It may link to another folder by now.
        notices = Notices::of(&file);
        match load() {
            Ok(loaded) => apply(&core, loaded).await,
            Err(error) => {
                tracing::error!(%error, "wrong configuration; the running one stays");
            }
        }
    }
}

async fn apply(core: &Arc<Core>, loaded: Loaded) {
    let old = core.settings.load_full();
    let changes = old.changes(&loaded.settings);
    if changes.is_empty() {
        tracing::info!("configuration read again: nothing changed");
        return;
    }
    let new = loaded.settings.keeping_identity(&old);
    let changed = |keys: &[&str]| changes.iter().any(|it| keys.contains(&it.key.as_str()));
    let mut causes = Vec::new();
    if changed(&["control_plane_url", "api_key", "api_key_file", "ca_file"]) {
        if let Err(error) = core.plane.replace(loaded.server) {
            tracing::error!(%error, "wrong configuration; the running one stays");
            return;
        }
        causes.push("new client");
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
    let shown: Vec<String> = changes.iter().map(ToString::to_string).collect();
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
        let mut notices = Notices::of(&file);
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
        let mut notices = Notices::of(&file);
        fs::write(&target, "e").unwrap();
        notices.next().await;
    }
}
