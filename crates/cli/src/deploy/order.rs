//! `leasehold deploy pause`, `resume` and `rollback`.

use std::process::ExitCode;

use leasehold_client::{Client, DeploymentOrder};

use super::{Group, report};
use crate::{connect::refused, exit::Outcome, print::Format};

/// Pause a deployment: move no more cameras
///
/// Cameras that were moved stay, and go back by themselves if they do not work.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  leasehold deploy pause acme north default")]
pub struct Pause {
    #[command(flatten)]
    group: Group,
    #[command(flatten)]
    format: Format,
}

/// Resume a deployment
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  leasehold deploy resume acme north default")]
pub struct Resume {
    #[command(flatten)]
    group: Group,
    #[command(flatten)]
    format: Format,
}

/// Move every camera back to the previous version
///
/// Also possible after the deployment is done, as long as runners of that version are present.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  leasehold deploy rollback acme north default")]
pub struct Rollback {
    #[command(flatten)]
    group: Group,
    #[command(flatten)]
    format: Format,
}

/// Pauses.
pub async fn pause(arguments: Pause, client: &Client) -> Outcome {
    give(
        client,
        &arguments.group,
        DeploymentOrder::Pause,
        arguments.format,
    )
    .await
}

/// Resumes.
pub async fn resume(arguments: Resume, client: &Client) -> Outcome {
    give(
        client,
        &arguments.group,
        DeploymentOrder::Resume,
        arguments.format,
    )
    .await
}

/// Rolls back.
pub async fn rollback(arguments: Rollback, client: &Client) -> Outcome {
    give(
        client,
        &arguments.group,
        DeploymentOrder::Rollback,
        arguments.format,
    )
    .await
}

async fn give(client: &Client, group: &Group, order: DeploymentOrder, format: Format) -> Outcome {
    let deployment = client
        .order_deployment(group.parts(), order)
        .await
        .map_err(refused)?;
    report(&deployment, format)?;
    Ok(ExitCode::SUCCESS)
}
