//! `leasehold credential ls`.

use std::{path::Path, process::ExitCode};

use leasehold_server::auth::TokenFile;

use super::failed;
use crate::{
    exit::Outcome,
    print::{self, Format},
};

/// List the credentials of the local server; the secrets are not known
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  leasehold credential ls")]
pub struct Arguments {
    #[command(flatten)]
    format: Format,
}

/// Lists.
pub fn run(arguments: &Arguments, tokens: &TokenFile, folder: &Path) -> Outcome {
    let found = tokens.list().map_err(failed)?;
    let mut rows = print::table(["ID", "NAME", "SCOPES", "TENANT", "CREATED"]);
    for token in found {
        let scopes: Vec<String> = token.scopes.iter().map(ToString::to_string).collect();
        if arguments.format.json {
            print::json(&serde_json::json!({
                "id": token.id,
                "name": token.name,
                "scopes": scopes,
                "tenant": token.tenant,
                "created_at": token.created_at,
            }))?;
        } else {
            rows.add_row([
                token.id,
                token.name,
                scopes.join(" "),
                token.tenant.unwrap_or_else(|| "-".to_owned()),
                token.created_at.to_string(),
            ]);
        }
    }
    if !arguments.format.json {
        print::show(&rows, &format!("no credentials in {}", folder.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
