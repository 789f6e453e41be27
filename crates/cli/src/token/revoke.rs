//! `leasehold credential revoke`.

use std::process::ExitCode;

use leasehold_server::auth::TokenFile;

use super::failed;
use crate::exit::{Exit, Failure, Outcome};

/// Revoke a credential; a running server rejects it within a second
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  leasehold credential ls
  leasehold credential revoke 3f9a1c0b77de")]
pub struct Arguments {
    /// Its id, from `leasehold credential ls`
    id: String,
}

/// Revokes.
pub fn run(arguments: &Arguments, tokens: &TokenFile) -> Outcome {
    if tokens.revoke(&arguments.id).map_err(failed)? {
        eprintln!("revoked credential {}", arguments.id);
        return Ok(ExitCode::SUCCESS);
    }
    Err(
        Failure::new(Exit::NotFound, format!("no credential {}", arguments.id))
            .hint("`leasehold credential ls` lists them"),
    )
}
