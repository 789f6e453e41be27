//! Whether another worker of the same name is alive. On one machine the kernel knows: every worker has
//! an abstract socket named after its incarnation for as long as its process lives, stopped or not.
//! Elsewhere only its renewals show it.

use std::{
    collections::BTreeMap,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
};

use lease::{
    Authority, Clock, Error, HolderName, Incarnation, Invalid, Key, Labels, Lease, LeaseRef,
};
use leasehold_api::sessions::STREAMS;
use leasehold_clock::Backoff;

use super::WORKER_KIND;

/// The label that says where a worker's mark can be looked for.
const PLACE: &str = "place";
/// How much of its ttl a living worker lets pass between two renewals, at most: a third, and some
/// patience.
const SILENCE: (u64, u64) = (9, 20);

/// The sign of a living process.
pub(super) struct Mark {
    incarnation: Incarnation,
    socket: Option<UnixListener>,
}

impl Mark {
    /// Sets the mark of this process. Without one it is recognised by its renewals only.
    pub fn set(incarnation: &Incarnation) -> Self {
        Self {
            incarnation: incarnation.clone(),
            socket: bind(incarnation).ok(),
        }
    }

    /// Where it can be looked for, if it can be.
    fn place(&self) -> Option<String> {
        self.socket.is_some().then(place).flatten()
    }

    /// What is written on things that belong to this process: see [`lives_by_note`].
    pub fn note(&self) -> String {
        let place = self.place().unwrap_or_default();
        format!("{}\n{place}\n", self.incarnation)
    }

    /// What a presence says about it, and about where its streams are served.
    pub fn labels(&self, streams_url: Option<&str>) -> Result<Labels, Invalid> {
        let place = self.place().map(|place| (PLACE.to_owned(), place));
        let streams = streams_url.map(|url| (STREAMS.to_owned(), url.to_owned()));
        let labels: BTreeMap<_, _> = place.into_iter().chain(streams).collect();
        Labels::new(labels)
    }
}

fn bind(incarnation: &Incarnation) -> std::io::Result<UnixListener> {
    let name = format!("leasehold/worker/{incarnation}");
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Where abstract sockets are seen: this boot of this machine, in this network namespace.
fn place() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let network = std::fs::read_link("/proc/self/ns/net").ok()?;
    Some(format!("{} {}", boot.trim(), network.to_str()?))
}

/// Whether the process behind a presence lives; `None` when that cannot be seen from here.
fn lives(presence: &Lease) -> Option<bool> {
    lives_at(&presence.holder.incarnation, presence.labels.get(PLACE)?)
}

/// The same for the process that wrote a note.
pub(super) fn lives_by_note(note: &str) -> Option<bool> {
    let (incarnation, seen_from) = note.trim_end().split_once('\n')?;
    lives_at(&incarnation.parse().ok()?, seen_from)
}

fn lives_at(incarnation: &Incarnation, seen_from: &str) -> Option<bool> {
    if place().as_deref() != Some(seen_from) {
        return None;
    }
    match bind(incarnation) {
        Ok(_) => Some(false),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Some(true),
        Err(_) => None,
    }
}

/// Whether a live worker has this name. A worker whose end cannot be seen from here counts as alive
/// until it has missed a renewal. The presence of a dead one is released: whoever takes it next is the
/// only successor.
pub(super) async fn has_live_worker(
    authority: &dyn Authority,
    clock: &dyn Clock,
    name: &HolderName,
) -> Result<bool, Error> {
    let key = Key::new(WORKER_KIND, name.as_str())?;
    let mut backoff = Backoff::new(100, 2_000);
    let mut first: Option<Lease> = None;
    loop {
        let found = async {
            let presence = authority.lease(key.clone()).await?;
            Ok::<_, Error>((presence, authority.now().await?))
        };
        match found.await {
            Ok((None, _)) => return Ok(false),
            Ok((Some(presence), now)) => {
                match lives(&presence) {
                    Some(true) => return Ok(true),
                    Some(false) => return bury(authority, &presence).await,
                    None => {}
                }
                let renewed = |lease: &Lease| lease.renewed_at.unwrap_or(lease.acquired_at);
                let before = first.get_or_insert_with(|| presence.clone());
                if presence.holder != before.holder || renewed(&presence) > renewed(before) {
                    return Ok(true);
                }
                let patience = presence.ttl.millis() * SILENCE.0 / SILENCE.1;
                if now.since(renewed(&presence)) > patience {
                    return bury(authority, &presence).await;
                }
            }
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "a worker waits for the authority");
            }
            Err(error) => return Err(error),
        }
        backoff.pause(clock).await;
    }
}

/// Ends the presence of a worker that is gone. By its token: a successor's is not touched.
async fn bury(authority: &dyn Authority, presence: &Lease) -> Result<bool, Error> {
    authority.release(LeaseRef::from(presence)).await?;
    Ok(false)
}
