//! `leasehold deploy start`.

use std::{process::ExitCode, time::Duration};

use leasehold_api::{DeploymentRequest, Seconds};
use leasehold_client::Client;

use super::{Group, over, report};
use crate::{
    connect::refused,
    exit::{Exit, Failure, Outcome},
    print::Format,
};

/// Start moving the cameras of a group to runners of another version
///
/// A step of cameras is shifted, and the next one only when all shifted before are reported as working.
/// When one fails on the new version, or does not work in time, or no runner of the new version is left,
/// every camera goes back to the old version by itself.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Start the deployment before the runners of the new version: it waits for them, and they get only
the cameras that are moved to them.

Examples:
  leasehold deploy start acme north default --to 2.1
  leasehold deploy start acme north default --to 2.1 --step 8 --wait")]
pub struct Arguments {
    #[command(flatten)]
    group: Group,
    /// The version to move to
    #[arg(long, value_name = "VERSION")]
    to: String,
    /// The version to move from [default: the one that most runners of the group have]
    #[arg(long, value_name = "VERSION")]
    from: Option<String>,
    /// How many cameras move at the same time
    #[arg(long, value_name = "CAMERAS", default_value_t = 4)]
    step: u32,
    /// How many seconds shifted cameras may take until they work
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    health_timeout: u64,
    /// Wait until it is done; exit code 80 when it is rolled back
    #[arg(long)]
    wait: bool,
    /// With --wait: give up after this many seconds, with exit code 75
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 3600,
        requires = "wait"
    )]
    timeout: u64,
    #[command(flatten)]
    format: Format,
}

/// Begins it, and waits for it when asked to.
pub async fn run(arguments: Arguments, client: &Client) -> Outcome {
    let (tenant, site, name) = arguments.group.parts();
    let request = DeploymentRequest {
        tenant_id: tenant.to_owned(),
        site_id: site.to_owned(),
        deployment_group: name.to_owned(),
        to_version: arguments.to,
        from_version: arguments.from,
        step: Some(arguments.step),
        health_timeout_seconds: Some(Seconds::whole(arguments.health_timeout)),
    };
    let started = client.start_deployment(&request).await.map_err(refused)?;
    if !arguments.wait {
        report(&started, arguments.format)?;
        return Ok(ExitCode::SUCCESS);
    }
    let limit = Duration::from_secs(arguments.timeout);
    match tokio::time::timeout(limit, over(client, &arguments.group)).await {
        Ok(done) => {
            report(&done?, arguments.format)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(_) => Err(Failure::new(
            Exit::NotAcquired,
            format!("not done within {} s; it goes on", arguments.timeout),
        )),
    }
}
