//! Documents that many change simultaneously, on every store: no update is lost, and nobody is given up.

use std::sync::Arc;

use futures_util::future::join_all;
use lease::{Authority, Error, Key};
use leasehold_client::documents::{self, Contended, Edit};
use leasehold_clock::System;
use leasehold_store::{
    embedded::{self, Embedded},
    postgres::Postgres,
    redis::Redis,
};
use leasehold_testkit::{Postgres as PostgresServer, redis::Redis as RedisServer};

const WRITERS: u64 = 24;

/// Each writer adds one, to what it read.
async fn count_together(authority: &dyn Authority) {
    let key = Key::new("count", "one").unwrap();
    let add = |_| {
        documents::change(authority, &key, |found| {
            let before = found.map_or(0, |it| it.value.parse().expect("a number"));
            let after: u64 = before + 1;
            Ok::<_, Error>(Edit::Put(after.to_string().into(), "added".into(), after))
        })
    };
    let answers = join_all((0..WRITERS).map(add)).await;
    let mut answers: Vec<u64> = answers.into_iter().map(|it| it.expect("added")).collect();
    answers.sort_unstable();
    assert_eq!(answers, (1..=WRITERS).collect::<Vec<_>>(), "each its own");
    let found = authority.record(key.clone()).await.unwrap();
    assert_eq!(&*found.expect("there").value, WRITERS.to_string());
    let removed = documents::change(authority, &key, |found| {
        Ok::<_, Error>(Edit::Remove("removed".into(), found.is_some()))
    });
    assert!(removed.await.unwrap());
    assert_eq!(authority.record(key).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_change_one_document_in_the_embedded_store() {
    let store = Embedded::memory(embedded::Options::default(), Arc::new(System)).unwrap();
    count_together(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_change_one_document_on_postgres() {
    let server = PostgresServer::shared().await;
    let store = Postgres::open(server.url().parse().unwrap()).await.unwrap();
    count_together(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_change_one_document_on_redis() {
    let server = RedisServer::start().await;
    let store = Redis::open_url(&server.url()).await.unwrap();
    count_together(&store).await;
}

#[tokio::test]
async fn a_document_that_never_stays_as_it_was_read_is_given_up() {
    let store = Embedded::memory(embedded::Options::default(), Arc::new(System)).unwrap();
    let key = Key::new("count", "one").unwrap();
    assert_eq!(contested(&store, &key).await, Err(Contended));
    let value = store.record(key).await.unwrap().expect("theirs").value;
    assert_ne!(&*value, "\"mine\"");
}

/// A change during which another one is made at every attempt.
async fn contested(store: &Embedded, key: &Key) -> Result<(), Contended> {
    let mut attempts = documents::Attempts::default();
    let mut number = 0_u32;
    loop {
        attempts.next().await?;
        let found = store.record(key.clone()).await.unwrap();
        number += 1;
        let theirs = documents::change(store, key, |_| {
            Ok::<_, Error>(Edit::Put(number.to_string().into(), "theirs".into(), ()))
        });
        theirs.await.unwrap();
        let mine = lease::Transaction {
            expect: vec![lease::Expect {
                key: key.clone(),
                revision: found.map(|it| it.revision),
            }],
            writes: vec![lease::Write {
                key: key.clone(),
                value: Some("\"mine\"".into()),
                note: None,
            }],
            ..lease::Transaction::default()
        };
        if documents::committed(store, mine).await.unwrap() {
            return Ok(());
        }
    }
}
