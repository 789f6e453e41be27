//! `leasehold lease ls`.

use std::process::ExitCode;

use lease::{Authority, HolderName, Lease, LeaseQuery, Status};

use leasehold_client::pages::{PAGE, Pages};

use crate::{
    exit::Outcome,
    print::{self, Format},
};

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
    if let Some(kind) = &arguments.kind {
        lease::check_kind(kind)?;
    }
    let all = arguments.all || arguments.kind.is_some();
    let query = LeaseQuery {
        kind: arguments.kind,
        holder: arguments.holder,
        status: arguments.status,
        limit: arguments.limit,
        ..LeaseQuery::default()
    };
    let mut hidden = 0;
    let shown = |lease: Lease| {
        let shown = all || !lease.key.is_reserved();
        hidden += usize::from(!shown);
        shown.then_some(lease)
    };
    let mut pages = Pages::new(authority, query);
    let mut leases = pages.select(arguments.limit, shown).await?;
    let more = pages.has_more() || leases.len() > arguments.limit;
    leases.truncate(arguments.limit);
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
