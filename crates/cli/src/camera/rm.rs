//! `leasehold camera rm`.

use std::process::ExitCode;

use leasehold_client::Client;

use crate::{connect::refused, exit::Outcome, guard::Sure};

/// Remove cameras and their configuration; their holders lose them
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold camera rm front-door
  leasehold camera rm front-door back-door --yes

`leasehold camera disable` keeps the configuration.")]
pub struct Arguments {
    /// The cameras
    #[arg(value_name = "CAMERA", required = true)]
    cameras: Vec<String>,
    #[command(flatten)]
    sure: Sure,
}

/// Removes them. All must exist before the first is removed.
pub async fn run(arguments: Arguments, client: &Client) -> Outcome {
    let mut found = Vec::with_capacity(arguments.cameras.len());
    for name in &arguments.cameras {
        found.push(client.camera(name).await.map_err(refused)?.camera);
    }
    let names = arguments.cameras.join(", ");
    arguments.sure.about(&format!("removing {names}"))?;
    for camera in found {
        client
            .remove_camera(&camera.tenant_id, &camera.site_id, &camera.camera_uuid)
            .await
            .map_err(refused)?;
        eprintln!("removed {}", camera.camera_uuid);
    }
    Ok(ExitCode::SUCCESS)
}
