//! `leasehold lease history`.

use std::process::ExitCode;

use jiff::Timestamp;
use lease::{
    Authority, Event, EventQuery, Key, Revision, UnixMillis,
    history::{Ownership, owner_at, owners},
};

use crate::{
    exit::{Exit, Failure, Outcome},
    print::{self, Format},
};

/// Events asked for at a time.
const PAGE: usize = 1_000;

/// Show who owned a key, when, under which token, and why that ended
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold lease history job:nightly
  leasehold lease history job:nightly --at 2026-11-15T03:00:00Z")]
pub struct Arguments {
    /// The key
    #[arg(value_name = "KIND:ID")]
    key: Key,
    /// Only who owned it at this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    #[command(flatten)]
    format: Format,
}

/// Reads the key's events and shows its owners.
pub async fn run(arguments: Arguments, authority: &dyn Authority) -> Outcome {
    let mut events: Vec<Event> = Vec::new();
    let query = EventQuery {
        key: Some(arguments.key.clone()),
        ..EventQuery::default()
    };
    read(authority, query, |event| events.push(event)).await?;
    let found: Vec<Ownership> = match arguments.at {
        Some(at) => {
            let millis = u64::try_from(at.as_millisecond()).unwrap_or(0);
            owner_at(&events, UnixMillis::new(millis))
                .into_iter()
                .collect()
        }
        None => owners(&events),
    };
    if found.is_empty() {
        let when = arguments.at.map_or(String::new(), |at| format!(" at {at}"));
        return Err(Failure::new(
            Exit::NotFound,
            format!(
                "nobody owned {}{when}, as far as the history goes back",
                arguments.key
            ),
        ));
    }
    show(&found, arguments.format)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a range of the history, page after page. Returns whether its beginning is gone.
pub async fn read(
    authority: &dyn Authority,
    mut query: EventQuery,
    mut see: impl FnMut(Event),
) -> Result<bool, Failure> {
    let from = query.after;
    let mut has_gap = false;
    query.limit = PAGE;
    loop {
        let page = authority.events(query.clone()).await?;
        has_gap |= page.oldest > from.next() && page.oldest > Revision::new(1);
        query.after = page
            .events
            .last()
            .map_or(query.after, |event| event.revision);
        let done = !page.more || page.events.is_empty();
        page.events.into_iter().for_each(&mut see);
        if done {
            return Ok(has_gap);
        }
    }
}

fn show(found: &[Ownership], format: Format) -> Result<(), Failure> {
    if format.json {
        for owner in found {
            print::json(&leasehold_api::Owner::from(owner))?;
        }
        return Ok(());
    }
    let mut rows = print::table(["HOLDER", "TOKEN", "FROM", "UNTIL", "ENDED BY", "WHY"]);
    for owner in found {
        let (until, ended) = match &owner.until {
            Some((at, kind)) => (print::time(*at), kind.as_str()),
            None => ("now".to_owned(), "-"),
        };
        rows.add_row([
            owner.lease.holder.to_string(),
            owner.lease.token.to_string(),
            print::time(owner.from),
            until,
            ended.to_owned(),
            owner.detail.as_deref().unwrap_or("-").to_owned(),
        ]);
    }
    print::show(&rows, "")
}
