//! `leasehold explain`.

use std::process::ExitCode;

use crate::{
    config::Config,
    connect,
    exit::Outcome,
    print::{self, Format},
};

/// Show why a camera is where it is, and why no other runner has it
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The runner that should have the camera comes first; the first one without an obstacle and with room
gets it, unless the camera stays where it is.

Why a runner does not get it:
  inactive          it sends no heartbeats
  cordoned          it may get nothing new
  draining          it gives up what it has
  deployment_group  the camera asks for another group
  capabilities      it lacks something that the camera needs
  failing           the camera failed on it
  deployment_version
                    the camera belongs to another version: `leasehold deploy status`
  full              it has as many cameras as it may have
  busy              it is too busy for more: `leasehold runner show`

Examples:
  leasehold explain front-door
  leasehold explain front-door --json | jq -r .assigned")]
pub struct Arguments {
    /// The camera
    #[arg(value_name = "CAMERA")]
    camera_uuid: String,
    #[command(flatten)]
    format: Format,
}

/// Asks the server and shows what it says.
pub async fn run(arguments: Arguments, config: Config) -> Outcome {
    let client = connect::client(&config)?;
    let answer = client
        .explain(&arguments.camera_uuid)
        .await
        .map_err(connect::refused)?;
    if arguments.format.json {
        print::json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = |runner: &Option<String>| runner.clone().unwrap_or_else(|| "nobody".to_owned());
    print::line(&format!(
        "{}: {} has it, {} should have it ({})",
        answer.camera_uuid,
        name(&answer.holder),
        name(&answer.assigned),
        answer.reason
    ))?;
    let mut rows = print::table(["RUNNER", "LOAD", "AGAINST IT"]);
    for it in &answer.candidates {
        let against = if it.obstacles.is_empty() {
            "-".to_owned()
        } else {
            it.obstacles.join(", ")
        };
        rows.add_row([
            it.runner_id.clone(),
            format!("{}/{}", it.load, it.capacity),
            against,
        ]);
    }
    print::show(&rows, "the site has no runners")?;
    Ok(ExitCode::SUCCESS)
}
