//! `leasehold camera disable` and `enable`.

use std::process::ExitCode;

use leasehold_api::{Camera, Document};
use leasehold_client::Client;

use crate::{
    connect::refused,
    exit::{Failure, Outcome},
    print::{self, Format},
};

/// Switch a camera off: its runner gives it up, its configuration stays
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  leasehold camera disable front-door")]
pub struct Disable {
    /// The cameras
    #[arg(value_name = "CAMERA", required = true)]
    cameras: Vec<String>,
    #[command(flatten)]
    format: Format,
}

/// Switch a camera on again
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  leasehold camera enable front-door")]
pub struct Enable {
    /// The cameras
    #[arg(value_name = "CAMERA", required = true)]
    cameras: Vec<String>,
    #[command(flatten)]
    format: Format,
}

/// Switches off.
pub async fn disable(arguments: Disable, client: &Client) -> Outcome {
    switch(client, &arguments.cameras, false, arguments.format).await?;
    Ok(ExitCode::SUCCESS)
}

/// Switches on.
pub async fn enable(arguments: Enable, client: &Client) -> Outcome {
    switch(client, &arguments.cameras, true, arguments.format).await?;
    Ok(ExitCode::SUCCESS)
}

async fn switch(
    client: &Client,
    cameras: &[String],
    enabled: bool,
    format: Format,
) -> Result<(), Failure> {
    for name in cameras {
        let Camera { camera, .. } = client.camera(name).await.map_err(refused)?;
        let change = Document(serde_json::Map::from_iter([(
            "enabled".to_owned(),
            enabled.into(),
        )]));
        let changed = client
            .update_camera(&camera.tenant_id, &camera.site_id, name, &change)
            .await
            .map_err(refused)?;
        if format.json {
            print::json(&changed)?;
        } else {
            eprintln!("{name} is {}", if enabled { "on" } else { "off" });
        }
    }
    Ok(())
}
