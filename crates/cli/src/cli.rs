//! The command line as a whole: the verbs, what all of them share, and how they end.

use std::{ffi::OsString, io::Write as _, path::PathBuf, process::ExitCode};

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::{
    backup, camera, camera_worker, complete, completions, config,
    config::{Config, Origin, Origins},
    deploy, doctor,
    exit::{Exit, Failure, Outcome},
    explain, lease, logging, man, manager, migrate, nodes, plan, poll, run, runner, serve,
    settings, target, token, worker,
};

const ABOUT: &str = "\
Who owns this work right now, until when and under which fencing token.

A lease is exclusive, time-bounded ownership of a key such as `camera:front-door`. Each grant comes
with a token that only ever grows, so that a receiver can reject a stale holder.";

const EXAMPLES: &str = "\
Examples:
  leasehold serve                            # a server, ready in a second
  leasehold run job:nightly -- ./backup.sh   # only while it owns the key
  leasehold lease ls                         # who owns what
  leasehold lease history job:nightly        # who owned it before";

/// The whole command line.
#[derive(Parser, Debug)]
#[command(name = "leasehold", version, about = ABOUT, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", Exit::HELP))]
#[command(arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    shared: Shared,
    #[command(subcommand)]
    verb: Verb,
}

/// What every verb accepts.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Shared options")]
pub struct Shared {
    /// Configuration file (YAML) [env: LEASEHOLD_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The server to talk to, or several replicas separated by commas: the next one is tried when one
    /// does not answer [env: LEASEHOLD_URL] [default: http://127.0.0.1:8740]
    #[arg(long, global = true, value_name = "URL")]
    pub server: Option<String>,
    /// A file that holds the credential [env: LEASEHOLD_CREDENTIAL_FILE, or the credential itself in
    /// LEASEHOLD_CREDENTIAL] [default: the local server's admin.token]
    #[arg(long, alias = "token-file", global = true, value_name = "FILE")]
    pub credential_file: Option<PathBuf>,
    /// Trust only servers whose certificate was issued by this CA (PEM) [env: LEASEHOLD_CA_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// The data folder of the local server [env: LEASEHOLD_DATA_DIR]
    /// [default: ~/.local/share/leasehold]
    #[arg(long, global = true, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// What is logged to standard error: error, warn, info, debug, or a filter
    /// [env: LEASEHOLD_LOG]
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
}

impl Shared {
    /// The layered configuration, with these flags on top.
    pub fn load(&self) -> Result<Config, Failure> {
        self.load_with_origins().map(|(config, _)| config)
    }

    /// The same, with where each setting comes from.
    pub fn load_with_origins(&self) -> Result<(Config, Origins), Failure> {
        let (mut config, mut origins) = self.sources().load()?;
        let mut flag = |path: &str, flag| origins.note(path, Origin::Flag(flag));
        if let Some(url) = &self.server {
            config.client.url = Some(url.clone());
            flag("client.url", "--server");
        }
        if let Some(file) = &self.credential_file {
            config.client.credential_file = Some(file.clone());
            // The flag is stronger than a credential from the environment.
            config.client.credential = None;
            flag("client.credential", "--credential-file");
            flag("client.credential_file", "--credential-file");
        }
        if let Some(file) = &self.ca_file {
            config.client.ca_file = Some(file.clone());
            flag("client.ca_file", "--ca-file");
        }
        if let Some(folder) = &self.data_dir {
            config.server.data_dir = Some(folder.clone());
            flag("server.data_dir", "--data-dir");
        }
        if let Some(filter) = &self.log {
            config.log.level.clone_from(filter);
            flag("log.level", "--log");
        }
        Ok((config, origins))
    }

    /// Where the configuration comes from.
    pub fn sources(&self) -> config::Sources {
        config::Sources::of_process(self.config.as_deref())
    }
}

