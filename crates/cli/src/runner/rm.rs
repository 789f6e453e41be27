//! `leasehold runner rm`.

use std::process::ExitCode;

use leasehold_client::Client;

use crate::{
    connect::refused,
    exit::{Exit, Failure, Outcome},
    guard::Sure,
    print::{self, Format},
};

/// Remove a runner from the list
///
/// A runner that is alive is refused: drain it first, or use --force, which frees its cameras
/// immediately.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold runner rm edge-1
  leasehold runner rm edge-1 --yes
  leasehold runner rm edge-1 --force --yes      # it is still alive")]
pub struct Arguments {
    /// The runner, or TENANT/RUNNER where two tenants have one of this name
    #[arg(value_name = "RUNNER")]
    runner_id: String,
    /// Remove it even if it is alive or has cameras
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    sure: Sure,
    #[command(flatten)]
    format: Format,
}

/// Removes it.
pub async fn run(arguments: Arguments, client: &Client) -> Outcome {
    let runner = client.runner(&arguments.runner_id).await.map_err(refused)?;
    let (id, cameras) = (&runner.runner_id, runner.assigned_cameras.len());
    if !arguments.force && (runner.status != "inactive" || cameras > 0) {
        return Err(Failure::new(
            Exit::CheckFailed,
            format!("{id} is {} and has {cameras} cameras", runner.status),
        )
        .hint(format!(
            "`leasehold runner drain {id} --wait` moves them; --force removes it anyway"
        )));
    }
    arguments
        .sure
        .about(&format!("removing runner {id} with its {cameras} cameras"))?;
    let removed = client
        .remove_runner(&arguments.runner_id)
        .await
        .map_err(refused)?;
    if arguments.format.json {
        print::json(&removed)?;
    } else {
        eprintln!("removed {id}; {} cameras are free", removed.leases_released);
    }
    Ok(ExitCode::SUCCESS)
}
