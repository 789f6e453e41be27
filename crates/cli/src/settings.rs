//! `leasehold config`: what is configured, and whether it can work.

use std::process::ExitCode;

use clap::Subcommand;
use leasehold_api::config::describe;

use crate::{
    cli::Shared,
    config::{self, Config},
    exit::{Exit, Failure, Outcome},
    metrics,
    print::{self, Format},
    sessions,
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
    /// Show what applies and where it comes from: default, file, environment or flag
    #[command(after_help = "\
Examples:
  leasehold config show
  leasehold config show --config /etc/leasehold.yaml > effective.yaml
  leasehold config show --json

Secrets are hidden. A comment after each setting says where it was set. docs/configuration.md
is the reference of all settings.")]
    Show {
        /// List every setting with its environment variables instead
        #[arg(long)]
        variables: bool,
        #[command(flatten)]
        format: Format,
    },
    /// Print the reference of all settings, as Markdown
    #[command(hide = true)]
    Reference,
    /// Print the reference of all metrics, as Markdown
    #[command(hide = true)]
    Metrics,
}

/// Checks or shows.
pub fn run(verb: &Verb, shared: &Shared) -> Outcome {
    match verb {
        Verb::Check => {
            refuse_unknown_variables(shared)?;
            let config = shared.load()?;
            config::check_timing(&config)?;
            config.server.check()?;
            sessions::routes(&config, None)?;
            sessions::worker(&config, None)?;
            config.poll.check().map_err(config::wrong)?;
            eprintln!("the configuration is fine");
        }
        Verb::Show {
            variables: true, ..
        } => {
            for setting in describe(&mut Config::default()) {
                let names = config::variables(&setting).join(", ");
                print::line(&format!("{:<42}{names}", setting.path))?;
            }
        }
        Verb::Show { format, .. } if format.json => show_json(shared)?,
        Verb::Show { .. } => {
            let (config, origins) = shared.load_with_origins()?;
            let text = serde_saphyr::to_string(&config)
                .map_err(|error| Failure::new(Exit::Failed, error))?;
            print::bytes(origins.annotate(&text).as_bytes())?;
        }
        Verb::Reference => print::bytes(config::reference().as_bytes())?,
        Verb::Metrics => print::bytes(metrics::reference().as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// One object per setting.
fn show_json(shared: &Shared) -> Result<(), Failure> {
    let (mut config, origins) = shared.load_with_origins()?;
    let values =
        serde_json::to_value(&config).map_err(|error| Failure::new(Exit::Failed, error))?;
    for setting in describe(&mut config) {
        let path = &setting.path;
        print::json(&serde_json::json!({
            "setting": path,
            "value": path.split('.').try_fold(&values, |at, part| at.get(part)),
            "origin": origins.of(path).to_string(),
        }))?;
    }
    Ok(())
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
