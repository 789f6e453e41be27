//! `leasehold nodes`.

use std::{process::ExitCode, time::Duration};

use lease::Authority;
use leasehold_agents::poller;
use leasehold_api::{NodeList, NodeTarget, Time};

use crate::{
    config::Config,
    exit::{Failure, Outcome},
    poll,
    print::{self, Format},
};

/// How often `--watch` looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Show who polls what, and what nobody polls
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold nodes
  leasehold nodes --store redis://localhost:6379/ --watch
  leasehold nodes --json | jq '.unowned[].id'")]
pub struct Arguments {
    /// Where the state lives: redis://…, postgres://…, embedded:DIR [default: the server]
    #[arg(long, value_name = "URL", conflicts_with = "server")]
    store: Option<String>,
    /// Go on showing, until Ctrl-C
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    format: Format,
}

/// Shows the fleet once, or again and again.
pub async fn run(arguments: Arguments, config: Config) -> Outcome {
    let url = arguments.store.clone().or(config.poll.store.clone());
    let (authority, store) = poll::authority(url.as_deref(), &config).await?;
    loop {
        show(&*authority, arguments.format).await?;
        if !arguments.watch {
            break;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        if !arguments.format.json {
            print::line("")?;
        }
    }
    if let Some(store) = store {
        store.close().await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(authority: &dyn Authority, format: Format) -> Result<(), Failure> {
    let fleet = NodeList::from(poller::fleet(authority).await?);
    if format.json {
        return print::json(&fleet);
    }
    table(&fleet)
}

fn table(fleet: &NodeList) -> Result<(), Failure> {
    let mut rows = print::table([
        "NODE",
        "TARGET",
        "STATE",
        "TOKEN",
        "PREFERRED",
        "ACQUIRED",
        "RENEWED",
    ]);
    let time = |at: Option<Time>| at.map_or_else(|| "-".to_owned(), |at| at.to_string());
    let mut add = |node: String, target: &NodeTarget| {
        let here = target.preferred == target.owner;
        rows.add_row([
            node,
            target.id.clone(),
            target.state.as_str().to_owned(),
            target
                .token
                .map_or_else(|| "-".to_owned(), |token| token.to_string()),
            match &target.preferred {
                Some(_) if here => "(itself)".to_owned(),
                Some(preferred) => preferred.clone(),
                None => "-".to_owned(),
            },
            time(target.acquired_at),
            time(target.renewed_at),
        ]);
    };
    for node in &fleet.nodes {
        let name = match &node.name {
            Some(name) => format!("{} ({name})", node.id),
            None => node.id.clone(),
        };
        for target in &node.targets {
            add(name.clone(), target);
        }
    }
    for target in &fleet.foreign {
        add(
            format!("{} (no presence)", target.owner.as_deref().unwrap_or("-")),
            target,
        );
    }
    for target in &fleet.unowned {
        add("-".to_owned(), target);
    }
    let idle = fleet.nodes.iter().filter(|node| node.targets.is_empty());
    for node in idle {
        rows.add_row([node.id.as_str(), "-", "-", "-", "-", "-", "-"]);
    }
    print::show(&rows, "nobody polls, and there is nothing to poll")
}
