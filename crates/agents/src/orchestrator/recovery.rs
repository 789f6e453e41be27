//! Starting again under the same name: what the previous incarnation held is free immediately, and its
//! sessions are over.

use std::path::Path;

use lease::{
    Departure, Error, Holder, Key,
    session::{self, Session},
};

use leasehold_client::sessions;
use leasehold_clock::Backoff;

use super::{alive::Mark, output, records::Records};

/// Frees the leases of this name's earlier incarnations, ends their sessions, and removes output that
/// nobody owns any more. Another worker's leases and sessions stay untouched.
pub(super) async fn recover(
    records: &Records,
    holder: &Holder,
    output_dir: &Path,
    own: &Mark,
) -> Result<(), Error> {
    let mut backoff = Backoff::new(100, 5_000);
    loop {
        match attempt(records, holder, output_dir, own).await {
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "a worker waits for the authority");
                backoff.pause(&*records.clock).await;
            }
            outcome => return outcome,
        }
    }
}

async fn attempt(
    records: &Records,
    holder: &Holder,
    output_dir: &Path,
    own: &Mark,
) -> Result<(), Error> {
    // Sessions first: once the leases are free, somebody else may start the same channel.
    let mut pages = records.pages();
    while let Some(page) = pages.next().await? {
        for record in &page {
            let Ok(session) = Session::from_record(record) else {
                continue;
            };
            if !session.state.is_terminal() && session.is_of_predecessor(holder) {
                let restarted = |loaded: &_, now| session::worker_restarted(loaded, holder, now);
                sessions::change(&*records.authority, &record.key, restarted).await?;
            }
        }
    }
    let released = records
        .authority
        .depart(Departure::Succeeded(holder.clone()))
        .await?;
    if !released.is_empty() {
        tracing::info!(worker = %holder, leases = released.len(), "released what an earlier incarnation held");
    }
    remove_leftovers(records, output_dir, own, |_| false).await
}

/// Removes the folders of sessions that are over, and of those that this store does not know if nobody
/// works on them: they may be another store's. Each is asked about by itself and only now: a folder
/// is made after its session was claimed, so one that is new has a session that lives.
pub(super) async fn remove_leftovers(
    records: &Records,
    output_dir: &Path,
    own: &Mark,
    in_use: impl Fn(&Key) -> bool,
) -> Result<(), Error> {
    let Ok(mut folders) = tokio::fs::read_dir(output_dir).await else {
        return Ok(());
    };
    while let Ok(Some(folder)) = folders.next_entry().await {
        // Only what is named like a session is ours to remove.
        let Some(id) = output::session_of(&folder.path()) else {
            continue;
        };
        let key = session::key(id);
        if in_use(&key) {
            continue;
        }
        let over = match records.read(&key).await? {
            Some(session) => session.state.is_terminal(),
            None => output::is_abandoned(&folder.path(), own).await,
        };
        // Asked again: a session that this worker ends removes its folder by itself.
        if over && !in_use(&key) {
            output::remove_one(&folder.path()).await;
        }
    }
    Ok(())
}
