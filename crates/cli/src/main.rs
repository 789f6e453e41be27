//! The binary `leasehold`.

use std::process::ExitCode;

use clap::Parser;

/// Who owns this work right now, until when and under which fencing token.
#[derive(Parser)]
#[command(version)]
struct Arguments {}

fn main() -> ExitCode {
    if let Some(code) = leasehold_agents::supervise::entry(std::env::args_os()) {
        return code;
    }
    Arguments::parse();
    ExitCode::SUCCESS
}
