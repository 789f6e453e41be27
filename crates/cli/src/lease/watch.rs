//! `leasehold lease watch`.

use std::sync::Arc;

use lease::{Authority, Key, Revision, Watching};
use leasehold_client::{Change, Follower};
use leasehold_clock::System;

use crate::{
    exit::Outcome,
    print::{self, Format},
};

/// Follow changes as they happen
///
/// When events between a resumed revision and now are gone, a snapshot of what is live comes first:
/// nothing is skipped silently.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold lease watch
  leasehold lease watch job:nightly --json
  leasehold lease watch --from 1200       # everything after revision 1200")]
pub struct Arguments {
    /// Only this key
    #[arg(value_name = "KIND:ID")]
    key: Option<Key>,
    /// Only this kind of key
    #[arg(long)]
    kind: Option<String>,
    /// Start after this revision instead of now
    #[arg(long, value_name = "REVISION")]
    from: Option<u64>,
    #[command(flatten)]
    format: Format,
}

/// Prints until Ctrl-C. A server that goes away and comes back ends nothing.
pub async fn run(arguments: Arguments, authority: Arc<dyn Authority>) -> Outcome {
    let watching = Watching {
        from: arguments.from.map(Revision::new),
        kinds: arguments.kind.into_iter().collect(),
        key: arguments.key,
        ..Watching::everything()
    };
    let mut follower = Follower::new(authority, Arc::new(System), watching);
    loop {
        match follower.next().await? {
            Change::Event(event) if arguments.format.json => {
                print::json(&leasehold_api::Event::from(&*event))?;
            }
            Change::Event(event) => print::event(&event)?,
            Change::Resync(Some(snapshot)) if arguments.format.json => {
                let snapshot = leasehold_api::Snapshot {
                    revision: snapshot.revision.get(),
                    at: snapshot.at.into(),
                    leases: snapshot.leases.iter().map(Into::into).collect(),
                };
                print::json(&serde_json::json!({ "snapshot": snapshot }))?;
            }
            Change::Resync(Some(snapshot)) => {
                print::line(&format!("snapshot at revision {}:", snapshot.revision))?;
                print::leases(&snapshot.leases, snapshot.at)?;
            }
            Change::Resync(None) | Change::Progress(_) => {}
            Change::Interrupted(error) => return Err(error.into()),
        }
    }
}
