//! `leasehold lease watch`.

use futures_util::StreamExt;
use lease::{Authority, Event, Key, Notice, Revision};

use crate::{
    exit::{Exit, Failure, Outcome},
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
  leasehold lease watch --from 1200             # everything after revision 1200")]
pub struct Arguments {
    /// Only this key
    #[arg(value_name = "KIND:ID")]
    key: Option<Key>,
    /// Only this kind of key
    #[arg(long)]
    kind: Option<String>,
    /// Begin after this revision instead of now
    #[arg(long, value_name = "REVISION")]
    from: Option<u64>,
    #[command(flatten)]
    format: Format,
}

impl Arguments {
    fn wants(&self, key: &Key) -> bool {
        self.key.as_ref().is_none_or(|wanted| wanted == key)
            && self.kind.as_ref().is_none_or(|kind| kind == key.kind())
    }
}

/// Prints until the stream ends, which is a failure of the server, or until Ctrl-C.
pub async fn run(arguments: Arguments, authority: &dyn Authority) -> Outcome {
    let mut changes = authority.watch(arguments.from.map(Revision::new)).await?;
    while let Some(notice) = changes.next().await {
        match notice? {
            Notice::Event(event) => show(&arguments, &event)?,
            Notice::Snapshot(snapshot) => {
                let leases: Vec<_> = snapshot
                    .leases
                    .into_iter()
                    .filter(|lease| arguments.wants(&lease.key))
                    .collect();
                if arguments.format.json {
                    let revision = snapshot.revision;
                    print::json(
                        &serde_json::json!({"snapshot": {"revision": revision, "leases": leases}}),
                    )?;
                } else {
                    print::line(&format!("snapshot at revision {}:", snapshot.revision))?;
                    print::leases(&leases, snapshot.at)?;
                }
            }
        }
    }
    Err(Failure::new(
        Exit::Unreachable,
        "the server ended the stream",
    ))
}

fn show(arguments: &Arguments, event: &Event) -> Result<(), Failure> {
    if !arguments.wants(&event.key) {
        Ok(())
    } else if arguments.format.json {
        print::json(event)
    } else {
        print::event(event)
    }
}
