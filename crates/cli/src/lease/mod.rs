//! `leasehold lease`: one file per verb.

mod acquire;
mod get;
mod history;
mod ls;
mod release;
mod renew;
mod revoke;
mod verify;
mod watch;

use clap::Subcommand;
use lease::{Authority, Key, Lease, Token};

use crate::{
    config::Config,
    connect,
    exit::{Exit, Failure, Outcome},
};

pub use acquire::{parse_label, parse_policy, refused};

/// The verbs of `leasehold lease`.
#[derive(Subcommand, Debug)]
pub enum Verb {
    Acquire(acquire::Arguments),
    Renew(renew::Arguments),
    Release(release::Arguments),
    Revoke(revoke::Arguments),
    Get(get::Arguments),
    Ls(ls::Arguments),
    Watch(watch::Arguments),
    History(history::Arguments),
    Verify(verify::Arguments),
}

/// Connects and does it.
pub async fn run(verb: Verb, config: Config) -> Outcome {
    let authority = connect::authority(&config)?;
    let shared = authority;
    let authority: &dyn Authority = &*shared;
    match verb {
        Verb::Acquire(arguments) => acquire::run(arguments, &config, authority).await,
        Verb::Renew(arguments) => renew::run(arguments, authority).await,
        Verb::Release(arguments) => release::run(arguments, authority).await,
        Verb::Revoke(arguments) => revoke::run(arguments, authority).await,
        Verb::Get(arguments) => get::run(arguments, authority).await,
        Verb::Ls(arguments) => ls::run(arguments, authority).await,
        Verb::Watch(arguments) => watch::run(arguments, shared.clone()).await,
        Verb::History(arguments) => history::run(arguments, authority).await,
        Verb::Verify(arguments) => verify::run(arguments, authority).await,
    }
}

/// The live lease of a key under this token: the token is what its holder knows of it.
async fn held(authority: &dyn Authority, key: &Key, token: Token) -> Result<Lease, Failure> {
    match authority.lease(key.clone()).await? {
        Some(lease) if lease.token == token => Ok(lease),
        Some(lease) => Err(Failure::new(
            Exit::NotFound,
            format!("{key} is not held under token {token} any more"),
        )
        .hint(format!(
            "{} has it under token {}",
            lease.holder.name, lease.token
        ))),
        None => Err(free(key)),
    }
}

fn free(key: &Key) -> Failure {
    Failure::new(Exit::NotFound, format!("nobody holds {key}"))
}

/// A token from the command line.
fn parse_token(text: &str) -> Result<Token, String> {
    let number: u64 = text
        .parse()
        .map_err(|_| "expected a whole number".to_owned())?;
    Token::new(number).map_err(|invalid| invalid.to_string())
}
