//! `leasehold lease renew`.

use std::process::ExitCode;

use lease::{Authority, Key, Renew, Renewal, Renewals, Token, Ttl};

use super::{held, parse_token};
use crate::{
    config::{Period, parse_ttl},
    exit::{Exit, Failure, Outcome},
    print::{self, Format},
};

/// Renew a lease for another ttl
///
/// An expired lease is lost, and renewing does not revive it: acquire the key again.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  token=$(leasehold lease acquire job:nightly --json | jq .token)
  leasehold lease renew job:nightly --token $token")]
pub struct Arguments {
    /// The key
    #[arg(value_name = "KIND:ID")]
    key: Key,
    /// The token it was granted with
    #[arg(long, value_parser = parse_token)]
    token: Token,
    /// A new ttl from now on
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    ttl: Option<Period>,
    #[command(flatten)]
    format: Format,
}

/// Renews.
pub async fn run(arguments: Arguments, authority: &dyn Authority) -> Outcome {
    let lease = held(authority, &arguments.key, arguments.token).await?;
    let ttl = arguments.ttl.map(|ttl| Ttl::from_millis(ttl.millis()));
    let request = Renew {
        holder: lease.holder.clone(),
        leases: Renewals::These(vec![Renewal {
            ttl: ttl.transpose()?,
            ..Renewal::of(&lease)
        }]),
    };
    let renewed = authority.renew(request).await?.into_iter().next();
    match renewed.map(|renewed| renewed.outcome) {
        Some(Ok(lease)) if arguments.format.json => print::lease_json(&lease)?,
        Some(Ok(lease)) => print::leases(&[lease], authority.now().await?)?,
        Some(Err(loss)) => {
            let message = format!("{} is lost: {}", arguments.key, loss.as_str());
            return Err(Failure::new(Exit::Lost, message));
        }
        None => {
            return Err(Failure::new(
                Exit::Failed,
                "the server did not answer for this lease",
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}
