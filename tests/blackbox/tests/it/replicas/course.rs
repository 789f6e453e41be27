//! The faults, one after the other, and what must hold after all of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use lease::{
    Acquire, Acquired, Authority, Event, EventKind, EventQuery, Holder, Key, Lease, Renew, Renewal,
    Renewals, Revision, Token, Ttl,
};
use leasehold_client::Remote;
use leasehold_testkit::{Postgres, Proxy, Redis, wait};

use super::{
    clients::{Belief, Client, Seen},
    fleet::Fleet,
};

use crate::cli_support::SOON;

const CLIENTS: usize = 9;
/// Leases that are held through everything.
const LASTING: usize = 5;
const CALM: Duration = Duration::from_millis(700);

/// The database behind the fleet.
pub enum Database {
    Postgres(Box<Postgres>),
    Redis(Box<Redis>),
}

impl Database {
    async fn restart(&mut self) {
        match self {
            Self::Postgres(server) => server.restart().await,
            Self::Redis(server) => server.restart().await,
        }
    }

    fn kill9(&mut self) {
        match self {
            Self::Postgres(server) => server.kill9(),
            Self::Redis(server) => server.kill9(),
        }
    }

    fn pause(&mut self) {
        match self {
            Self::Postgres(server) => server.pause(),
            Self::Redis(server) => server.pause(),
        }
    }

    fn resume(&mut self) {
        match self {
            Self::Postgres(server) => server.resume(),
            Self::Redis(server) => server.resume(),
        }
    }
}

/// Runs the faults under load, then looks at everything that was seen.
pub async fn run(mut fleet: Fleet, mut database: Database, proxy: Proxy) {
    let lasting = hold_for_long(&fleet.remotes()[0]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let grants = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let client = Client {
                number,
                remotes: fleet.remotes(),
                stop: stop.clone(),
                grants: grants.clone(),
            };
            tokio::spawn(client.run())
        })
        .collect();
    tokio::time::sleep(CALM).await;

    fleet.kill(&[0], Duration::from_millis(500)).await;
    recovered(&grants, "a killed server").await;
    database.restart().await;
    recovered(&grants, "a restart of the database").await;
    database.pause();
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    database.resume();
    recovered(&grants, "a pause of the database").await;
    proxy.delay(Duration::from_millis(120));
    tokio::time::sleep(Duration::from_secs(2)).await;
    proxy.pass();
    recovered(&grants, "a slow database").await;
    database.kill9();
    tokio::time::sleep(CALM).await;
    database.restart().await;
    recovered(&grants, "a crash of the database").await;
    fleet.kill(&[1, 2], Duration::from_millis(300)).await;
    proxy.cut();
    tokio::time::sleep(CALM).await;
    proxy.pass();
    recovered(&grants, "two killed servers and a cut").await;
    assert!(fleet.all_run(), "no fault of the database ends a server");

    stop.store(true, Ordering::Relaxed);
    let mut seen = Vec::new();
    for client in clients {
        seen.push(client.await.expect("no client saw anything wrong"));
    }
    judge(&fleet.remotes()[1], &lasting, &seen).await;
}

/// Load gets through again, without anybody's help.
async fn recovered(grants: &AtomicU64, after: &str) {
    let before = grants.load(Ordering::Relaxed);
    let enough = before + 2 * CLIENTS as u64;
    let what = format!("the clients to get on after {after}");
    wait::until(SOON, &what, async || {
        grants.load(Ordering::Relaxed) > enough
    })
    .await;
    tokio::time::sleep(CALM).await;
}

async fn hold_for_long(remote: &Remote) -> Vec<Lease> {
    let mut lasting = Vec::new();
    for number in 0..LASTING {
        let key = Key::new("lasting", &number.to_string()).expect("a key");
        let holder = Holder::new("steady", "1").expect("a holder");
        let request = Acquire::one(key, holder, Ttl::from_secs(300).expect("a ttl"));
        let acquired = remote.acquire(request).await;
        let Acquired::Granted { leases, .. } = acquired.expect("an answer") else {
            panic!("nobody else wants it")
        };
        lasting.extend(leases);
    }
    lasting
}

async fn judge(remote: &Remote, lasting: &[Lease], seen: &[Seen]) {
    let mut beliefs: BTreeMap<Key, Vec<Belief>> = BTreeMap::new();
    let mut errors: BTreeMap<&str, u64> = BTreeMap::new();
    for client in seen {
        for belief in &client.beliefs {
            let of_key = beliefs.entry(belief.key.clone()).or_default();
            of_key.push(belief.clone());
        }
        for (sort, count) in &client.errors {
            *errors.entry(sort).or_default() += count;
        }
    }
    let granted: usize = beliefs.values().map(Vec::len).sum();
    println!(
        "{granted} grants on {} keys; failures {errors:?}",
        beliefs.len()
    );
    assert!(
        granted > 100 && !errors.is_empty(),
        "faults came under load"
    );
    for believed in beliefs.values_mut() {
        never_two(believed);
    }
    // What was acknowledged before everything is still there, under its token.
    let renew = Renew {
        holder: lasting[0].holder.clone(),
        leases: Renewals::These(lasting.iter().map(Renewal::of).collect()),
    };
    for renewed in remote.renew(renew).await.expect("an answer") {
        let kept = renewed.outcome.as_ref();
        assert!(kept.is_ok(), "{}: {kept:?}", renewed.key);
    }
    // And every grant that a client heard of is in the history.
    let known = acquired(remote).await;
    for belief in beliefs.values().flatten() {
        let grant = (belief.key.clone(), belief.token);
        assert!(known.contains(&grant), "{belief:?} is not in the history");
    }
}

/// L1 and L3 as the holders themselves saw it.
fn never_two(believed: &mut [Belief]) {
    believed.sort_by_key(|belief| (belief.from_ms, belief.to_ms));
    for pair in believed.windows(2) {
        let [first, second] = pair else { continue };
        // A holder that did not hear the answer of its release may have its own lease again (L2).
        if first.client == second.client && first.token == second.token {
            continue;
        }
        assert!(first.token < second.token, "tokens only grow: {pair:?}");
        assert!(
            second.from_ms >= first.to_ms,
            "two holders at once: {pair:?}"
        );
    }
}

async fn acquired(remote: &Remote) -> BTreeSet<(Key, Token)> {
    let (mut known, mut after) = (BTreeSet::new(), Revision::ZERO);
    loop {
        let query = EventQuery {
            after,
            event: Some(EventKind::LeaseAcquired),
            limit: 1_000,
            ..EventQuery::default()
        };
        let page = remote.events(query).await.expect("a page");
        let Some(last) = page.events.last() else {
            return known;
        };
        after = last.revision;
        let grant = |event: Event| Some((event.key, event.lease?.token));
        known.extend(page.events.into_iter().filter_map(grant));
    }
}
