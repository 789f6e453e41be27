//! `leasehold credential`: one file per verb. Credentials live in the store, for every replica; these verbs
//! ask a server, or open the store itself where no local server runs.

mod create;
mod ls;
mod revoke;
mod rotate;
mod source;

use clap::Subcommand;

use crate::{config::Config, exit::Outcome};
use source::Source;

/// The verbs of `leasehold credential`.
#[derive(Subcommand, Debug)]
pub enum Verb {
    Create(create::Arguments),
    Ls(ls::Arguments),
    Rotate(rotate::Arguments),
    Revoke(revoke::Arguments),
}

/// Finds the credentials and does it.
pub async fn run(verb: Verb, config: Config) -> Outcome {
    if let Verb::Create(arguments) = &verb {
        arguments.check()?;
    }
    let place = Source::find(&config).await?;
    let done = match verb {
        Verb::Create(arguments) => create::run(arguments, &place).await,
        Verb::Ls(arguments) => ls::run(&arguments, &place).await,
        Verb::Rotate(arguments) => rotate::run(&arguments, &place).await,
        Verb::Revoke(arguments) => revoke::run(&arguments, &place).await,
    };
    place.close().await?;
    done
}
