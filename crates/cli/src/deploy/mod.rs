//! `leasehold deploy`: one file per verb, and what they share.

mod order;
mod start;
mod status;

use std::time::Duration;

use clap::Subcommand;
use leasehold_api::Deployment;
use leasehold_client::Client;

use crate::{
    config::Config,
    connect::{self, refused},
    exit::{Exit, Failure, Outcome},
    print::{self, Format},
    progress::Bar,
};

/// How often `--wait` looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The verbs of `leasehold deploy`.
#[derive(Subcommand, Debug)]
pub enum Verb {
    Start(start::Arguments),
    Status(status::Arguments),
    Pause(order::Pause),
    Resume(order::Resume),
    Rollback(order::Rollback),
}

/// Which group a verb is about.
#[derive(clap::Args, Clone, Debug)]
pub struct Group {
    /// The tenant
    #[arg(value_name = "TENANT")]
    tenant_id: String,
    /// The site
    #[arg(value_name = "SITE")]
    site_id: String,
    /// The deployment group of the runners
    #[arg(value_name = "GROUP", id = "group")]
    name: String,
}

impl Group {
    fn parts(&self) -> (&str, &str, &str) {
        (&self.tenant_id, &self.site_id, &self.name)
    }
}

/// Connects and does it.
pub async fn run(verb: Verb, config: Config) -> Outcome {
    let client = connect::client(&config)?;
    match verb {
        Verb::Start(arguments) => start::run(arguments, &client).await,
        Verb::Status(arguments) => status::run(arguments, &client).await,
        Verb::Pause(arguments) => order::pause(arguments, &client).await,
        Verb::Resume(arguments) => order::resume(arguments, &client).await,
        Verb::Rollback(arguments) => order::rollback(arguments, &client).await,
    }
}

/// Reports how a deployment stands.
fn report(deployment: &Deployment, format: Format) -> Result<(), Failure> {
    if format.json {
        return print::json(deployment);
    }
    eprintln!(
        "{}: {}; {} cameras on version {}, {} on version {}",
        deployment.state,
        deployment.note,
        deployment.cameras_old,
        deployment.from_version,
        deployment.cameras_new,
        deployment.to_version
    );
    Ok(())
}

/// Waits until a deployment is over, and fails unless it is done.
async fn over(client: &Client, group: &Group) -> Result<Deployment, Failure> {
    let (tenant, site, name) = group.parts();
    let mut bar = Bar::default();
    loop {
        let now = client
            .deployment(tenant, site, name)
            .await
            .map_err(refused)?;
        let (moved, all) = (now.cameras_new, now.cameras_new + now.cameras_old);
        bar.show("shifted", moved as u64, all as u64);
        match now.state.as_str() {
            "done" => {
                bar.end();
                return Ok(now);
            }
            "rolled_back" => {
                bar.end();
                return Err(Failure::new(Exit::CheckFailed, now.note)
                    .hint("`leasehold deploy status TENANT SITE GROUP` shows its history"));
            }
            _ => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}
