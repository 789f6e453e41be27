//! `leasehold lease verify`.

use std::process::ExitCode;

use lease::{
    Authority, Error, EventQuery, Key, Revision,
    history::{self, Audit, Digest, Extent, Scope, Verifier},
};

use super::history::read;
use crate::{
    exit::{Exit, Failure, Outcome},
    print::{self, Format},
};

/// Verify that the history is unaltered, that no two owners overlap and that no token went backwards
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Every change is sealed soon after it is made: the digests of the records form a chain. A record that was \
changed, removed, inserted or moved afterwards breaks the chain, and so does a truncated history.

Someone who can rewrite both the records and the seals leaves no trace. Keep the head that this command \
prints somewhere else, and pass it to a later run with --head: it pins everything before it.

Examples:
  leasehold lease verify
  leasehold lease verify job:nightly --json
  leasehold lease verify --head \"$(cat noted-head)\"    # printed before

Lists every fault, oldest first, and exits with 80 if there is one.")]
pub struct Arguments {
    /// Only this key
    #[arg(value_name = "KIND:ID")]
    key: Option<Key>,
    /// Look for overlaps only among this kind of key
    #[arg(long, conflicts_with = "key")]
    kind: Option<String>,
    /// Only events after this revision
    #[arg(long, value_name = "REVISION", default_value_t = 0)]
    from: u64,
    /// A head that was noted earlier: the chain must still have it
    #[arg(long, value_name = "REVISION:DIGEST", value_parser = parse_head)]
    head: Option<(Revision, Digest)>,
    #[command(flatten)]
    format: Format,
}

fn parse_head(text: &str) -> Result<(Revision, Digest), String> {
    let expected = || "expected REVISION:DIGEST, as `lease verify` printed it".to_owned();
    let (revision, digest) = text.split_once(':').ok_or_else(expected)?;
    let revision = revision.parse().map_err(|_| expected())?;
    let digest = digest.parse().map_err(|_| expected())?;
    Ok((Revision::new(revision), digest))
}

/// What was found out.
struct Findings {
    events: u64,
    faults: Vec<String>,
    begins_late: bool,
    audit: Option<Audit>,
}

/// Reads the range once and judges it.
pub async fn run(arguments: Arguments, authority: &dyn Authority) -> Outcome {
    let format = arguments.format;
    let findings = judge(arguments, authority).await?;
    if format.json {
        let audit = findings.audit.as_ref();
        print::json(&serde_json::json!({
            "events": findings.events,
            "faults": findings.faults,
            "beginning_is_gone": findings.begins_late,
            "sealed": audit.is_some(),
            "unsealed": audit.map(|audit| audit.unsealed),
            "head": audit.and_then(head),
        }))?;
    } else {
        show(&findings)?;
    }
    if findings.begins_late {
        eprintln!("note: the history's beginning is no longer kept; only what is kept was checked");
    }
    if findings.audit.is_none() {
        eprintln!(
            "note: the seals are over all tenants' changes and were not looked at: that takes a token without a tenant"
        );
    }
    if findings.faults.is_empty() {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(Failure::new(
            Exit::CheckFailed,
            format!("{} faults in the history", findings.faults.len()),
        ))
    }
}

async fn judge(arguments: Arguments, authority: &dyn Authority) -> Result<Findings, Failure> {
    // What is missing is named by the seals, and without them only a part can be seen.
    let mut verifier = Verifier::new(Extent::Some);
    let after = Revision::new(arguments.from);
    let scope = Scope {
        key: arguments.key.clone(),
        after,
        most: None,
        head: arguments.head,
    };
    let kind = arguments.kind.as_deref();
    let audited = history::audit(authority, &scope, |event| {
        if kind.is_none_or(|kind| event.key.kind() == kind) {
            verifier.see(event);
        }
    })
    .await;
    let (audit, begins_late) = match audited {
        Ok(audit) => {
            let begins_late = audit.from > after.next() && audit.from > Revision::new(1);
            (Some(audit), begins_late)
        }
        Err(Error::Denied(_)) if arguments.head.is_none() => {
            let query = EventQuery {
                key: arguments.key,
                kind: arguments.kind,
                after,
                ..EventQuery::default()
            };
            let begins_late = read(authority, query, |event| verifier.see(&event)).await?;
            (None, begins_late)
        }
        Err(error) => return Err(error.into()),
    };
    let (seen, overlaps) = verifier.finish();
    let breaks = audit.iter().flat_map(|audit| &audit.breaks);
    Ok(Findings {
        events: audit.as_ref().map_or(seen, |audit| audit.events),
        faults: breaks
            .map(ToString::to_string)
            .chain(overlaps.iter().map(ToString::to_string))
            .collect(),
        begins_late,
        audit,
    })
}

fn show(findings: &Findings) -> Result<(), Failure> {
    for fault in &findings.faults {
        print::line(fault)?;
    }
    if !findings.faults.is_empty() {
        return Ok(());
    }
    let events = findings.events;
    match &findings.audit {
        None => print::line(&format!(
            "{events} events: no two owners overlap, and no token went back"
        )),
        Some(audit) => {
            print::line(&format!(
                "{events} events: as they were written, no two owners overlap, and no token went back"
            ))?;
            if audit.unsealed > 0 {
                print::line(&format!("{} of them are not sealed yet", audit.unsealed))?;
            }
            match head(audit) {
                Some(head) => print::line(&format!("head {head}")),
                None => Ok(()),
            }
        }
    }
}

fn head(audit: &Audit) -> Option<String> {
    let (revision, digest) = audit.head?;
    Some(format!("{revision}:{digest}"))
}
