//! `leasehold camera`: one file per verb.

mod apply;
mod diff;
mod ls;
mod rm;
mod show;
mod switch;

use clap::Subcommand;

use crate::{config::Config, connect, exit::Outcome};

/// The verbs of `leasehold camera`.
#[derive(Subcommand, Debug)]
pub enum Verb {
    Ls(ls::Arguments),
    Show(show::Arguments),
    Apply(apply::Arguments),
    Disable(switch::Disable),
    Enable(switch::Enable),
    Rm(rm::Arguments),
}

/// Connects and does it.
pub async fn run(verb: Verb, config: Config) -> Outcome {
    let client = connect::client(&config)?;
    match verb {
        Verb::Ls(arguments) => ls::run(arguments, &client).await,
        Verb::Show(arguments) => show::run(arguments, &client).await,
        Verb::Apply(arguments) => apply::run(arguments, &client).await,
        Verb::Disable(arguments) => switch::disable(arguments, &client).await,
        Verb::Enable(arguments) => switch::enable(arguments, &client).await,
        Verb::Rm(arguments) => rm::run(arguments, &client).await,
    }
}
