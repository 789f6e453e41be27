//! `leasehold token revoke`.

use std::process::ExitCode;

use leasehold_server::auth::TokenFile;

use super::failed;
use crate::exit::{Exit, Failure, Outcome};

/// Take a token back; a running server refuses it within a second
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  leasehold token ls
  leasehold token revoke 3f9a1c0b77de")]
pub struct Arguments {
    /// Its id, from `leasehold token ls`
    id: String,
}

/// Revokes.
pub fn run(arguments: &Arguments, tokens: &TokenFile) -> Outcome {
    if tokens.revoke(&arguments.id).map_err(failed)? {
        eprintln!("revoked token {}", arguments.id);
        return Ok(ExitCode::SUCCESS);
    }
    Err(
        Failure::new(Exit::NotFound, format!("no token {}", arguments.id))
            .hint("`leasehold token ls` lists them"),
    )
}
