//! `leasehold credential create`.

use std::process::ExitCode;

use leasehold_api::{CredentialRequest, CredentialSecret, Seconds};
use leasehold_server::auth::Scope;

use super::Source;
use crate::{
    config::Period,
    exit::{Exit, Failure, Outcome},
    print::{self, Format},
};

/// Create a credential; the secret is shown once and stored hashed
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold credential create --name ci --scope leases:write > ci.key
  leasehold credential create --name ui --scope leases:read --expires 30d

Scopes: leases, runners, v3 or credentials, a colon, and read, write or admin; each includes those
before it. Every replica accepts the credential immediately.")]
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
    /// How long it is valid, such as 12h or 30d [default: no expiry]
    #[arg(long, value_name = "TIME")]
    expires: Option<Period>,
    #[command(flatten)]
    format: Format,
}

impl Arguments {
    /// Fails before anything is opened.
    pub fn check(&self) -> Result<(), Failure> {
        let name = &self.name;
        if name.is_empty() || name.len() > 64 || name.chars().any(char::is_control) {
            return Err(Failure::new(
                Exit::Usage,
                "name: expected 1 to 64 bytes without control characters",
            ));
        }
        if self.expires.is_some_and(|it| it.millis() < 1_000) {
            return Err(Failure::new(
                Exit::Usage,
                "expires: expected at least a second",
            ));
        }
        Ok(())
    }
}

/// Makes it. The credential goes to standard output, everything else to standard error.
pub async fn run(arguments: Arguments, place: &Source) -> Outcome {
    let request = CredentialRequest {
        name: arguments.name,
        scopes: arguments.scopes.iter().map(ToString::to_string).collect(),
        tenant_id: arguments.tenant,
        expires_in_seconds: arguments
            .expires
            .map(|it| Seconds::from_millis(it.millis())),
    };
    let created = place.create(request).await?;
    show("made", &created, arguments.format)
}

/// Shows a secret, this once.
pub fn show(what: &str, made: &CredentialSecret, format: Format) -> Outcome {
    let it = &made.credential;
    if format.json {
        print::json(&serde_json::json!({
            "id": it.id,
            "name": it.name,
            "scopes": it.scopes,
            "tenant": it.tenant_id,
            "expires_at": it.expires_at,
            "previous_until": it.previous_until,
            "token": made.secret,
        }))?;
    } else {
        print::line(&made.secret)?;
        eprintln!(
            "{what} credential {} ({}); it is not shown again",
            it.id, it.name
        );
        if let Some(until) = it.previous_until {
            eprintln!("the one before is let in until {until}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
