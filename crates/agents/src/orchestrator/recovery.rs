//! Starting again under the same name: what the previous incarnation held is free at once, and its
//! sessions are over.

use std::path::Path;

use lease::{
    Departure, Error, Holder,
    session::{Reason, Session, State},
};

use super::{pipeline, records::Records};

/// Frees the leases of this name's earlier incarnations, ends their sessions, and removes output that
/// no live session owns. Another worker's leases and sessions stay untouched.
pub(super) async fn recover(
    records: &Records,
    holder: &Holder,
    output_dir: &Path,
) -> Result<(), Error> {
    let mut pause_ms = 100;
    loop {
        match attempt(records, holder, output_dir).await {
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "a worker waits for the authority");
                records
                    .clock
                    .sleep_until(records.clock.boot().plus(pause_ms))
                    .await;
                pause_ms = (pause_ms * 2).min(5_000);
            }
            outcome => return outcome,
        }
    }
}

async fn attempt(records: &Records, holder: &Holder, output_dir: &Path) -> Result<(), Error> {
    // Sessions first: once the leases are free, somebody else may start the same channel.
    let mut live = Vec::new();
    let mut after = None;
    loop {
        let page = records.page(after).await?;
        after = page.items.last().map(|record| record.key.id().to_owned());
        for record in &page.items {
            let Ok(session) = Session::from_record(record) else {
                continue;
            };
            if session.state.is_terminal() {
                continue;
            }
            let ours = session
                .worker
                .as_ref()
                .is_some_and(|worker| worker.name == holder.name && worker != holder);
            if !ours {
                live.push(record.key.id().to_owned());
                continue;
            }
            let release: Vec<_> = records.own_lease(&record.key).await?.into_iter().collect();
            records
                .change(&record.key, &release, |session, now| {
                    session.reason_detail = Some("its worker restarted".into());
                    session.become_state(State::Failed, Reason::WorkerLost, now)
                })
                .await?;
        }
        if !page.more {
            break;
        }
    }
    let released = records
        .authority
        .depart(Departure::Succeeded(holder.clone()))
        .await?;
    if !released.is_empty() {
        tracing::info!(worker = %holder, leases = released.len(), "freed what an earlier incarnation held");
    }
    remove_leftovers(output_dir, &live).await;
    Ok(())
}

async fn remove_leftovers(output_dir: &Path, live: &[String]) {
    let Ok(mut folders) = tokio::fs::read_dir(output_dir).await else {
        return;
    };
    while let Ok(Some(folder)) = folders.next_entry().await {
        let name = folder.file_name();
        // Only what is named like a session is ours to remove.
        let is_session = name
            .to_str()
            .is_some_and(|name| uuid::Uuid::parse_str(name).is_ok());
        if is_session && !live.iter().any(|id| name == **id) {
            pipeline::remove_output(&folder.path()).await;
        }
    }
}
