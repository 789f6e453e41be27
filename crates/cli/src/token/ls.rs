//! `leasehold credential ls`.

use std::process::ExitCode;

use super::Source;
use crate::{
    exit::Outcome,
    print::{self, Format},
};

/// List credentials, without their secrets
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  leasehold credential ls")]
pub struct Arguments {
    /// Show revoked ones too
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    format: Format,
}

/// Lists.
pub async fn run(arguments: &Arguments, place: &Source) -> Outcome {
    let mut rows = print::table([
        "ID", "NAME", "SCOPES", "TENANT", "STATE", "CREATED", "EXPIRES",
    ]);
    for token in place.list().await? {
        if token.state == "revoked" && !arguments.all {
            continue;
        }
        if arguments.format.json {
            print::json(&token)?;
            continue;
        }
        rows.add_row([
            token.id,
            token.name,
            token.scopes.join(" "),
            token.tenant_id.unwrap_or_else(|| "-".to_owned()),
            token.state,
            token.created_at.to_string(),
            token
                .expires_at
                .map_or_else(|| "never".to_owned(), |at| at.to_string()),
        ]);
    }
    if !arguments.format.json {
        print::show(&rows, "no credentials were made")?;
    }
    Ok(ExitCode::SUCCESS)
}
