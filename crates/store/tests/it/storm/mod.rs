//! Many concurrent callers on few keys: a store that decides several commands in one step must decide as
//! if each had come alone.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use lease::{
    Acquire, Acquired, Authority, EventQuery, Holder, Key, Lease, LeaseRef, Renew, Renewal,
    Renewals, Revision, Ttl, Want,
    history::{Extent, Verifier},
};

const CALLERS: usize = 48;
const TURNS: usize = 25;
const KEYS: usize = 6;

fn key(number: usize) -> Key {
    Key::new("storm", &(number % KEYS).to_string()).expect("a key")
}

/// What this caller asks for in this round: one key, two, or one of a pool.
fn request(caller: usize, turn: usize) -> Acquire {
    let place = caller * 7 + turn * 5;
    let want = match place % 4 {
        0 | 1 => Want::one(key(place)),
        2 => Want::All(vec![key(place), key(place + 1)]),
        _ => Want::Any(vec![key(place), key(place + 2), key(place + 3)]),
    };
    let holder = Holder::new(&format!("caller-{caller}"), "1").expect("a holder");
    Acquire::of(want, holder, Ttl::from_secs(60).expect("a ttl"))
}

async fn live_through(store: &dyn Authority, caller: usize, held: &Mutex<HashSet<Key>>) -> usize {
    let mut grants = 0;
    for turn in 0..TURNS {
        let asked = request(caller, turn);
        let Acquired::Granted { leases, fresh } = store.acquire(asked).await.expect("answered")
        else {
            continue;
        };
        assert!(fresh, "everything was given back before");
        grants += leases.len();
        for lease in &leases {
            let free = held.lock().expect("unharmed").insert(lease.key.clone());
            assert!(free, "{} has two owners (L1)", lease.key);
        }
        if turn % 3 == 0 {
            keep(store, &leases).await;
        }
        for lease in leases {
            // Before it is sent: the next owner may have it before the answer is here.
            held.lock().expect("unharmed").remove(&lease.key);
            let done = store.release(LeaseRef::from(&lease)).await;
            assert!(done.expect("answered"), "its owner releases it");
        }
    }
    grants
}

async fn keep(store: &dyn Authority, leases: &[Lease]) {
    let renewals = leases.iter().map(Renewal::of).collect();
    let kept = store.renew(Renew {
        holder: leases[0].holder.clone(),
        leases: Renewals::These(renewals),
    });
    for renewed in kept.await.expect("answered") {
        assert!(renewed.outcome.is_ok(), "{renewed:?}");
    }
}

/// Lets many work concurrently; no key has two owners, and the history says so too (L21).
pub async fn storm(store: Arc<dyn Authority>) {
    let held = Arc::new(Mutex::new(HashSet::new()));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (store, held) = (store.clone(), held.clone());
            tokio::spawn(async move { live_through(&*store, caller, &held).await })
        })
        .collect();
    let mut grants = 0;
    for caller in callers {
        grants += caller.await.expect("no caller failed");
    }
    assert!(grants > CALLERS, "the keys went around");
    let mut verifier = Verifier::new(Extent::Consecutive);
    let (mut after, mut seen) = (Revision::ZERO, 0);
    loop {
        let page = store.events(EventQuery {
            after,
            limit: 1000,
            ..EventQuery::default()
        });
        let page = page.await.expect("answered");
        for event in &page.events {
            verifier.see(event);
            after = event.revision;
            seen += usize::from(event.key.kind() == "storm");
        }
        if !page.more {
            break;
        }
    }
    assert_eq!(verifier.finish().1, []);
    assert_eq!(seen, 2 * grants, "each grant and each release is an event");
}
