//! `leasehold lease ls`.

use std::process::ExitCode;

use lease::{Authority, HolderName, Lease, LeaseQuery, Status};

use crate::{
    exit::Outcome,
    print::{self, Format},
};

/// Leases asked for at a time.
const PAGE: usize = 1_000;

/// List leases
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold lease ls
  leasehold lease ls --kind camera --holder runner-3
  leasehold lease ls --json | jq -r .holder
  leasehold lease ls --all                 # the server's own leases too")]
pub struct Arguments {
    /// Only this kind of key
    #[arg(long)]
    kind: Option<String>,
    /// Only this holder
    #[arg(long, value_name = "NAME")]
    holder: Option<HolderName>,
    /// Only this status: pending, active, expired, released, revoked [default: all that is live]
    #[arg(long, value_parser = parse_status)]
    status: Option<Status>,
    /// Also the kinds that belong to the server's own agents: sessions, tuners, nodes, …
    #[arg(long)]
    all: bool,
    /// Show at most this many
    #[arg(long, value_name = "COUNT", default_value_t = PAGE)]
    limit: usize,
    #[command(flatten)]
    format: Format,
}

fn parse_status(word: &str) -> Result<Status, String> {
    Status::parse(word)
        .ok_or_else(|| "expected pending, active, expired, released or revoked".to_owned())
}

/// Lists, page after page.
pub async fn run(arguments: Arguments, authority: &dyn Authority) -> Outcome {
    let mut query = LeaseQuery {
        kind: arguments.kind,
        holder: arguments.holder,
        status: arguments.status,
        ..LeaseQuery::default()
    };
    if let Some(kind) = &query.kind {
        lease::check_kind(kind)?;
    }
    let (mut leases, mut hidden) = (Vec::new(), 0);
    let more = loop {
        query.limit = PAGE.min(arguments.limit.saturating_sub(leases.len()));
        if query.limit == 0 {
            break true;
        }
        let page = authority.leases(query.clone()).await?;
        query.after = page.items.last().map(|lease| lease.key.clone());
        let shown =
            |lease: &Lease| arguments.all || query.kind.is_some() || !lease.key.is_reserved();
        hidden += page.items.iter().filter(|lease| !shown(lease)).count();
        leases.extend(page.items.into_iter().filter(shown));
        if !page.more || query.after.is_none() {
            break false;
        }
    };
    if arguments.format.json {
        for lease in &leases {
            print::lease_json(lease)?;
        }
    } else {
        print::leases(&leases, authority.now().await?)?;
    }
    if more {
        eprintln!("there may be more: see --limit");
    }
    if hidden > 0 && !arguments.format.json {
        eprintln!("{hidden} of the server's own are not shown: see --all");
    }
    Ok(ExitCode::SUCCESS)
}
