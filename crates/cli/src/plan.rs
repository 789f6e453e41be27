//! `leasehold plan`.

use std::process::ExitCode;

use crate::{
    config::Config,
    connect,
    exit::Outcome,
    print::{self, Format},
};

/// Show which cameras of a site would move to another runner, and why
#[derive(clap::Args, Debug)]
#[command(after_help = "\
This command moves nothing: runners learn from their heartbeats what to take and what to give up.

Why a camera moves:
  unassigned    nobody has it
  draining      its runner is being drained
  not_eligible  its runner is of another deployment group, or lacks a capability
  failing       it fails on its runner
  deployment    it belongs to another version: `leasehold deploy status`
  balance       its runner has more than its share; only a tenth of a site moves for that at a time
  disabled      it is switched off
  parked        it failed on every runner, and is tried again later or when it is changed

A camera that should go to nobody (-) finds no runner with room that may have it; `leasehold
explain` shows why for each.

Examples:
  leasehold plan acme north
  leasehold plan acme north --json | jq '.moves[] | select(.to == null)'")]
pub struct Arguments {
    /// The tenant
    #[arg(value_name = "TENANT")]
    tenant_id: String,
    /// The site
    #[arg(value_name = "SITE")]
    site_id: String,
    #[command(flatten)]
    format: Format,
}

/// Asks the server and shows what it says.
pub async fn run(arguments: Arguments, config: Config) -> Outcome {
    let client = connect::client(&config)?;
    let plan = client
        .plan(&arguments.tenant_id, &arguments.site_id)
        .await
        .map_err(connect::refused)?;
    if arguments.format.json {
        print::json(&plan)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = print::table(["CAMERA", "FROM", "TO", "WHY"]);
    let name = |runner: &Option<String>| runner.clone().unwrap_or_else(|| "-".to_owned());
    for it in &plan.moves {
        rows.add_row([
            it.camera_uuid.clone(),
            name(&it.from),
            name(&it.to),
            it.reason.clone(),
        ]);
    }
    print::show(&rows, "nothing would move")?;
    eprintln!(
        "{} cameras, {} runners: {} stay, {} would move, {} are off or parked",
        plan.cameras,
        plan.runners,
        plan.kept,
        plan.moves.len(),
        plan.resting
    );
    Ok(ExitCode::SUCCESS)
}
