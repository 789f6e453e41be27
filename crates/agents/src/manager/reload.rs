//! Reads the manager's own file again when it changes, or on SIGHUP. A wrong file is reported and the
//! running settings stay.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use leasehold_client::Outcome;
use tokio::signal::unix::{SignalKind, signal};

use super::{Settings, core::Core};

/// How often the file is looked at. Its replacement by a rename or by a changed link shows the same way.
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

pub(super) async fn run(core: Arc<Core>, file: PathBuf, load: Load) {
    let mut hangup = signal(SignalKind::hangup()).ok();
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
            tracing::warn!(%error, "not registered again; the next start does");
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
