//! `leasehold credential`: one file per verb. The credentials of a server live hashed in its data folder, so
//! these verbs work on the server's machine, whether it runs or not.

mod create;
mod ls;
mod revoke;

use clap::Subcommand;
use leasehold_server::auth::{self, TokenFile};

use crate::{
    config::Config,
    data_dir,
    exit::{Exit, Failure, Outcome},
};

/// The verbs of `leasehold credential`.
#[derive(Subcommand, Debug)]
pub enum Verb {
    Create(create::Arguments),
    Ls(ls::Arguments),
    Revoke(revoke::Arguments),
}

/// Finds the data folder and does it.
#[expect(clippy::unused_async, reason = "every verb is run the same way")]
pub async fn run(verb: Verb, config: Config) -> Outcome {
    let folder = data_dir::find(&config).ok_or_else(|| {
        Failure::new(Exit::Config, "no data folder").hint("name it with --data-dir")
    })?;
    let tokens = TokenFile::new(&folder);
    match verb {
        Verb::Create(arguments) => create::run(arguments, &tokens),
        Verb::Ls(arguments) => ls::run(&arguments, &tokens, &folder),
        Verb::Revoke(arguments) => revoke::run(&arguments, &tokens),
    }
}

fn failed(error: auth::Error) -> Failure {
    Failure::new(Exit::Failed, error).hint("run it on the server's machine, as the server's user")
}
