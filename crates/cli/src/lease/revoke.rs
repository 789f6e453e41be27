//! `leasehold lease revoke`.

use std::process::ExitCode;

use lease::{Authority, Key, Revoke};

use super::free;
use crate::{
    exit::Outcome,
    print::{self, Format},
};

/// Take a key away from its holder, with a reason (needs the scope leases:admin)
///
/// The holder is notified immediately and must stop.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  leasehold lease revoke job:nightly --reason 'host is being replaced'")]
pub struct Arguments {
    /// The key
    #[arg(value_name = "KIND:ID")]
    key: Key,
    /// Why; the holder is notified, and the history keeps it
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    format: Format,
}

/// Revokes whatever lease the key has now.
pub async fn run(arguments: Arguments, authority: &dyn Authority) -> Outcome {
    let Arguments {
        key,
        reason,
        format,
    } = arguments;
    let lease = authority
        .lease(key.clone())
        .await?
        .ok_or_else(|| free(&key))?;
    let request = Revoke {
        id: lease.id,
        reason: reason.into(),
    };
    request.validate()?;
    let revoked = authority.revoke(request).await?.ok_or_else(|| free(&key))?;
    if format.json {
        print::lease_json(&revoked)?;
    } else {
        eprintln!(
            "revoked {key} from {} (token {})",
            revoked.holder.name, revoked.token
        );
    }
    Ok(ExitCode::SUCCESS)
}
