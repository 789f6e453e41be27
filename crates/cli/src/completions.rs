//! `leasehold completions`.

use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use crate::{exit::Outcome, print};

/// Print the completions of a shell
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold completions bash > /etc/bash_completion.d/leasehold
  leasehold completions zsh > ~/.zfunc/_leasehold
  leasehold completions fish > ~/.config/fish/completions/leasehold.fish")]
pub struct Arguments {
    /// Which shell
    shell: Shell,
}

/// Prints them.
pub fn run(arguments: &Arguments, mut command: Command) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "leasehold", &mut script);
    print::bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}
