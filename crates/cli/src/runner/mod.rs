//! `leasehold runner`: one file per verb.

mod ls;
mod order;
mod rm;
mod show;

use clap::Subcommand;

use crate::{config::Config, connect, exit::Outcome};

/// The verbs of `leasehold runner`.
#[derive(Subcommand, Debug)]
pub enum Verb {
    Ls(ls::Arguments),
    Show(show::Arguments),
    Cordon(order::Cordon),
    Uncordon(order::Uncordon),
    Drain(order::Drain),
    Rm(rm::Arguments),
}

/// Connects and does it.
pub async fn run(verb: Verb, config: Config) -> Outcome {
    let client = connect::client(&config)?;
    match verb {
        Verb::Ls(arguments) => ls::run(arguments, &client).await,
        Verb::Show(arguments) => show::run(arguments, &client).await,
        Verb::Cordon(arguments) => order::cordon(arguments, &client).await,
        Verb::Uncordon(arguments) => order::uncordon(arguments, &client).await,
        Verb::Drain(arguments) => order::drain(arguments, &client).await,
        Verb::Rm(arguments) => rm::run(arguments, &client).await,
    }
}
