//! Lists of leases and of records, page by page, against the real store in memory.

use lease::{
    Acquire, Acquired, Authority, Error, Holder, Key, Lease, LeaseQuery, LeaseRef, RecordQuery,
    Transaction, Want, Write,
};
use leasehold_client::pages::{Listing, PAGE, Pages};

use crate::{
    faulty::{Faulty, Network},
    world::{World, key, ttl},
};

/// Small pages: what is tested is where one ends, not how large it is.
const SMALL: usize = 5;

fn ids(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| format!("{number:06}")).collect()
}

async fn acquire(store: &dyn Authority, ids: &[String]) -> Vec<Lease> {
    let holder = Holder::new("one", "1").unwrap();
    let mut granted = Vec::new();
    for some in ids.chunks(Acquire::MAX_KEYS) {
        let keys = some.iter().map(|id| key(id)).collect();
        let request = Acquire {
            want: Want::All(keys),
            ..Acquire::one(key("any"), holder.clone(), ttl(600_000))
        };
        match store.acquire(request).await.unwrap() {
            Acquired::Granted { leases, .. } => granted.extend(leases),
            other @ Acquired::Refused(_) => panic!("{other:?}"),
        }
    }
    granted
}

async fn write(store: &dyn Authority, ids: &[String]) {
    for some in ids.chunks(Transaction::MAX_ITEMS) {
        let writes = some.iter().map(|id| Write {
            key: Key::new("test", id).unwrap(),
            value: Some("1".into()),
            note: None,
        });
        let transaction = Transaction {
            writes: writes.collect(),
            ..Transaction::default()
        };
        store.commit(transaction).await.unwrap();
    }
}

fn leases() -> LeaseQuery {
    LeaseQuery {
        limit: SMALL,
        ..LeaseQuery::active("test")
    }
}

fn records() -> RecordQuery {
    RecordQuery {
        kind: "test".into(),
        prefix: String::new(),
        after: None,
        limit: SMALL,
    }
}

/// The ids on each page.
async fn pages_of<Q: Listing>(
    store: &dyn Authority,
    query: Q,
    id: fn(&Q::Item) -> &Key,
) -> Vec<Vec<String>> {
    let mut pages = Pages::new(store, query);
    let mut found = Vec::new();
    while let Some(page) = pages.next().await.unwrap() {
        found.push(page.iter().map(|it| id(it).id().to_owned()).collect());
    }
    assert!(!pages.has_more());
    assert!(pages.next().await.unwrap().is_none(), "it stays at its end");
    found
}

#[tokio::test]
async fn every_entry_is_on_one_page_however_many_there_are() {
    for count in [0, 1, SMALL - 1, SMALL, SMALL + 1, 2 * SMALL, 7 * SMALL + 3] {
        let world = World::new();
        let ids = ids(0..count);
        acquire(&*world.store, &ids).await;
        write(&*world.store, &ids).await;
        // A list without entries has one page with nothing on it.
        let expected: Vec<Vec<String>> = match count {
            0 => vec![Vec::new()],
            _ => ids.chunks(SMALL).map(<[_]>::to_vec).collect(),
        };
        let by_lease = pages_of(&*world.store, leases(), |it| &it.key).await;
        let by_record = pages_of(&*world.store, records(), |it| &it.key).await;
        assert_eq!(by_lease, expected, "{count} leases");
        assert_eq!(by_record, expected, "{count} records");
    }
}

#[tokio::test]
async fn a_page_is_never_larger_than_the_largest() {
    let world = World::new();
    let ids = ids(0..PAGE + 7);
    acquire(&*world.store, &ids).await;
    write(&*world.store, &ids).await;
    for limit in [0, usize::MAX] {
        let leases = LeaseQuery { limit, ..leases() };
        let records = RecordQuery { limit, ..records() };
        let by_lease = pages_of(&*world.store, leases, |it| &it.key).await;
        let by_record = pages_of(&*world.store, records, |it| &it.key).await;
        let sizes = |pages: &[Vec<String>]| pages.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(&by_lease), [PAGE, 7]);
        assert_eq!(sizes(&by_record), [PAGE, 7]);
    }
    let mut some = Pages::records(&*world.store, "test", "00100");
    assert_eq!(some.all().await.unwrap().len(), 7, "001000 to 001006");
    let mut none = Pages::records(&*world.store, "none", "");
    assert_eq!(none.all().await.unwrap(), []);
}

#[tokio::test]
async fn what_ends_between_two_pages_moves_nothing_else() {
    let world = World::new();
    let store = &*world.store;
    let ids = ids(0..3 * SMALL);
    let granted = acquire(store, &ids).await;
    let mut pages = Pages::new(store, leases());
    let first = pages.next().await.unwrap().expect("a page");
    assert_eq!(first, granted[..SMALL]);
    // One that was read, the one that the page ended with, the next one, and one further on.
    for gone in [1, SMALL - 1, SMALL, SMALL + 3] {
        let lease = LeaseRef::from(&granted[gone]);
        assert!(store.release(lease).await.unwrap());
    }
    // And some begin: before the place that was reached, and after it.
    acquire(store, &["000001-new".to_owned(), "000007-new".to_owned()]).await;
    let rest = pages.all().await.unwrap();
    let rest: Vec<&str> = rest.iter().map(|it| it.key.id()).collect();
    let mut expected: Vec<&str> = ids[SMALL + 1..].iter().map(String::as_str).collect();
    expected.retain(|id| *id != ids[SMALL + 3]);
    expected.insert(2, "000007-new");
    assert_eq!(rest, expected);
}

#[tokio::test]
async fn an_error_in_the_middle_is_passed_on_and_the_page_can_be_asked_for_again() {
    let world = World::new();
    let ids = ids(0..2 * SMALL + 1);
    let granted = acquire(&*world.store, &ids).await;
    let network = Faulty::new(world.store.clone(), world.clock.clone());
    let mut pages = Pages::new(&*network, leases());
    assert_eq!(
        pages.next().await.unwrap().as_deref(),
        Some(&granted[..SMALL])
    );
    network.set(Network::Refused);
    assert!(matches!(pages.all().await, Err(Error::Unavailable(_))));
    assert!(matches!(pages.first(1).await, Err(Error::Unavailable(_))));
    assert!(pages.has_more());
    network.set(Network::Fine);
    assert_eq!(pages.all().await.unwrap(), granted[SMALL..]);
}

#[tokio::test]
async fn only_what_is_wanted_counts_towards_the_most() {
    let world = World::new();
    let ids = ids(0..4 * SMALL);
    acquire(&*world.store, &ids).await;
    let even = |lease: Lease| {
        let number: usize = lease.key.id().parse().expect("a number");
        number.is_multiple_of(2).then_some(number)
    };
    let mut pages = Pages::new(&*world.store, leases());
    assert_eq!(pages.select(4, even).await.unwrap(), [0, 2, 4, 6, 8]);
    assert!(pages.has_more());
    assert!(pages.select(0, even).await.unwrap().is_empty());
    let rest = pages.select(usize::MAX, even).await.unwrap();
    assert_eq!(rest, [10, 12, 14, 16, 18]);
    assert!(!pages.has_more());
}
