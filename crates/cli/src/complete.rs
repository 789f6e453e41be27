//! `leasehold __complete`: what the scripts of `leasehold completions` ask while somebody types. It knows
//! which argument is typed from the command line itself, and its values: words that are known, or live
//! ones that the server is asked for. Whatever goes wrong, and whatever takes too long, is no completion.

use std::{process::ExitCode, time::Duration};

use clap::{Arg, Command};
use lease::{
    Authority, LeaseQuery, RESERVED_KINDS, RecordQuery, Status,
    registry::{CAMERA, RUNNER},
};
use leasehold_server::auth::Scope;
use tokio::time::timeout;

use crate::{config::Config, connect, exit::Outcome, print};

/// Longer than this nobody waits for a suggestion.
const LIMIT: Duration = Duration::from_millis(700);
/// More than a screen shows.
const MOST: usize = 1000;

/// The words of a command line so far, the one that is typed last
#[derive(clap::Args, Debug)]
pub struct Arguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Where the values of an argument come from.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Values {
    /// Live keys.
    Keys,
    /// Cameras that a site has.
    Cameras,
    /// Runners that are registered.
    Runners,
    /// These.
    Words(Vec<String>),
}

impl Values {
    /// By what the parser takes, or by what the help calls the value.
    fn of(argument: &Arg) -> Option<Self> {
        let possible = argument.get_possible_values();
        if !possible.is_empty() {
            let names = possible.iter().map(|value| value.get_name().to_owned());
            return Some(Self::Words(names.collect()));
        }
        let words = |words: &[&str]| Self::Words(words.iter().copied().map(String::from).collect());
        Some(match argument.get_value_names()?.first()?.as_str() {
            "KIND:ID" => Self::Keys,
            "CAMERA" => Self::Cameras,
            "RUNNER" => Self::Runners,
            "STATUS" => words(&Status::ALL.map(Status::as_str)),
            "POLICY" => words(&["fail_closed", "hold:30s", "continue:30s"]),
            "AREA:LEVEL" => Self::Words(Scope::all().map(|scope| scope.to_string()).collect()),
            "FILTER" => words(&["error", "warn", "info", "debug", "trace"]),
            _ => return None,
        })
    }

    /// Those that there are now; none without a server that answers in time.
    async fn now(self, typed: &str, config: &Config) -> Vec<String> {
        let kind = match self {
            Self::Words(words) => return words,
            Self::Keys => None,
            Self::Cameras => Some(CAMERA),
            Self::Runners => Some(RUNNER),
        };
        let Ok(authority) = connect::authority(config) else {
            return Vec::new();
        };
        let asked = timeout(LIMIT, async {
            match kind {
                Some(kind) => records(&*authority, kind).await,
                None => keys(&*authority, typed).await,
            }
        });
        asked.await.ok().and_then(Result::ok).unwrap_or_default()
    }
}

/// Prints what the last word may become, one per line.
pub async fn run(arguments: Arguments, command: Command, config: &Config) -> Outcome {
    let (typed, before) = match arguments.words.split_last() {
        Some((typed, before)) => (typed.as_str(), before),
        None => ("", [].as_slice()),
    };
    if let Some(values) = wanted(command, before, typed) {
        let names = values.now(typed, config).await;
        for name in names.iter().filter(|name| name.starts_with(typed)) {
            print::line(name)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The values of the word after these, if they are known.
fn wanted(mut command: Command, before: &[String], typed: &str) -> Option<Values> {
    command.build();
    let mut verb = &command;
    let mut given = 0;
    let mut words = before.iter();
    while let Some(word) = words.next() {
        if word == "--" {
            return None;
        }
        if word.starts_with('-') {
            let named = |it: &&Arg| {
                let long = it.get_long().is_some_and(|it| *word == format!("--{it}"));
                long || it.get_short().is_some_and(|it| *word == format!("-{it}"))
            };
            let flag = verb.get_arguments().find(named);
            if let Some(flag) = flag.filter(|it| it.get_action().takes_values())
                && words.next().is_none()
            {
                return Values::of(flag);
            }
        } else if let Some(next) = verb.find_subcommand(word) {
            verb = next;
        } else {
            given += 1;
        }
    }
    if typed.starts_with('-') {
        return None;
    }
    let positionals: Vec<&Arg> = verb.get_positionals().collect();
    let last = positionals.last().copied();
    let repeated = last.filter(|it| it.get_num_args().is_some_and(|it| it.max_values() > 1));
    Values::of(positionals.get(given).copied().or(repeated)?)
}

async fn keys(authority: &dyn Authority, typed: &str) -> Result<Vec<String>, lease::Error> {
    let query = LeaseQuery {
        kind: typed.split_once(':').map(|(kind, _)| kind.to_owned()),
        status: Some(Status::Active),
        limit: MOST,
        ..LeaseQuery::default()
    };
    let page = authority.leases(query).await?;
    let asked = |kind: &str| typed.starts_with(&format!("{kind}:"));
    let shown = page
        .items
        .iter()
        .map(|lease| &lease.key)
        .filter(|key| !RESERVED_KINDS.contains(&key.kind()) || asked(key.kind()));
    Ok(shown.map(ToString::to_string).collect())
}

async fn records(authority: &dyn Authority, kind: &str) -> Result<Vec<String>, lease::Error> {
    let query = RecordQuery {
        kind: kind.to_owned(),
        prefix: String::new(),
        after: None,
        limit: MOST,
    };
    let page = authority.records(query).await?;
    let name = |id: &str| id.rsplit('/').next().unwrap_or_default().to_owned();
    let mut names: Vec<String> = page.items.iter().map(|it| name(it.key.id())).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn of(line: &str) -> Option<Values> {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let typed = words.pop().unwrap_or_default();
        wanted(crate::cli::Cli::command(), &words, &typed)
    }

    #[test]
    fn the_argument_that_is_typed_is_known() {
        assert_eq!(of("lease get jo"), Some(Values::Keys));
        assert_eq!(of("--log warn lease get jo"), Some(Values::Keys));
        assert_eq!(of("lease acquire job:a --ttl 3s "), Some(Values::Keys));
        assert_eq!(of("lease acquire job:a --ttl "), None);
        assert_eq!(of("lease get job:a "), None);
        assert_eq!(of("camera rm a "), Some(Values::Cameras));
        assert_eq!(of("camera apply -f file "), None);
        assert_eq!(of("runner drain "), Some(Values::Runners));
        assert_eq!(of("run job:a -- jo"), None);
        assert_eq!(of("lease get --js"), None);
        assert_eq!(of("le"), None);
    }

    #[test]
    fn every_word_that_is_suggested_is_taken() {
        for line in [
            "lease ls --status",
            "lease acquire job:a --on-outage",
            "credential create --name ci --scope",
            "lease ls --log",
            "completions",
        ] {
            let Some(Values::Words(words)) = of(&format!("{line} ")) else {
                panic!("{line}: no words");
            };
            assert!(words.len() > 2, "{line}: {words:?}");
            for word in words {
                let whole = format!("leasehold {line} {word}");
                let read = crate::cli::Cli::command().try_get_matches_from(whole.split(' '));
                assert!(read.is_ok(), "{whole}: {}", read.unwrap_err());
            }
        }
    }
}
