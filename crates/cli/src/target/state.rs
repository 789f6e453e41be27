//! `leasehold target pause` and `leasehold target resume`.

use std::{process::ExitCode, sync::Arc};

use lease::Authority;

use super::{StoreArgument, change, unknown};
use crate::exit::Outcome;

/// Which targets.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// Which ones
    #[arg(value_name = "TARGET", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    pub place: StoreArgument,
}

/// Stop polling targets, without removing them
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold target pause save-1
  leasehold target pause save-1 save-2 --store redis://localhost:6379/")]
pub struct Pause {
    #[command(flatten)]
    pub arguments: Arguments,
}

/// Poll paused targets again
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold target resume save-1")]
pub struct Resume {
    #[command(flatten)]
    pub arguments: Arguments,
}

/// Writes whether they are paused.
pub async fn run(arguments: Arguments, pause: bool, authority: &Arc<dyn Authority>) -> Outcome {
    for id in &arguments.ids {
        let note = if pause { "paused" } else { "resumed" };
        change(authority, id, note, |before| {
            let mut fields = before.ok_or_else(|| unknown(id))?;
            fields.insert("isPaused".to_owned(), pause.into());
            Ok(Some(fields))
        })
        .await?;
    }
    Ok(ExitCode::SUCCESS)
}
