//! `leasehold credential create`.

use std::process::ExitCode;

use leasehold_clock::{Clock, System};
use leasehold_server::auth::{Scope, TokenFile};
use secrecy::ExposeSecret;

use super::failed;
use crate::{
    exit::{Exit, Failure, Outcome},
    print::{self, Format},
};

/// Make a credential; it is shown this once and stored hashed
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold credential create --name ci --scope leases:write > ci.key
  leasehold credential create --name ui --scope leases:read --tenant acme

Scopes: leases, runners, v3 or credentials, a colon, and read, write or admin; each includes those
before it. A running server accepts the credential immediately.")]
pub struct Arguments {
    /// What it is for
    #[arg(long)]
    name: String,
    /// What it allows
    #[arg(long = "scope", required = true, value_name = "AREA:LEVEL")]
    scopes: Vec<Scope>,
    /// The only tenant it may see
    #[arg(long)]
    tenant: Option<String>,
    #[command(flatten)]
    format: Format,
}

/// Makes it. The credential goes to standard output, everything else to standard error.
pub fn run(arguments: Arguments, tokens: &TokenFile) -> Outcome {
    let Arguments {
        name,
        scopes,
        tenant,
        format,
    } = arguments;
    if name.is_empty() || name.len() > 64 || name.chars().any(char::is_control) {
        return Err(Failure::new(
            Exit::Usage,
            "name: expected 1 to 64 bytes without control characters",
        ));
    }
    let created = tokens
        .create(&name, scopes, tenant, System.unix())
        .map_err(failed)?;
    let secret = created.secret.expose_secret();
    if format.json {
        print::json(&serde_json::json!({
            "id": created.stored.id,
            "name": created.stored.name,
            "scopes": created.stored.scopes,
            "tenant": created.stored.tenant,
            "token": secret,
        }))?;
    } else {
        print::line(secret)?;
        eprintln!(
            "made credential {} ({name}); it is not shown again",
            created.stored.id
        );
    }
    Ok(ExitCode::SUCCESS)
}
