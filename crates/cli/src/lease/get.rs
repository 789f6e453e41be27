//! `leasehold lease get`.

use std::process::ExitCode;

use lease::{Authority, Key};

use super::free;
use crate::{
    exit::Outcome,
    print::{self, Format},
};

/// Show who holds a key; exits with 66 when nobody does
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  leasehold lease get job:nightly --json | jq -r .holder")]
pub struct Arguments {
    /// The key
    #[arg(value_name = "KIND:ID")]
    key: Key,
    #[command(flatten)]
    format: Format,
}

/// Shows.
pub async fn run(arguments: Arguments, authority: &dyn Authority) -> Outcome {
    let Arguments { key, format } = arguments;
    let lease = authority
        .lease(key.clone())
        .await?
        .ok_or_else(|| free(&key))?;
    if format.json {
        print::lease_json(&lease)?;
    } else {
        print::leases(&[lease], authority.now().await?)?;
    }
    Ok(ExitCode::SUCCESS)
}
