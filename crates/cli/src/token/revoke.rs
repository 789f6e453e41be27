//! `leasehold credential revoke`.

use std::process::ExitCode;

use super::Source;
use crate::exit::Outcome;

/// Revoke a credential; every replica rejects it and ends its streams within half a second
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  leasehold credential ls
  leasehold credential revoke 3f9a1c0b77de")]
pub struct Arguments {
    /// Its id or name, from `leasehold credential ls`
    id: String,
}

/// Revokes.
pub async fn run(arguments: &Arguments, place: &Source) -> Outcome {
    let found = place.one(&arguments.id).await?;
    place.revoke(&found.id).await?;
    eprintln!("revoked credential {} ({})", found.id, found.name);
    Ok(ExitCode::SUCCESS)
}
