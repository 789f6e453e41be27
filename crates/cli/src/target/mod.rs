//! `leasehold target`: what is polled, in whichever store.

mod add;
mod ls;
mod rm;
mod state;

use std::sync::Arc;

use clap::Subcommand;
use lease::{Authority, Record, polling};
use leasehold_client::documents::{self, Edit};
use serde_json::{Map, Value};

use crate::{
    config::Config,
    exit::{Exit, Failure, Outcome},
    poll,
};

/// The verbs of `leasehold target`.
#[derive(Subcommand, Debug)]
pub enum Verb {
    Add(add::Arguments),
    Pause(state::Pause),
    Resume(state::Resume),
    Rm(rm::Arguments),
    Ls(ls::Arguments),
}

/// Where the targets are.
#[derive(clap::Args, Debug)]
pub struct StoreArgument {
    /// Where the state lives: redis://…, postgres://…, embedded:DIR [default: the server]
    #[arg(long, value_name = "URL", conflicts_with = "server")]
    store: Option<String>,
}

/// Opens the store, does it, and closes the store.
pub async fn run(verb: Verb, config: Config) -> Outcome {
    let place = match &verb {
        Verb::Add(arguments) => &arguments.place,
        Verb::Pause(state::Pause { arguments }) | Verb::Resume(state::Resume { arguments }) => {
            &arguments.place
        }
        Verb::Rm(arguments) => &arguments.place,
        Verb::Ls(arguments) => &arguments.place,
    };
    let url = place.store.clone().or(config.poll.store.clone());
    let (authority, store) = poll::authority(url.as_deref(), &config).await?;
    let done = match verb {
        Verb::Add(arguments) => add::run(arguments, &authority).await,
        Verb::Pause(state::Pause { arguments }) => state::run(arguments, true, &authority).await,
        Verb::Resume(state::Resume { arguments }) => state::run(arguments, false, &authority).await,
        Verb::Rm(arguments) => rm::run(arguments, &authority).await,
        Verb::Ls(arguments) => ls::run(arguments, &authority).await,
    };
    if let Some(store) = store {
        store.close().await?;
    }
    done
}

/// The fields of a target's document.
fn fields(record: &Record) -> Map<String, Value> {
    serde_json::from_str(&record.value).unwrap_or_default()
}

fn unknown(id: &str) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no target {id}"))
}

/// Reads a target, and writes what becomes of it: `None` removes it. Tried again when somebody else
/// changed it meanwhile.
async fn change(
    authority: &Arc<dyn Authority>,
    id: &str,
    note: &'static str,
    become_of: impl Fn(Option<Map<String, Value>>) -> Result<Option<Map<String, Value>>, Failure>,
) -> Result<(), Failure> {
    let key = polling::target_key(id)?;
    documents::change(&**authority, &key, |found| {
        Ok(match become_of(found.as_ref().map(fields))? {
            Some(fields) => {
                let text = polling::target_document(id, fields)?;
                Edit::Put(text.into(), note.into(), ())
            }
            None => Edit::Remove(note.into(), ()),
        })
    })
    .await
}
