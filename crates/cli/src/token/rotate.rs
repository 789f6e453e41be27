//! `leasehold credential rotate`.

use super::{Source, create};
use crate::{config::Period, exit::Outcome, print::Format};

/// Give a credential a new secret; it keeps its id, its rights and its expiry
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold credential rotate ci > ci.key
  leasehold credential rotate ci --grace 1h > ci.key  # both for 1h")]
pub struct Arguments {
    /// Its name or id, from `leasehold credential ls`
    #[arg(value_name = "NAME")]
    id: String,
    /// How long the old secret stays valid beside the new one
    #[arg(long, value_name = "TIME", default_value = "0s")]
    grace: Period,
    #[command(flatten)]
    format: Format,
}

/// Rotates.
pub async fn run(arguments: &Arguments, place: &Source) -> Outcome {
    let found = place.one(&arguments.id).await?;
    let rotated = place.rotate(&found.id, arguments.grace.millis()).await?;
    create::show("rotated", &rotated, arguments.format)
}
