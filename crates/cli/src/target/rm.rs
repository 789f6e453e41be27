//! `leasehold target rm`.

use std::{process::ExitCode, sync::Arc};

use lease::Authority;

use super::{StoreArgument, change, unknown};
use crate::exit::Outcome;

/// Remove targets; nobody polls them any more
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold target rm save-1 save-2")]
pub struct Arguments {
    /// Which ones
    #[arg(value_name = "TARGET", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    pub place: StoreArgument,
}

/// Removes them.
pub async fn run(arguments: Arguments, authority: &Arc<dyn Authority>) -> Outcome {
    for id in &arguments.ids {
        change(authority, id, "removed", |before| {
            before.ok_or_else(|| unknown(id))?;
            Ok(None)
        })
        .await?;
    }
    Ok(ExitCode::SUCCESS)
}
