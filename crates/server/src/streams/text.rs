//! What goes over a stream of changes, as text: each in the form that its reader understands.

use std::{fmt::Write as _, iter};

use lease::Revision;
use leasehold_api::{
    Event, Lease, Problem, Snapshot,
    authority::{Fault, FaultKind, Frame},
};

/// In which form changes are sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Format {
    /// The contract's: for people and programs of any kind.
    Public,
    /// The kernel's own: for another process's authority.
    Kernel,
}

/// What comes next on a stream, or why nothing does.
pub(super) type Said = Result<Frame, Box<Problem>>;

impl Format {
    /// The first words, from which on nothing is missed.
    pub fn greeting(self) -> String {
        match self {
            Self::Public => ": open\n\n".to_owned(),
            Self::Kernel => message(&Frame::Open, None, None),
        }
    }
}

/// Where a reader that has seen this resumes.
pub(super) fn revision(frame: &Frame) -> Option<Revision> {
    match frame {
        Frame::Event(event) => Some(event.revision),
        Frame::Snapshot(snapshot) => Some(snapshot.revision),
        Frame::Progress(revision) => Some(*revision),
        Frame::Open | Frame::Failed(_) | Frame::Goodbye => None,
    }
}

/// The text of one message, one part after the other: a snapshot has many, and is nowhere whole.
pub(super) fn written(format: Format, said: Said) -> Box<dyn Iterator<Item = String> + Send> {
    match said {
        Ok(Frame::Snapshot(snapshot)) => Box::new(parts(format, *snapshot)),
        said => Box::new(iter::once(match format {
            Format::Public => public(said),
            Format::Kernel => {
                let frame = said.unwrap_or_else(|problem| Frame::Failed(fault(*problem)));
                let id = revision(&frame);
                message(&frame, None, id)
            }
        })),
    }
}

/// A snapshot, lease by lease and record by record.
fn parts(format: Format, mut snapshot: lease::Snapshot) -> impl Iterator<Item = String> + Send {
    let leases = std::mem::take(&mut snapshot.leases);
    let records = std::mem::take(&mut snapshot.records);
    let id = snapshot.revision;
    // The same without its lists shows what stands around them.
    let bare = match format {
        Format::Public => {
            let bare = Snapshot {
                revision: id.get(),
                at: snapshot.at.into(),
                leases: Vec::new(),
            };
            message(&bare, Some("snapshot"), Some(id))
        }
        Format::Kernel => message(&Frame::Snapshot(Box::new(snapshot)), None, Some(id)),
    };
    let mut around = bare.split("[]").map(str::to_owned).collect::<Vec<_>>();
    let end = around.pop().unwrap_or_default();
    let mut around = around.into_iter();
    let leases = around.next().map(|before| {
        let item = move |lease: &lease::Lease| match format {
            Format::Public => json(&Lease::from(lease)),
            Format::Kernel => json(lease),
        };
        list(before, leases, item)
    });
    let records = around.next().map(|before| list(before, records, json));
    let lists = leases.into_iter().flatten();
    let lists = lists.chain(records.into_iter().flatten());
    lists.chain(iter::once(end))
}

fn list<T: Send + 'static>(
    mut before: String,
    items: Vec<T>,
    item: impl Fn(&T) -> String + Send + 'static,
) -> impl Iterator<Item = String> + Send {
    let items = items.into_iter().enumerate().map(move |(place, it)| {
        let comma = if place == 0 { "" } else { "," };
        format!("{comma}{}", item(&it))
    });
    before.push('[');
    iter::once(before)
        .chain(items)
        .chain(iter::once("]".to_owned()))
}

/// A store's failure has a fault of its own.
fn fault(problem: Problem) -> Fault {
    problem.fault.unwrap_or(Fault {
        kind: FaultKind::Unknown,
        field: None,
        text: problem.detail,
    })
}

fn public(said: Said) -> String {
    match said {
        Ok(Frame::Event(event)) => message(
            &Event::from(&event),
            Some(event.kind.as_str()),
            Some(event.revision),
        ),
        // A reader notes the id of an event without data and shows nothing.
        Ok(Frame::Progress(revision)) => {
            format!("id: {revision}\n: progress\n\n")
        }
        Ok(Frame::Snapshot(snapshot)) => parts(Format::Public, *snapshot).collect(),
        Ok(Frame::Open) => Format::Public.greeting(),
        Ok(Frame::Failed(fault)) => message(&fault, Some("failed"), None),
        Ok(Frame::Goodbye) => "event: goodbye\ndata: {}\n\n".to_owned(),
        Err(problem) => message(&problem, Some("failed"), None),
    }
}

fn message(
    data: &impl serde::Serialize,
    name: Option<&'static str>,
    id: Option<Revision>,
) -> String {
    let mut text = String::new();
    if let Some(name) = name {
        let _ = writeln!(text, "event: {name}");
    }
    if let Some(id) = id {
        let _ = writeln!(text, "id: {id}");
    }
    let _ = write!(text, "data: {}\n\n", json(data));
    text
}

/// JSON has no line breaks outside of strings, and there they are escaped.
fn json(data: &impl serde::Serialize) -> String {
    serde_json::to_string(data).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use lease::{Acquire, Holder, Key, Record, Ttl, UnixMillis};

    use super::*;

    /// Some leases and records of an engine.
    fn snapshot(leases: usize) -> lease::Snapshot {
        let mut engine = lease::engine::Engine::new(lease::engine::Options::default());
        let now = UnixMillis::new(1_800_000_000_000);
        let keys: Vec<Key> = (0..leases)
            .map(|n| {
                Key::new("job", &format!("[]{n}")).or_else(|_| Key::new("job", &n.to_string()))
            })
            .collect::<Result<_, _>>()
            .unwrap();
        for key in &keys {
            let holder = Holder::new("holder", "1").unwrap();
            let request = Acquire::one(key.clone(), holder, Ttl::from_secs(30).unwrap());
            let mut effects = lease::engine::Effects::default();
            engine
                .apply(now, lease::Command::Acquire(request), &mut effects)
                .unwrap();
        }
        let record = |key: &Key| Record {
            key: key.clone(),
            value: r#"{"empty":[]}"#.into(),
            revision: Revision::new(3),
        };
        lease::Snapshot {
            revision: Revision::new(7),
            at: now,
            leases: keys
                .iter()
                .filter_map(|key| engine.lease(now, key))
                .collect(),
            records: keys.iter().map(record).collect(),
        }
    }

    #[test]
    fn a_snapshot_in_parts_is_the_same_text_as_in_one_piece() {
        for leases in [0, 1, 300] {
            let snapshot = snapshot(leases);
            assert_eq!(snapshot.leases.len(), leases);
            let frame = Frame::Snapshot(Box::new(snapshot.clone()));
            let whole = message(&frame, None, Some(snapshot.revision));
            let parts: Vec<String> = written(Format::Kernel, Ok(frame.clone())).collect();
            assert_eq!(parts.concat(), whole);
            // Nothing is built in one piece that grows with the snapshot.
            assert!(parts.iter().all(|part| part.len() < 1_000));
            let public = Snapshot {
                revision: snapshot.revision.get(),
                at: snapshot.at.into(),
                leases: snapshot.leases.iter().map(Lease::from).collect(),
            };
            let whole = message(&public, Some("snapshot"), Some(snapshot.revision));
            let parts: Vec<String> = written(Format::Public, Ok(frame)).collect();
            assert_eq!(parts.concat(), whole);
        }
    }
}
