//! `leasehold lease verify`.

use std::process::ExitCode;

use lease::{Authority, EventQuery, Key, Revision, history::Verifier};

use super::history::read;
use crate::{
    exit::{Exit, Failure, Outcome},
    print::{self, Format},
};

/// Prove from the history that no two owners' times overlap and that no token went back
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold lease verify
  leasehold lease verify --key job:nightly --json

Leaves with 80 and lists the faults when there are any.")]
pub struct Arguments {
    /// Only this key
    #[arg(long, value_name = "KIND:ID")]
    key: Option<Key>,
    /// Only this kind of key
    #[arg(long)]
    kind: Option<String>,
    /// Only events after this revision
    #[arg(long, value_name = "REVISION", default_value_t = 0)]
    from: u64,
    #[command(flatten)]
    format: Format,
}

/// Reads the range once and judges it.
pub async fn run(arguments: Arguments, authority: &dyn Authority) -> Outcome {
    let mut verifier = Verifier::default();
    let query = EventQuery {
        key: arguments.key,
        kind: arguments.kind,
        after: Revision::new(arguments.from),
        ..EventQuery::default()
    };
    let has_gap = read(authority, query, |event| verifier.see(&event)).await?;
    let (events, faults) = verifier.finish();
    let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
    if arguments.format.json {
        print::json(&serde_json::json!({
            "events": events,
            "faults": faults,
            "beginning_is_gone": has_gap,
        }))?;
    } else {
        for fault in &faults {
            print::line(fault)?;
        }
        if faults.is_empty() {
            print::line(&format!(
                "{events} events: no two owners overlap, and no token went back"
            ))?;
        }
    }
    if has_gap {
        eprintln!("note: the history's beginning is no longer kept; only what is kept was checked");
    }
    if faults.is_empty() {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(Failure::new(
            Exit::CheckFailed,
            format!("{} faults in the history", faults.len()),
        ))
    }
}