#[derive(Subcommand, Debug)]
enum Verb {
    Serve(serve::Arguments),
    Run(run::Arguments),
    Worker(worker::Arguments),
    Manager(manager::Arguments),
    CameraWorker(camera_worker::Arguments),
    Poll(poll::Arguments),
    Nodes(nodes::Arguments),
    /// Add, pause, resume, remove and list polling targets
    #[command(subcommand)]
    Target(target::Verb),
    Plan(plan::Arguments),
    Explain(explain::Arguments),
    /// List, cordon, drain and remove the hosts that process cameras
    #[command(subcommand)]
    Runner(runner::Verb),
    /// List, add, change, switch off and remove cameras
    #[command(subcommand)]
    Camera(camera::Verb),
    /// Move the cameras of a group of runners to another version, step by step, and back
    #[command(subcommand)]
    Deploy(deploy::Verb),
    /// Acquire, renew, show and end leases
    #[command(subcommand)]
    Lease(lease::Verb),
    /// Create, list, rotate and revoke the credentials of clients
    #[command(subcommand, alias = "token")]
    Credential(token::Verb),
    Doctor(doctor::Arguments),
    Migrate(migrate::Arguments),
    Backup(backup::BackupArguments),
    Restore(backup::RestoreArguments),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(settings::Verb),
    Completions(completions::Arguments),
    #[command(name = "__complete", hide = true)]
    Complete(complete::Arguments),
    Man(man::Arguments),
}

impl Verb {
    /// Whether it runs for long and logs what it does.
    const fn is_service(&self) -> bool {
        matches!(
            self,
            Self::Serve(_) | Self::Worker(_) | Self::Poll(_) | Self::Manager(_)
        )
    }
}

/// Parses, runs the verb, and reports what went wrong: as text, or with `--json` as a problem.
pub fn main() -> ExitCode {
    let json = wants_json(std::env::args_os());
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and the version are no mistakes.
        Err(error) if !json || !error.use_stderr() => error.exit(),
        Err(error) => {
            let text = error.to_string();
            let mistake = text.lines().next().unwrap_or_default();
            let failure = Failure::new(Exit::Usage, mistake.trim_start_matches("error: "));
            return report(&failure, json);
        }
    };
    cli.run().unwrap_or_else(|failure| report(&failure, json))
}

fn report(failure: &Failure, json: bool) -> ExitCode {
    // The exit code counts, also when the terminal is gone.
    let _ = if failure.is_silent() {
        Ok(())
    } else if json {
        writeln!(std::io::stderr(), "{}", failure.to_json())
    } else {
        writeln!(anstream::stderr(), "{failure}")
    };
    failure.exit.into()
}

/// Whether this program, and not the one that it runs, was asked for JSON.
fn wants_json(arguments: impl Iterator<Item = OsString>) -> bool {
    arguments
        .take_while(|argument| argument != "--")
        .any(|argument| argument == "--json")
}

