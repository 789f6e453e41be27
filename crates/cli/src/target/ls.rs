//! `leasehold target ls`.

use std::{process::ExitCode, sync::Arc};

use lease::{Authority, polling::TARGET};
use leasehold_api::TargetList;
use leasehold_client::pages::Pages;
use serde_json::{Map, Value};

use super::{StoreArgument, fields};
use crate::{
    exit::Outcome,
    print::{self, Format},
};

/// List the targets
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold target ls
  leasehold target ls --prefix eu- --json | jq '.targets[].url'

`leasehold nodes` shows who polls them.")]
pub struct Arguments {
    /// Only ids that begin with this
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    pub place: StoreArgument,
}

/// Reads and shows them.
pub async fn run(arguments: Arguments, authority: &Arc<dyn Authority>) -> Outcome {
    let mut pages = Pages::records(&**authority, TARGET, arguments.prefix.as_str());
    let records = pages.all().await?;
    let targets = records.iter().map(|record| {
        let mut fields = fields(record);
        fields.insert("id".to_owned(), record.key.id().into());
        fields
    });
    let targets: Vec<Map<String, Value>> = targets.collect();
    if arguments.format.json {
        print::json(&TargetList {
            targets,
            next_cursor: None,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = print::table(["TARGET", "STATE", "INTERVAL", "URL"]);
    for target in &targets {
        let text = |name: &str| target.get(name).and_then(Value::as_str).unwrap_or("-");
        let paused = target.get("isPaused") == Some(&Value::Bool(true));
        let interval = target.get("intervalSeconds").and_then(Value::as_f64);
        rows.add_row([
            text("id").to_owned(),
            if paused { "paused" } else { "active" }.to_owned(),
            interval.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds}s")),
            text("url").to_owned(),
        ]);
    }
    print::show(&rows, "no targets")?;
    Ok(ExitCode::SUCCESS)
}
