//! `leasehold nodes`.

use std::{process::ExitCode, sync::Arc, time::Duration};

use lease::Authority;
use leasehold_agents::poller::{self, Targets};
use leasehold_api::{NodeList, NodeTarget, Time};
use leasehold_client::Client;
use leasehold_store::Store;

use crate::{
    config::Config,
    connect,
    exit::{Failure, Outcome},
    poll,
    print::{self, Format},
};

/// How often `--watch` looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Show who polls what, and what nobody polls
///
/// One line per target: the instance that owns it, how that ownership stands (`owned`, or `uncertain`
/// when a renewal is overdue), under which token, and who should own it. Targets that nobody owns and
/// instances that own nothing are shown too. Targets that live in a file are known by the section
/// `poll` of the configuration.
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
    /// Keep showing, until Ctrl-C
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    format: Format,
}

/// Where the fleet is seen from.
enum View {
    /// The server's own view.
    Server(Client),
    /// What the store says, read from here.
    Store {
        authority: Arc<dyn Authority>,
        targets: Targets,
        opened: Option<Store>,
    },
}

impl View {
    async fn open(arguments: &Arguments, config: &Config) -> Result<Self, Failure> {
        let url = arguments.store.clone().or(config.poll.store.clone());
        let targets = config.poll.targets_file.clone();
        if url.is_none() && targets.is_none() {
            return Ok(Self::Server(connect::client(config)?));
        }
        let (authority, opened) = poll::authority(url.as_deref(), config).await?;
        Ok(Self::Store {
            authority,
            targets: targets.map_or(Targets::Store, Targets::File),
            opened,
        })
    }

    async fn look(&self) -> Result<NodeList, Failure> {
        match self {
            Self::Server(client) => Ok(client.nodes().await.map_err(lease::Error::from)?),
            Self::Store {
                authority, targets, ..
            } => match poller::fleet(&**authority, targets).await {
                Ok(fleet) => Ok(fleet.into()),
                Err(error) => Err(poll::failed(error)),
            },
        }
    }

    async fn close(self) -> Result<(), Failure> {
        if let Self::Store {
            opened: Some(store),
            ..
        } = self
        {
            store.close().await?;
        }
        Ok(())
    }
}

/// Shows the fleet once, or again and again.
pub async fn run(arguments: Arguments, config: Config) -> Outcome {
    let view = View::open(&arguments, &config).await?;
    show(&view.look().await?, arguments.format)?;
    if arguments.watch {
        watch(&view, arguments.format).await?;
    }
    view.close().await?;
    Ok(ExitCode::SUCCESS)
}

/// Shows it again and again, until Ctrl-C.
async fn watch(view: &View, format: Format) -> Result<(), Failure> {
    loop {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => return Ok(()),
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
        if !format.json {
            print::line("")?;
        }
        match view.look().await {
            Ok(fleet) => show(&fleet, format)?,
            // Whoever watches wants to see it come back.
            Err(failure) => eprintln!("{failure}"),
        }
    }
}

fn show(fleet: &NodeList, format: Format) -> Result<(), Failure> {
    if format.json {
        return print::json(fleet);
    }
    table(fleet)
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
