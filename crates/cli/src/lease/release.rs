//! `leasehold lease release`.

use std::process::ExitCode;

use lease::{Authority, Key, LeaseRef, Token};

use super::parse_token;
use crate::exit::Outcome;

/// Release a lease
///
/// Idempotent: releasing a lease that was released or has expired succeeds.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  leasehold lease release job:nightly --token 1763244000123")]
pub struct Arguments {
    /// The key
    #[arg(value_name = "KIND:ID")]
    key: Key,
    /// The token it was granted with
    #[arg(long, value_parser = parse_token)]
    token: Token,
}

/// Releases.
pub async fn run(arguments: Arguments, authority: &dyn Authority) -> Outcome {
    let Arguments { key, token } = arguments;
    let released = match authority.lease(key.clone()).await? {
        Some(lease) if lease.token == token => authority.release(LeaseRef::from(&lease)).await?,
        Some(_) | None => false,
    };
    if released {
        eprintln!("released {key}");
    } else {
        eprintln!("{key} was not held under token {token}; nothing to release");
    }
    Ok(ExitCode::SUCCESS)
}