impl Cli {
    fn run(self) -> Outcome {
        // Verbs that need neither configuration nor server.
        match &self.verb {
            Verb::Completions(arguments) => return completions::run(arguments, Self::command()),
            Verb::Man(arguments) => return man::run(arguments, Self::command()),
            Verb::Config(verb) => return settings::run(verb, &self.shared),
            _ => {}
        }
        // Its --config is the shard's: the manager configures it, and nothing else.
        if let Verb::CameraWorker(arguments) = self.verb {
            return runtime(true)?.block_on(camera_worker::run(arguments, &self.shared));
        }
        // A manager's file has keys of its own.
        let shared = match &self.verb {
            Verb::Manager(_) => Shared {
                config: None,
                ..self.shared.clone()
            },
            _ => self.shared.clone(),
        };
        let config = shared.load()?;
        logging::start(&config.log, self.verb.is_service())?;
        let runtime = runtime(self.verb.is_service())?;
        runtime.block_on(async {
            match self.verb {
                Verb::Serve(arguments) => serve::run(arguments, &self.shared, config).await,
                Verb::Run(arguments) => run::run(arguments, config).await,
                Verb::Worker(arguments) => worker::run(arguments, &self.shared, config).await,
                Verb::Poll(arguments) => poll::run(arguments, config).await,
                Verb::Manager(arguments) => manager::run(arguments, &self.shared).await,
                Verb::Nodes(arguments) => nodes::run(arguments, config).await,
                Verb::Target(verb) => target::run(verb, config).await,
                Verb::Plan(arguments) => plan::run(arguments, config).await,
                Verb::Explain(arguments) => explain::run(arguments, config).await,
                Verb::Runner(verb) => runner::run(verb, config).await,
                Verb::Camera(verb) => camera::run(verb, config).await,
                Verb::Deploy(verb) => deploy::run(verb, config).await,
                Verb::Lease(verb) => lease::run(verb, config).await,
                Verb::Credential(verb) => token::run(verb, config).await,
                Verb::Doctor(arguments) => doctor::run(&arguments, config).await,
                Verb::Migrate(arguments) => migrate::run(arguments).await,
                Verb::Backup(arguments) => backup::backup(arguments, config).await,
                Verb::Restore(arguments) => backup::restore(arguments, config).await,
                Verb::Complete(arguments) => {
                    complete::run(arguments, Self::command(), &config).await
                }
                Verb::CameraWorker(_) | Verb::Config(_) | Verb::Completions(_) | Verb::Man(_) => {
                    Ok(ExitCode::SUCCESS)
                }
            }
        })
    }
}

fn runtime(is_server: bool) -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = if is_server {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        // A client does one thing; two threads keep a renewal going while the other is busy.
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2);
        builder
    };
    if is_server {
        // Others may be about to give it something to do, which then takes no wake-up.
        builder.on_thread_park(std::thread::yield_now);
    }
    let built = builder.enable_all().build();
    built.map_err(|error| Failure::new(Exit::Failed, format!("cannot start: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    /// A command that wraps is a command that is copied wrongly.
    #[test]
    fn examples_fit_on_a_line() {
        fn visit(command: &clap::Command, long: &mut Vec<String>) {
            let pages = [command.get_after_help(), command.get_after_long_help()];
            for help in pages.into_iter().flatten().map(ToString::to_string) {
                let examples = help.lines().filter(|line| line.starts_with("  leasehold "));
                let too_long = examples.filter(|line| line.chars().count() > 76);
                long.extend(too_long.map(str::to_owned));
            }
            command.get_subcommands().for_each(|verb| visit(verb, long));
        }
        let mut long = Vec::new();
        visit(&Cli::command(), &mut long);
        assert!(long.is_empty(), "{}", long.join("\n"));
    }

    #[test]
    fn json_is_asked_for_before_the_command_of_run() {
        let asked = |line: &str| wants_json(line.split(' ').map(OsString::from));
        assert!(asked("leasehold lease ls --json"));
        assert!(!asked("leasehold run job:a -- curl --json x"));
    }

    /// The help of every verb, as people see it.
    #[test]
    fn help_teaches_with_examples() {
        fn visit(command: &mut clap::Command, path: &str, pages: &mut Vec<(String, String)>) {
            let help = command.render_long_help().to_string();
            pages.push((path.to_owned(), help));
            for verb in command
                .get_subcommands_mut()
                .filter(|verb| !verb.is_hide_set())
            {
                let name = verb.get_name().to_owned();
                if name != "help" {
                    visit(verb, &format!("{path}_{name}"), pages);
                }
            }
        }
        let mut pages = Vec::new();
        let mut command = Cli::command();
        command.build();
        visit(&mut command, "leasehold", &mut pages);
        for (name, page) in &pages {
            assert!(
                page.contains("leasehold "),
                "{name} has no example:\n{page}"
            );
            insta::assert_snapshot!(format!("help_{name}"), page);
        }
        assert!(pages.len() > 20, "{}", pages.len());
    }
}
