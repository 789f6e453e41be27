//! `leasehold lease acquire`.

use std::{collections::BTreeMap, process::ExitCode, sync::Arc};

use lease::{
    Acquire, Acquired, Authority, Cause, Grace, Key, Labels, Lease, OnOutage, REQUEST, Refusal,
    Ttl, Want,
};

use leasehold_api::LeaseList;

use crate::{
    config::{Config, Period, check_timing, parse_ttl},
    connect,
    exit::{Exit, Failure, Outcome},
    holder,
    print::{self, Format},
    waiting,
};

/// Acquire one key, all of several, or one of a pool
///
/// Nobody renews the lease for you: use `leasehold lease renew` before its ttl ends, or
/// `leasehold run`, which does all of it.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold lease acquire job:nightly --ttl 1m
  leasehold lease acquire job:nightly --wait 10s --json
  leasehold lease acquire --any slot:0 slot:1     # the first free one
  leasehold lease acquire job:a job:b             # both or none")]
pub struct Arguments {
    /// The keys to acquire
    #[arg(required = true, value_name = "KIND:ID")]
    keys: Vec<Key>,
    /// Take the first free one of the keys instead of all
    #[arg(long)]
    any: bool,
    /// How long it lasts unless renewed [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    ttl: Option<Period>,
    /// Wait in the queue for up to this long if somebody has it
    #[arg(long, value_name = "TIME", default_value = "0s")]
    wait: Period,
    /// What happens while the holder cannot reach the server: fail_closed, hold:TIME or
    /// continue:TIME
    #[arg(long, value_name = "POLICY", value_parser = parse_policy, default_value = "fail_closed")]
    on_outage: OnOutage,
    /// The holder's name [default: cli@HOST]
    #[arg(long, value_name = "NAME")]
    holder: Option<String>,
    /// A label for the lease; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
    /// Refuse if the holder already has this many leases of this kind
    #[arg(long, value_name = "COUNT")]
    limit: Option<u32>,
    /// Take it even from a live holder, for this reason (needs the scope leases:admin)
    #[arg(long, value_name = "REASON")]
    force: Option<String>,
    #[command(flatten)]
    format: Format,
}

/// Asks, and prints what was granted.
pub async fn run(arguments: Arguments, config: &Config, authority: &dyn Authority) -> Outcome {
    let server = connect::url(config);
    let mut config = config.clone();
    if let Some(ttl) = arguments.ttl {
        config.lease.ttl = ttl;
    }
    check_timing(&config)?;
    let name = arguments
        .holder
        .as_deref()
        .or(config.lease.holder.as_deref());
    let want = if arguments.any { Want::Any } else { Want::All };
    let mut labels: BTreeMap<String, String> = config.lease.labels;
    labels.extend(arguments.labels);
    if arguments.any {
        // So that a request whose answer was lost can be repeated.
        let id = leasehold_client::new_incarnation();
        let named = labels.entry(REQUEST.to_owned());
        named.or_insert_with(|| id.as_str().to_owned());
    }
    let request = Acquire {
        on_outage: arguments.on_outage,
        wait_ms: arguments.wait.millis(),
        limit: arguments.limit,
        force: arguments.force.map(Arc::from),
        labels: Labels::new(labels)?,
        ..Acquire::of(
            want(arguments.keys),
            holder::this_process(name)?,
            Ttl::from_millis(config.lease.ttl.millis())?,
        )
    };
    request.validate()?;
    let key = request.want.keys()[0].clone();
    let acquired = authority.acquire(request);
    match waiting::shown(authority, &key, &server, acquired).await? {
        Acquired::Granted { leases, .. } => {
            if arguments.format.json {
                granted_json(&leases)?;
            } else {
                print::leases(&leases, authority.now().await?)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Acquired::Refused(refusal) => Err(refused(&refusal)),
    }
}

/// As the HTTP interface answers: one lease by itself, several as a list.
fn granted_json(leases: &[Lease]) -> Result<(), Failure> {
    match leases {
        [lease] => print::lease_json(lease),
        _ => print::json(&LeaseList {
            leases: leases.iter().map(Into::into).collect(),
            ..LeaseList::default()
        }),
    }
}

/// A refusal as a failure: who has it, and for how long.
pub fn refused(refusal: &Refusal) -> Failure {
    let key = &refusal.key;
    let message = match &refusal.cause {
        Cause::Held {
            holder,
            token,
            left_ms,
            ..
        } => format!(
            "{key} is held by {} under token {token}; free in {} unless it is renewed",
            holder.name,
            Period::from_millis(*left_ms).rounded()
        ),
        Cause::Limit { limit } => format!(
            "the holder has {limit} leases of kind {} already",
            key.kind()
        ),
        Cause::QueueFull => format!("too many are waiting for {key}"),
        Cause::TokensExhausted => format!("{key} has used up its tokens"),
    };
    Failure::new(Exit::NotAcquired, message)
}

/// `fail_closed`, `hold:TIME`, `continue:TIME`.
pub fn parse_policy(text: &str) -> Result<OnOutage, String> {
    const EXPECTED: &str = "expected fail_closed, hold:TIME or continue:TIME, for example hold:30s";
    let (policy, grace) = match text.split_once(':') {
        None if text == "fail_closed" => return Ok(OnOutage::FailClosed),
        None => return Err(EXPECTED.to_owned()),
        Some((policy, grace)) => (policy, grace),
    };
    let grace: Period = grace.parse().map_err(|_| EXPECTED.to_owned())?;
    let grace = Grace::from_millis(grace.millis()).map_err(|invalid| invalid.to_string())?;
    match policy {
        "hold" => Ok(OnOutage::Hold(grace)),
        "continue" => Ok(OnOutage::Continue(grace)),
        _ => Err(EXPECTED.to_owned()),
    }
}

/// `NAME=VALUE`.
pub fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err("expected NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_written() {
        assert_eq!(parse_policy("fail_closed"), Ok(OnOutage::FailClosed));
        let grace = Grace::from_millis(30_000).unwrap();
        assert_eq!(parse_policy("hold:30s"), Ok(OnOutage::Hold(grace)));
        assert_eq!(parse_policy("continue:30"), Ok(OnOutage::Continue(grace)));
        for wrong in ["hold", "hold:", "hold:0s", "open:3s", "", "hold:2d"] {
            assert!(parse_policy(wrong).is_err(), "{wrong}");
        }
    }
}
