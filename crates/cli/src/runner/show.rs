//! `leasehold runner show`.

use std::process::ExitCode;

use leasehold_client::Client;

use crate::{
    connect::refused,
    exit::Outcome,
    print::{self, Format},
};

/// Show everything about one runner
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold runner show edge-1
  leasehold runner show edge-1 --json | jq '.assigned_cameras[]'")]
pub struct Arguments {
    /// The runner, or TENANT/RUNNER where two tenants have one of this name
    #[arg(value_name = "RUNNER")]
    runner_id: String,
    #[command(flatten)]
    format: Format,
}

/// Shows it: YAML for people, JSON for programs.
pub async fn run(arguments: Arguments, client: &Client) -> Outcome {
    let runner = client.runner(&arguments.runner_id).await.map_err(refused)?;
    if arguments.format.json {
        print::json(&runner)?;
    } else {
        print::yaml(&runner)?;
    }
    Ok(ExitCode::SUCCESS)
}
