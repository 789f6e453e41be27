//! Data on standard output: tables for people, JSON for programs. Nothing depends on colour.

use std::{
    fmt::Write as _,
    io::{ErrorKind, Write as _},
};

use comfy_table::{ContentArrangement, Table, presets};
use jiff::Timestamp;
use lease::{Event, Lease, Status, UnixMillis};
use serde::Serialize;

use crate::{
    config::Period,
    exit::{Exit, Failure},
};

/// How data is printed.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Format {
    /// Print JSON for programs instead of a table for people
    #[arg(long)]
    pub json: bool,
}

/// Prints a value as one line of JSON.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|error| Failure::new(Exit::Failed, error))?;
    line(&text)
}

/// Prints a lease as the HTTP interface shows it.
pub fn lease_json(lease: &Lease) -> Result<(), Failure> {
    json(&leasehold_api::Lease::from(lease))
}

/// Prints a value as YAML, for people to read and to edit.
pub fn yaml(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_saphyr::to_string(value).map_err(|error| Failure::new(Exit::Failed, error))?;
    bytes(text.as_bytes())
}

/// Prints a line.
pub fn line(text: &str) -> Result<(), Failure> {
    bytes(format!("{text}\n").as_bytes())
}

/// Prints what is ready as it is. Whoever reads may stop reading (`| head`): that ends the program, and
/// is no failure to talk about.
pub fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => Failure::silent(Exit::Failed),
            _ => Failure::new(Exit::Failed, format!("cannot write: {error}")),
        })
}

/// An empty table with these columns.
pub fn table<const N: usize>(columns: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(columns);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// Prints a table, or what there is to say when it is empty.
pub fn show(table: &Table, empty: &str) -> Result<(), Failure> {
    if table.is_empty() {
        eprintln!("{empty}");
        return Ok(());
    }
    for text in table.lines() {
        line(text.trim_end())?;
    }
    Ok(())
}

/// Leases as a table.
pub fn leases(leases: &[Lease], now: UnixMillis) -> Result<(), Failure> {
    let mut rows = table(["KEY", "HOLDER", "TOKEN", "STATUS", "TTL", "LEFT", "SINCE"]);
    for lease in leases {
        rows.add_row([
            lease.key.to_string(),
            lease.holder.name.to_string(),
            lease.token.to_string(),
            status(lease, now).to_owned(),
            Period::from_millis(lease.ttl.millis()).to_string(),
            left(lease, now),
            time(lease.acquired_at),
        ]);
    }
    show(&rows, "no leases")
}

fn status(lease: &Lease, now: UnixMillis) -> &'static str {
    if lease.in_jeopardy(now) {
        "in jeopardy"
    } else {
        lease.status.as_str()
    }
}

fn left(lease: &Lease, now: UnixMillis) -> String {
    if lease.status != Status::Active {
        return "-".to_owned();
    }
    Period::from_millis(lease.lapses_at().since(now))
        .rounded()
        .to_string()
}

/// One event on one line.
pub fn event(event: &Event) -> Result<(), Failure> {
    let mut text = format!(
        "{:>8}  {}  {:<17}  {}",
        event.revision.get(),
        time(event.at),
        event.kind.as_str(),
        event.key
    );
    // Writing to a string cannot fail.
    if let Some(lease) = &event.lease {
        let _ = write!(text, "  {}  token {}", lease.holder.name, lease.token);
    }
    if let Some(why) = event.text() {
        let _ = write!(text, "  ({why})");
    }
    line(&text)
}

/// A moment, UTC.
pub fn time(at: UnixMillis) -> String {
    i64::try_from(at.get())
        .ok()
        .and_then(|millis| Timestamp::from_millisecond(millis).ok())
        .map_or_else(|| at.to_string(), |timestamp| format!("{timestamp:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339() {
        assert_eq!(
            time(UnixMillis::new(1_763_244_000_123)),
            "2025-11-15T22:00:00.123Z"
        );
    }
}
