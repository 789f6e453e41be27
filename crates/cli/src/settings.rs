//! `leasehold config`: what is configured, and whether it can work.

use std::process::ExitCode;

use clap::Subcommand;

use crate::{
    cli::Shared,
    config,
    exit::{Exit, Failure, Outcome},
    print,
};

/// The verbs of `leasehold config`.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Check the file and the environment without starting anything
    #[command(after_help = "\
Examples:
  leasehold config check --config /etc/leasehold.yaml
  LEASEHOLD_TTL=10s leasehold config check

Errors show the file, the line, the column, and what was probably meant.")]
    Check,
    /// Show what applies: defaults, file, environment and flags together
    #[command(after_help = "\
Examples:
  leasehold config show
  leasehold config show --config /etc/leasehold.yaml > effective.yaml

Secrets are hidden. Every line can be set in the file; the variables are listed by --variables.")]
    Show {
        /// List every setting with its environment variable instead
        #[arg(long)]
        variables: bool,
    },
}

/// Checks or shows.
pub fn run(verb: &Verb, shared: &Shared) -> Outcome {
    match verb {
        Verb::Check => {
            refuse_unknown_variables(shared)?;
            let config = shared.load()?;
            config::check_timing(&config)?;
            config.server.limits.checked()?;
            eprintln!("the configuration is fine");
        }
        Verb::Show { variables: true } => {
            for setting in config::SETTINGS {
                print::line(&format!("{:<42}{}", setting.variable, setting.path))?;
            }
        }
        Verb::Show { variables: false } => {
            let text = serde_saphyr::to_string(&shared.load()?)
                .map_err(|error| Failure::new(Exit::Failed, error))?;
            print::bytes(text.as_bytes())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A misspelt variable would silently change nothing.
pub fn refuse_unknown_variables(shared: &Shared) -> Result<(), Failure> {
    let unknown = config::unknown_variables(&shared.sources().variables);
    let Some((name, meant)) = unknown.into_iter().next() else {
        return Ok(());
    };
    let failure = config::wrong(format!("unknown environment variable {name}"));
    Err(match meant {
        Some(meant) => failure.hint(format!("did you mean {meant}?")),
        None => failure.hint("`leasehold config show --variables` lists those that are known"),
    })
}
