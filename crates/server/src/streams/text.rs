//! What goes over a stream of changes, as text: each in the form that its reader understands.

use std::{io::Write as _, iter};

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
    pub fn greeting(self) -> Vec<u8> {
        let mut text = Vec::new();
        match self {
            Self::Public => text.extend(b": open\n\n"),
            Self::Kernel => message(&mut text, &Frame::Open, None, None),
        }
        text
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

/// Appends one message; a snapshot, which is nowhere whole, is returned instead, one part after the other.
pub(super) fn write(
    text: &mut Vec<u8>,
    format: Format,
    said: Said,
) -> impl Iterator<Item = Vec<u8>> + Send + use<> {
    let snapshot = match format {
        Format::Public => public(text, said),
        Format::Kernel => kernel(text, said),
    };
    let parts = snapshot.map(|snapshot| parts(format, *snapshot));
    parts.into_iter().flatten()
}

/// A snapshot, lease by lease and record by record.
fn parts(format: Format, mut snapshot: lease::Snapshot) -> impl Iterator<Item = Vec<u8>> + Send {
    let leases = std::mem::take(&mut snapshot.leases);
    let records = std::mem::take(&mut snapshot.records);
    let id = snapshot.revision;
    // The same without its lists shows what stands around them.
    let mut bare = Vec::new();
    match format {
        Format::Public => {
            let snapshot = Snapshot {
                revision: id.get(),
                at: snapshot.at.into(),
                leases: Vec::new(),
            };
            message(&mut bare, &snapshot, Some("snapshot"), Some(id));
        }
        Format::Kernel => {
            let snapshot = Frame::Snapshot(Box::new(snapshot));
            message(&mut bare, &snapshot, None, Some(id));
        }
    }
    let bare = String::from_utf8_lossy(&bare);
    let mut around: Vec<Vec<u8>> = bare.split("[]").map(Into::into).collect();
    let end = around.pop().unwrap_or_default();
    let mut around = around.into_iter();
    let leases = around.next().map(|before| {
        let item = move |text: &mut Vec<u8>, lease: &lease::Lease| match format {
            Format::Public => json(text, &Lease::from(lease)),
            Format::Kernel => json(text, lease),
        };
        list(before, leases, item)
    });
    let records = around.next().map(|before| list(before, records, json));
    let lists = leases.into_iter().flatten();
    let lists = lists.chain(records.into_iter().flatten());
    lists.chain(iter::once(end))
}

fn list<T: Send + 'static>(
    mut before: Vec<u8>,
    items: Vec<T>,
    item: impl Fn(&mut Vec<u8>, &T) + Send + 'static,
) -> impl Iterator<Item = Vec<u8>> + Send {
    let items = items.into_iter().enumerate().map(move |(place, it)| {
        let mut text = Vec::new();
        if place > 0 {
            text.push(b',');
        }
        item(&mut text, &it);
        text
    });
    before.push(b'[');
    iter::once(before)
        .chain(items)
        .chain(iter::once(vec![b']']))
}

/// A store's failure has a fault of its own.
fn fault(problem: Problem) -> Fault {
    problem.fault.unwrap_or(Fault {
        kind: FaultKind::Unknown,
        field: None,
        text: problem.detail,
    })
}

/// Returns a snapshot instead of writing it.
fn kernel(text: &mut Vec<u8>, said: Said) -> Option<Box<lease::Snapshot>> {
    match said.unwrap_or_else(|problem| Frame::Failed(fault(*problem))) {
        Frame::Snapshot(snapshot) => return Some(snapshot),
        frame => message(text, &frame, None, revision(&frame)),
    }
    None
}

/// Returns a snapshot instead of writing it.
fn public(text: &mut Vec<u8>, said: Said) -> Option<Box<lease::Snapshot>> {
    match said {
        Ok(Frame::Event(event)) => message(
            text,
            &Event::from(&*event),
            Some(event.kind.as_str()),
            Some(event.revision),
        ),
        // A reader notes the id of an event without data and shows nothing.
        Ok(Frame::Progress(revision)) => {
            // Memory takes everything.
            let _ = write!(text, "id: {revision}\n: progress\n\n");
        }
        Ok(Frame::Snapshot(snapshot)) => return Some(snapshot),
        Ok(Frame::Open) => text.extend(Format::Public.greeting()),
        Ok(Frame::Failed(fault)) => message(text, &fault, Some("failed"), None),
        Ok(Frame::Goodbye) => text.extend(b"event: goodbye\ndata: {}\n\n"),
        Err(problem) => message(text, &problem, Some("failed"), None),
    }
    None
}

fn message(
    text: &mut Vec<u8>,
    data: &impl serde::Serialize,
    name: Option<&'static str>,
    id: Option<Revision>,
) {
    // Without a formatter: there is a line of each for every change.
    if let Some(name) = name {
        text.extend_from_slice(b"event: ");
        text.extend_from_slice(name.as_bytes());
        text.push(b'\n');
    }
    if let Some(id) = id {
        text.extend_from_slice(b"id: ");
        json(text, &id.get());
        text.push(b'\n');
    }
    text.extend_from_slice(b"data: ");
    json(text, data);
    text.extend_from_slice(b"\n\n");
}

/// JSON has no line breaks outside of strings, and there they are escaped.
fn json(text: &mut Vec<u8>, data: &impl serde::Serialize) {
    // Memory takes everything, and no map here has keys that are no text.
    let _ = serde_json::to_writer(text, data);
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
            let mut whole = Vec::new();
            message(&mut whole, &frame, None, Some(snapshot.revision));
            let parts = in_parts(Format::Kernel, frame.clone());
            assert_eq!(parts.concat(), whole);
            // Nothing is built in one piece that grows with the snapshot.
            assert!(parts.iter().all(|part| part.len() < 1_000));
            let public = Snapshot {
                revision: snapshot.revision.get(),
                at: snapshot.at.into(),
                leases: snapshot.leases.iter().map(Lease::from).collect(),
            };
            whole.clear();
            message(
                &mut whole,
                &public,
                Some("snapshot"),
                Some(snapshot.revision),
            );
            assert_eq!(in_parts(Format::Public, frame).concat(), whole);
        }
    }

    fn in_parts(format: Format, frame: Frame) -> Vec<Vec<u8>> {
        let mut text = Vec::new();
        let parts = write(&mut text, format, Ok(frame)).collect();
        assert_eq!(text, b"", "it is all in the parts");
        parts
    }
}
