//! `leasehold runner ls`.

use std::process::ExitCode;

use leasehold_client::{Client, RunnerFilter};

use crate::{
    connect::refused,
    exit::Outcome,
    print::{self, Format},
};

/// List runners: what they have, what they may have, when they were last seen
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Status:
  active    takes work
  cordoned  keeps what it has and takes nothing new
  draining  gives everything up
  inactive  sends no heartbeats

Examples:
  leasehold runner ls
  leasehold runner ls --tenant acme --site north
  leasehold runner ls --json | jq -r '[.runner_id, .status]'")]
pub struct Arguments {
    /// Only this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Only this site of the tenant
    #[arg(long, value_name = "SITE", requires = "tenant")]
    site: Option<String>,
    #[command(flatten)]
    format: Format,
}

/// Lists.
pub async fn run(arguments: Arguments, client: &Client) -> Outcome {
    let filter = RunnerFilter {
        tenant_id: arguments.tenant,
        site_id: arguments.site,
    };
    let runners = client.runners(&filter).await.map_err(refused)?;
    if arguments.format.json {
        for runner in &runners {
            print::json(runner)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = print::table([
        "RUNNER",
        "TENANT",
        "SITE",
        "STATUS",
        "CAMERAS",
        "GROUP",
        "VERSION",
        "HOST",
        "LAST HEARTBEAT",
    ]);
    for runner in &runners {
        rows.add_row([
            runner.runner_id.clone(),
            runner.tenant_id.clone(),
            runner.site_id.clone(),
            runner.status.clone(),
            format!("{}/{}", runner.assigned_cameras.len(), runner.capacity),
            runner.deployment_group.clone(),
            runner.deployment_version.clone(),
            runner.host.clone(),
            runner
                .last_heartbeat
                .map_or_else(|| "-".to_owned(), |at| at.to_string()),
        ]);
    }
    print::show(&rows, "no runners")?;
    Ok(ExitCode::SUCCESS)
}
