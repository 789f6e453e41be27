//! A little life, and what its history says.
#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::time::Duration;

use lease::{
    Acquire, Acquired, Authority, EventQuery, Holder, Key, LeaseRef, Revision, Ttl,
    history::{self, Audit, Digest, Scope, What},
};

/// No step takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Takes and gives back, `rounds` times, one of four keys.
pub async fn live(store: &dyn Authority, rounds: usize) {
    let holder = Holder::new("ann", "1").unwrap();
    for round in 0..rounds {
        let key = Key::new("job", &format!("k{}", round % 4)).unwrap();
        let ask = Acquire::one(key, holder.clone(), Ttl::from_secs(60).unwrap());
        if let Acquired::Granted { leases, .. } = store.acquire(ask).await.unwrap() {
            store.release(LeaseRef::from(&leases[0])).await.unwrap();
        }
    }
}

pub async fn audit(store: &dyn Authority, key: Option<&str>) -> Audit {
    let scope = Scope {
        key: key.map(|key| key.parse().unwrap()),
        ..Scope::default()
    };
    history::audit(store, &scope, |_| {}).await.unwrap()
}

pub async fn check_head(store: &dyn Authority, head: (Revision, Digest)) -> Audit {
    let scope = Scope {
        head: Some(head),
        ..Scope::default()
    };
    history::audit(store, &scope, |_| {}).await.unwrap()
}

/// The first thing that is wrong.
pub async fn broken(store: &dyn Authority, key: Option<&str>) -> (Revision, What) {
    let found = audit(store, key).await.breaks;
    let first = found.into_iter().next().expect("the tampering shows");
    (first.revision, first.what)
}

/// Nothing is wrong, as a whole and for each key.
pub async fn sound(store: &dyn Authority) {
    for key in [None, Some("job:k0"), Some("job:k3")] {
        assert_eq!(audit(store, key).await.breaks, [], "{key:?}");
    }
}

/// Waits until everything that happened so far is sealed.
pub async fn sealed(store: &dyn Authority) {
    let newest = *revisions(store).await.last().unwrap();
    until("everything is sealed", async || {
        let audit = audit(store, None).await;
        audit.head.is_some_and(|(sealed, _)| sealed >= newest)
    })
    .await;
}

pub async fn until(what: &str, check: impl AsyncFn() -> bool) {
    let looking = async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let came = tokio::time::timeout(PATIENCE, looking).await;
    assert!(came.is_ok(), "did not come to pass: {what}");
}

/// The revisions that the history has.
pub async fn revisions(store: &dyn Authority) -> Vec<Revision> {
    let query = EventQuery {
        limit: 10_000,
        ..EventQuery::default()
    };
    let page = store.events(query).await.unwrap();
    page.events
        .into_iter()
        .map(|event| event.revision)
        .collect()
}
