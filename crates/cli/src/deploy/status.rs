//! `leasehold deploy status`.

use std::process::ExitCode;

use leasehold_client::{Client, RunnerFilter};

use crate::{
    connect::refused,
    exit::Outcome,
    print::{self, Format},
};

/// Show deployments: how far they are, what they wait for, what happened
///
/// With a group, its history follows.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
State:
  running      shifts cameras step by step
  paused       shifts nothing further; rolls back if the new version fails
  done         every camera belongs to the new version
  rolled_back  every camera belongs to the old version again

Examples:
  leasehold deploy status
  leasehold deploy status acme north default
  leasehold deploy status --json | jq -r .note")]
pub struct Arguments {
    /// Only this tenant
    #[arg(value_name = "TENANT")]
    tenant_id: Option<String>,
    /// Only this site
    #[arg(value_name = "SITE")]
    site_id: Option<String>,
    /// Only this group, with its history
    #[arg(value_name = "GROUP")]
    group: Option<String>,
    #[command(flatten)]
    format: Format,
}

/// Shows them.
pub async fn run(arguments: Arguments, client: &Client) -> Outcome {
    let one = match (&arguments.tenant_id, &arguments.site_id, &arguments.group) {
        (Some(tenant), Some(site), Some(group)) => Some(
            client
                .deployment(tenant, site, group)
                .await
                .map_err(refused)?,
        ),
        _ => None,
    };
    let deployments = if let Some(one) = &one {
        vec![one.clone()]
    } else {
        let filter = RunnerFilter {
            tenant_id: arguments.tenant_id,
            site_id: arguments.site_id,
        };
        client.deployments(&filter).await.map_err(refused)?
    };
    if arguments.format.json {
        for deployment in &deployments {
            print::json(deployment)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = print::table([
        "TENANT", "SITE", "GROUP", "FROM", "TO", "STATE", "CAMERAS", "NOTE",
    ]);
    for it in &deployments {
        rows.add_row([
            it.tenant_id.clone(),
            it.site_id.clone(),
            it.deployment_group.clone(),
            it.from_version.clone(),
            it.to_version.clone(),
            it.state.clone(),
            format!("{}/{}", it.cameras_new, it.cameras_new + it.cameras_old),
            it.note.clone(),
        ]);
    }
    print::show(&rows, "no deployments")?;
    if let Some(one) = one {
        print::line("")?;
        let mut rows = print::table(["AT", "VERSION", "WHAT"]);
        for event in &one.history {
            rows.add_row([
                event.at.to_string(),
                event.to_version.clone(),
                event.what.clone(),
            ]);
        }
        print::show(&rows, "nothing happened")?;
    }
    Ok(ExitCode::SUCCESS)
}
