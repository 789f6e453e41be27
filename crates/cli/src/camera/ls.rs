//! `leasehold camera ls`.

use std::{collections::HashMap, process::ExitCode};

use leasehold_api::{Camera, Lease};
use leasehold_client::Client;

use crate::{
    connect::refused,
    exit::{Failure, Outcome},
    print,
};

/// List the cameras of a site: who has each, under which token, and what is wrong
#[derive(clap::Args, Debug)]
#[command(after_help = "\
State:
  held      a runner works on it
  unowned   nobody has it yet: `leasehold explain CAMERA` says why
  disabled  switched off
  parked    it failed on every runner, and is tried again later or when it is changed

Examples:
  leasehold camera ls acme north
  leasehold camera ls acme north --yaml > cameras.yaml
  leasehold camera ls acme north --json | jq -r .camera_uuid

Logins in addresses are shown only to a credential with the scope credentials:read.")]
pub struct Arguments {
    /// The tenant
    #[arg(value_name = "TENANT")]
    tenant_id: String,
    /// The site
    #[arg(value_name = "SITE")]
    site_id: String,
    /// Print JSON for programs, one object per line
    #[arg(long, conflicts_with = "yaml")]
    json: bool,
    /// Print what is configured as YAML
    #[arg(long)]
    yaml: bool,
}

/// Lists.
pub async fn run(arguments: Arguments, client: &Client) -> Outcome {
    let cameras = client
        .site_cameras(&arguments.tenant_id, &arguments.site_id)
        .await
        .map_err(refused)?;
    if arguments.json {
        for camera in &cameras {
            print::json(camera)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.yaml {
        let documents: Vec<&lease::registry::Camera> =
            cameras.iter().map(|it| &it.camera).collect();
        print::yaml(&documents)?;
        return Ok(ExitCode::SUCCESS);
    }
    let leases = held(client).await?;
    let mut rows = print::table(["CAMERA", "STATE", "RUNNER", "TOKEN", "ZONES", "WHY"]);
    for it in &cameras {
        let camera = &it.camera;
        let lease = leases.get(&camera.camera_uuid);
        rows.add_row([
            camera.camera_uuid.clone(),
            state(it, lease).to_owned(),
            lease
                .and_then(|lease| lease.runner_id.clone())
                .unwrap_or_else(|| "-".to_owned()),
            lease.map_or_else(|| "-".to_owned(), |lease| lease.token.to_string()),
            camera.zones.len().to_string(),
            it.parked
                .as_ref()
                .map_or_else(|| "-".to_owned(), |parked| parked.reason.clone()),
        ]);
    }
    print::show(&rows, "no cameras")?;
    Ok(ExitCode::SUCCESS)
}

/// The word for how a camera is.
pub(super) fn state(camera: &Camera, lease: Option<&Lease>) -> &'static str {
    if !camera.camera.enabled {
        "disabled"
    } else if camera.parked.is_some() {
        "parked"
    } else if lease.is_some() {
        "held"
    } else {
        "unowned"
    }
}

/// All live leases of cameras, by camera.
async fn held(client: &Client) -> Result<HashMap<String, Lease>, Failure> {
    let leases = client.leases_of(lease::registry::CAMERA).await;
    let by_camera = |lease: Lease| (lease.camera_uuid.clone().unwrap_or_default(), lease);
    Ok(leases
        .map_err(refused)?
        .into_iter()
        .map(by_camera)
        .collect())
}
