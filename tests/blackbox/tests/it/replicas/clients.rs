//! Holders under load. Each believes only what the rules let it believe, and writes that down.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use lease::{
    Acquire, Acquired, Authority, Error, Holder, Key, Lease, LeaseRef, Renew, Renewal, Renewals,
    Token, Ttl,
};
use leasehold_client::Remote;

use crate::cli_support::boot_ms;

/// Keys that everybody wants.
const SHARED_KEYS: usize = 6;
/// Short, so that what a dead holder had comes free again within the test.
const TTL_MS: u64 = 3_000;
/// The pause after a failure.
const PAUSE: Duration = Duration::from_millis(20);

/// A time in which a client believed that it owned a key.
#[derive(Clone, Debug)]
pub struct Belief {
    pub key: Key,
    pub token: Token,
    pub client: usize,
    /// From the answer of the grant …
    pub from_ms: u64,
    /// … until it sent the release, learnt of the loss, or reached its deadline (L10).
    pub to_ms: u64,
}

/// What one client saw.
#[derive(Default)]
pub struct Seen {
    pub beliefs: Vec<Belief>,
    pub errors: BTreeMap<&'static str, u64>,
}

/// One client with a way to every server.
pub struct Client {
    pub number: usize,
    pub remotes: Vec<Remote>,
    pub stop: Arc<AtomicBool>,
    pub grants: Arc<AtomicU64>,
}

fn ttl() -> Ttl {
    Ttl::from_millis(TTL_MS).expect("a ttl")
}

/// Every failure is of a sort that says whether a repeat may help; nothing else may come.
fn sort_of(error: &Error) -> &'static str {
    match error {
        Error::Unavailable(_) => "unavailable",
        Error::Unknown(_) => "unknown",
        other => panic!("a fault must be told as one that passes: {other:?}"),
    }
}

impl Client {
    /// Takes and gives back until it is told to stop.
    pub async fn run(self) -> Seen {
        let mut seen = Seen::default();
        let holder = Holder::new(&format!("client-{}", self.number), "1").expect("a holder");
        for turn in self.number.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let remote = &self.remotes[turn % self.remotes.len()];
            let name = format!("{}", (turn * 7 + self.number) % SHARED_KEYS);
            let key = Key::new("shared", &name).expect("a key");
            let sent_ms = boot_ms();
            let request = Acquire::one(key, holder.clone(), ttl());
            match remote.acquire(request).await {
                Ok(Acquired::Granted { leases, .. }) => {
                    self.grants.fetch_add(1, Ordering::Relaxed);
                    let lease = leases.into_iter().next().expect("one lease");
                    let belief = self.hold(remote, lease, sent_ms, turn, &mut seen).await;
                    seen.beliefs.push(belief);
                }
                Ok(Acquired::Refused(_)) => tokio::time::sleep(PAUSE / 4).await,
                Err(error) => {
                    *seen.errors.entry(sort_of(&error)).or_default() += 1;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        seen
    }

    /// Works for a moment, renews, works on, and gives back; or goes away without a word.
    async fn hold(
        &self,
        remote: &Remote,
        lease: Lease,
        sent_ms: u64,
        turn: usize,
        seen: &mut Seen,
    ) -> Belief {
        let mut belief = Belief {
            key: lease.key.clone(),
            token: lease.token,
            client: self.number,
            from_ms: boot_ms(),
            to_ms: sent_ms + TTL_MS,
        };
        tokio::time::sleep(Duration::from_millis(5 + (turn as u64 * 13) % 60)).await;
        let again_ms = boot_ms();
        let renew = Renew {
            holder: lease.holder.clone(),
            leases: Renewals::These(vec![Renewal::of(&lease)]),
        };
        match remote.renew(renew).await {
            Ok(renewed) => {
                let Ok(kept) = &renewed[0].outcome else {
                    belief.to_ms = belief.to_ms.min(again_ms);
                    return belief;
                };
                assert_eq!(kept.token, lease.token, "renewals never change it (L3)");
                belief.to_ms = again_ms + TTL_MS;
            }
            // Not lost: it believes on until its deadline (L11).
            Err(error) => *seen.errors.entry(sort_of(&error)).or_default() += 1,
        }
        if turn.is_multiple_of(23) {
            return belief;
        }
        belief.to_ms = belief.to_ms.min(boot_ms());
        for remote in &self.remotes {
            match remote.release(LeaseRef::from(&lease)).await {
                Ok(_) => break,
                Err(error) => *seen.errors.entry(sort_of(&error)).or_default() += 1,
            }
        }
        belief
    }
}
