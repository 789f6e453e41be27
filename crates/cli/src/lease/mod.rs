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
use lease::{Authority, EventQuery, Key, Lease, Token};

use crate::{
    config::Config,
    connect,
    exit::{Exit, Failure, Outcome},
    print,
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
        Some(lease) => Err(lost(authority, key, token).await.hint(format!(
            "{} has it under token {}",
            lease.holder.name, lease.token
        ))),
        None => Err(lost(authority, key, token).await),
    }
}

/// How the lease of this token ended, as far as the history goes back.
async fn lost(authority: &dyn Authority, key: &Key, token: Token) -> Failure {
    let mut end = None;
    let query = EventQuery {
        key: Some(key.clone()),
        ..EventQuery::default()
    };
    let read = history::read(authority, query, |event| {
        let about = event.lease.as_ref();
        if event.kind.ends_lease() && about.is_some_and(|lease| lease.token == token) {
            end = Some(event);
        }
    });
    // The reason is a courtesy: without a history the answer is still right.
    let known = read.await.is_ok();
    let message = match end {
        Some(event) => {
            let why = event
                .text()
                .map_or(String::new(), |why| format!(" ({why})"));
            let kind = event.kind.as_str().replace('_', " ");
            format!(
                "{key} under token {token} is over: {kind} at {}{why}",
                print::time(event.at)
            )
        }
        None if known => {
            format!("{key} was never held under token {token}, as far as the history goes back")
        }
        None => format!("{key} is not held under token {token}"),
    };
    Failure::new(Exit::NotFound, message)
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
