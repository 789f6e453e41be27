//! `leasehold __complete`: what the scripts of `leasehold completions` ask while somebody types. It knows
//! which argument is typed from the command line itself, and asks the server for its live values. Whatever
//! goes wrong, and whatever takes too long, is no completion.

use std::{process::ExitCode, time::Duration};

use clap::{Arg, Command};
use lease::{
    Authority, LeaseQuery, RESERVED_KINDS, RecordQuery, Status,
    registry::{CAMERA, RUNNER},
};
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

/// What has live values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Live {
    Keys,
    Cameras,
    Runners,
}

impl Live {
    /// By what the help calls the value.
    fn of(argument: &Arg) -> Option<Self> {
        match argument.get_value_names()?.first()?.as_str() {
            "KIND:ID" => Some(Self::Keys),
            "CAMERA" => Some(Self::Cameras),
            "RUNNER" => Some(Self::Runners),
            _ => None,
        }
    }
}

/// Prints what the last word may become, one per line.
pub async fn run(arguments: Arguments, command: Command, config: &Config) -> Outcome {
    let (typed, before) = match arguments.words.split_last() {
        Some((typed, before)) => (typed.as_str(), before),
        None => ("", [].as_slice()),
    };
    if let Some(live) = wanted(command, before, typed)
        && let Ok(authority) = connect::authority(config)
        && let Ok(Some(names)) = timeout(LIMIT, names(&*authority, live, typed)).await
    {
        for name in names.iter().filter(|name| name.starts_with(typed)) {
            print::line(name)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What the word after these would be, if it has live values.
fn wanted(mut command: Command, before: &[String], typed: &str) -> Option<Live> {
    command.build();
    let mut verb = &command;
    let mut given = 0;
    let mut words = before.iter().peekable();
    while let Some(word) = words.next() {
        if word == "--" {
            return None;
        }
        if let Some(flag) = word.strip_prefix("--") {
            let takes = |it: &&Arg| it.get_long() == Some(flag) && it.get_action().takes_values();
            if verb.get_arguments().any(|it| takes(&it)) && words.next().is_none() {
                // Its value is typed right now; none of them has live values.
                return None;
            }
        } else if word.starts_with('-') {
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
    Live::of(positionals.get(given).copied().or(repeated)?)
}

async fn names(authority: &dyn Authority, live: Live, typed: &str) -> Option<Vec<String>> {
    let kind = match live {
        Live::Cameras => CAMERA,
        Live::Runners => RUNNER,
        Live::Keys => {
            let query = LeaseQuery {
                kind: typed.split_once(':').map(|(kind, _)| kind.to_owned()),
                status: Some(Status::Active),
                limit: MOST,
                ..LeaseQuery::default()
            };
            let page = authority.leases(query).await.ok()?;
            let asked = |kind: &str| typed.starts_with(&format!("{kind}:"));
            let shown = page
                .items
                .iter()
                .map(|lease| &lease.key)
                .filter(|key| !RESERVED_KINDS.contains(&key.kind()) || asked(key.kind()));
            return Some(shown.map(ToString::to_string).collect());
        }
    };
    let query = RecordQuery {
        kind: kind.to_owned(),
        prefix: String::new(),
        after: None,
        limit: MOST,
    };
    let page = authority.records(query).await.ok()?;
    let name = |id: &str| id.rsplit('/').next().unwrap_or_default().to_owned();
    let mut names: Vec<String> = page.items.iter().map(|it| name(it.key.id())).collect();
    names.sort();
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_argument_that_is_typed_is_known() {
        let of = |line: &str| {
            let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let typed = words.pop().unwrap_or_default();
            wanted(crate::cli::Cli::command(), &words, &typed)
        };
        assert_eq!(of("lease get jo"), Some(Live::Keys));
        assert_eq!(of("--log warn lease get jo"), Some(Live::Keys));
        assert_eq!(of("lease acquire job:a --ttl 3s "), Some(Live::Keys));
        assert_eq!(of("lease acquire job:a --ttl "), None);
        assert_eq!(of("lease get job:a "), None);
        assert_eq!(of("camera rm a "), Some(Live::Cameras));
        assert_eq!(of("runner drain "), Some(Live::Runners));
        assert_eq!(of("run job:a -- jo"), None);
        assert_eq!(of("lease get --js"), None);
        assert_eq!(of("le"), None);
    }
}
