//! `leasehold target add`.

use std::{process::ExitCode, sync::Arc};

use lease::Authority;
use serde_json::{Map, Value};

use super::{StoreArgument, change};
use crate::exit::{Exit, Failure, Outcome};

/// Add a target, or change the named fields of one that exists
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold target add save-1 --url https://api.example/saves/1
  leasehold target add save-2 --interval 30 --set region=eu
  leasehold target add save-3 --store redis://localhost:6379/

`--set` takes NAME=VALUE; a VALUE that is JSON (3, true, {\"a\": 1}) is kept
as that, anything else as a text. `poll.url` may name such fields.")]
pub struct Arguments {
    /// Its id
    #[arg(value_name = "TARGET")]
    id: String,
    /// Its address, unless `poll.url` has it
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// How often it is polled, in seconds: 4 to 120
    #[arg(long, value_name = "SECONDS")]
    interval: Option<f64>,
    /// Add it paused
    #[arg(long)]
    paused: bool,
    /// Any other field of its document
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    pub place: StoreArgument,
}

/// Writes it.
pub async fn run(arguments: Arguments, authority: &Arc<dyn Authority>) -> Outcome {
    let mut named = Map::new();
    for pair in &arguments.set {
        let (name, value) = pair.split_once('=').ok_or_else(|| {
            Failure::new(Exit::Usage, format!("--set {pair}: expected NAME=VALUE"))
        })?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        named.insert(name.to_owned(), value);
    }
    if let Some(url) = arguments.url {
        named.insert("url".to_owned(), url.into());
    }
    if let Some(seconds) = arguments.interval {
        named.insert("intervalSeconds".to_owned(), seconds.into());
    }
    if arguments.paused {
        named.insert("isPaused".to_owned(), true.into());
    }
    change(authority, &arguments.id, "added", |before| {
        let mut fields = before.unwrap_or_default();
        fields.extend(named.clone());
        Ok(Some(fields))
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}
