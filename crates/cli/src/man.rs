//! `leasehold man`.

use std::{path::PathBuf, process::ExitCode};

use clap::Command;

use crate::{
    exit::{Exit, Failure, Outcome},
    print,
};

/// Print the manual page, or write the pages of all commands into a folder
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold man | man -l -
  leasehold man --to /usr/local/share/man/man1")]
pub struct Arguments {
    /// Write a page per command into this folder instead
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// Prints or writes.
pub fn run(arguments: &Arguments, command: Command) -> Outcome {
    let failed = |error| Failure::new(Exit::Failed, format!("cannot write the manual: {error}"));
    if let Some(folder) = &arguments.to {
        std::fs::create_dir_all(folder)
            .and_then(|()| clap_mangen::generate_to(command, folder))
            .map_err(failed)?;
    } else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command)
            .render(&mut page)
            .map_err(failed)?;
        print::bytes(&page)?;
    }
    Ok(ExitCode::SUCCESS)
}
