//! `leasehold camera show`.

use std::process::ExitCode;

use leasehold_client::Client;

use crate::{
    connect::refused,
    exit::Outcome,
    print::{self, Format},
};

/// Show everything about one camera
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold camera show front-door
  leasehold camera show front-door --json | jq .zones

Who has it and why: `leasehold explain front-door`. The login in its address is shown only to a
credential with the scope credentials:read.")]
pub struct Arguments {
    /// The camera
    #[arg(value_name = "CAMERA")]
    camera_uuid: String,
    #[command(flatten)]
    format: Format,
}

/// Shows it: YAML for people, JSON for programs.
pub async fn run(arguments: Arguments, client: &Client) -> Outcome {
    let camera = client
        .camera(&arguments.camera_uuid)
        .await
        .map_err(refused)?;
    if arguments.format.json {
        print::json(&camera)?;
    } else {
        print::yaml(&camera)?;
    }
    Ok(ExitCode::SUCCESS)
}
