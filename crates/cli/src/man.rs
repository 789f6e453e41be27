//! `leasehold man`.

use std::{path::PathBuf, process::ExitCode};

use clap::Command;

use crate::exit::{Exit, Failure, Outcome};

/// Print the manual page, or write the pages of all verbs into a folder
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold man | man -l -
  leasehold man --to /usr/local/share/man/man1")]
pub struct Arguments {
    /// Write a page per verb into this folder instead
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// Prints or writes.
pub fn run(arguments: &Arguments, command: Command) -> Outcome {
    let written = match &arguments.to {
        Some(folder) => {
            std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder))
        }
        None => clap_mangen::Man::new(command).render(&mut std::io::stdout()),
    };
    match written {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure::new(
            Exit::Failed,
            format!("cannot write the manual: {error}"),
        )),
    }
}
