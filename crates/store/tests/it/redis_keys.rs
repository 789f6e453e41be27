//! What other programs see and do: the documented keys, looked at and changed with raw commands.

use std::time::Duration;

use lease::{
    Acquire, Acquired, Authority, Cause, EventKind, EventQuery, Expect, Grace, HandoffState,
    HandoffStep, Holder, Key, Lease, LeaseQuery, LeaseRef, Loss, OnOutage, RecordQuery, Renew,
    Renewal, Renewals, Token, Transaction, Ttl, Watching, Write,
};
use leasehold_store::redis::{Options, Redis};
use leasehold_testkit::{redis::Redis as Server, wait};

const LIMIT: Duration = Duration::from_secs(20);

async fn open(server: &Server) -> Redis {
    Redis::open_url(&server.url())
        .await
        .expect("the store opens")
}

fn key(text: &str) -> Key {
    text.parse().expect("a key")
}

fn ask(what: &str, who: &str) -> Acquire {
    let holder = Holder::new(who, "1").expect("a holder");
    Acquire::one(key(what), holder, Ttl::from_secs(30).expect("a ttl"))
}

async fn take(store: &Redis, request: Acquire) -> Lease {
    match store.acquire(request).await.expect("answered") {
        Acquired::Granted { mut leases, .. } => leases.remove(0),
        Acquired::Refused(refusal) => panic!("refused: {refusal:?}"),
    }
}

async fn holder_of(store: &Redis, request: Acquire) -> (Holder, Token, u64) {
    match store.acquire(request).await.expect("answered") {
        Acquired::Refused(refusal) => match refusal.cause {
            Cause::Held {
                holder,
                token,
                left_ms,
                ..
            } => (holder, token, left_ms),
            cause => panic!("{cause:?}"),
        },
        granted @ Acquired::Granted { .. } => panic!("{granted:?}"),
    }
}

async fn renew(store: &Redis, lease: &Lease) -> Result<Lease, Loss> {
    let answers = store.renew(Renew {
        holder: lease.holder.clone(),
        leases: Renewals::These(vec![Renewal::of(lease)]),
    });
    answers.await.expect("answered").remove(0).outcome
}

async fn pttl(server: &Server, name: &str) -> i64 {
    let answer = server.cli(&["PTTL", name]).await;
    answer.parse().expect("a number")
}

#[tokio::test]
async fn a_polling_lease_is_the_documented_key_value_and_ttl() {
    let server = Server::start().await;
    let store = open(&server).await;
    let lease = take(&store, ask("poll:cam-1", "host-1-abc")).await;
    assert_eq!(server.cli(&["GET", "poll:lease:cam-1"]).await, "host-1-abc");
    let left = pttl(&server, "poll:lease:cam-1").await;
    assert!((29_000..=30_000).contains(&left), "{left}");
    let fence = server.cli(&["GET", "poll:fence:cam-1"]).await;
    assert_eq!(fence, lease.token.to_string());
    assert_eq!(pttl(&server, "poll:fence:cam-1").await, -1, "no expiry");

    server.cli(&["PEXPIRE", "poll:lease:cam-1", "20000"]).await;
    renew(&store, &lease).await.expect("kept");
    let left = pttl(&server, "poll:lease:cam-1").await;
    assert!(
        (29_000..=30_000).contains(&left),
        "a renewal sets it anew: {left}"
    );

    assert!(
        store
            .release(LeaseRef::from(&lease))
            .await
            .expect("answered")
    );
    assert_eq!(server.cli(&["EXISTS", "poll:lease:cam-1"]).await, "0");
    let fence = server.cli(&["GET", "poll:fence:cam-1"]).await;
    assert_eq!(fence, lease.token.to_string(), "the token stays (L3)");
    assert!(take(&store, ask("poll:cam-1", "other")).await.token > lease.token);
}

#[tokio::test]
async fn presence_and_other_kinds_have_their_keys() {
    let server = Server::start().await;
    let store = open(&server).await;
    take(&store, ask("node:host-1", "host-1")).await;
    assert_eq!(server.cli(&["GET", "poll:node:host-1"]).await, "1");
    assert!(pttl(&server, "poll:node:host-1").await > 29_000);
    let lease = take(&store, ask("camera:front:door", "ann")).await;
    assert_eq!(server.cli(&["GET", "lease:camera:front:door"]).await, "ann");
    let fence = server.cli(&["GET", "fence:camera:front:door"]).await;
    assert_eq!(fence, lease.token.to_string());
    assert_eq!(pttl(&server, "fence:camera:front:door").await, -1);
    let held = Acquire {
        on_outage: OnOutage::Hold(Grace::from_millis(60_000).expect("a grace")),
        ..ask("camera:held", "ann")
    };
    take(&store, held).await;
    let left = pttl(&server, "lease:camera:held").await;
    assert!((89_000..=90_000).contains(&left), "with its grace: {left}");
}

#[tokio::test]
async fn a_foreign_holder_is_respected_and_its_end_wakes_a_waiter() {
    let server = Server::start().await;
    let store = open(&server).await;
    server
        .cli(&["SET", "poll:lease:cam-1", "host-9", "PX", "60000"])
        .await;
    let (holder, token, left) = holder_of(&store, ask("poll:cam-1", "ann")).await;
    assert_eq!((holder.name.as_str(), token), ("host-9", Token::ZERO));
    assert!((55_000..=60_000).contains(&left), "{left}");
    assert_eq!(server.cli(&["GET", "poll:lease:cam-1"]).await, "host-9");
    let seen = store.lease(key("poll:cam-1")).await.expect("answered");
    assert_eq!(seen.expect("shown").holder.name.as_str(), "host-9");
    let listed = store.leases(LeaseQuery {
        kind: Some("poll".into()),
        limit: 10,
        ..LeaseQuery::default()
    });
    assert_eq!(listed.await.expect("answered").items.len(), 1);

    let patient = Acquire {
        wait_ms: 10_000,
        ..ask("poll:cam-1", "ann")
    };
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { take(&store, patient).await }
    });
    wait::until(LIMIT, "the waiter to queue", async || {
        server.cli(&["HLEN", "leasehold:waiting"]).await == "1"
    })
    .await;
    server.cli(&["DEL", "poll:lease:cam-1"]).await;
    let lease = tokio::time::timeout(LIMIT, waiting)
        .await
        .expect("in time")
        .expect("granted");
    assert_eq!(server.cli(&["GET", "poll:lease:cam-1"]).await, "ann");
    assert!(lease.token > Token::ZERO);
}

#[tokio::test]
async fn a_value_without_an_end_or_with_a_strange_name_is_respected_too() {
    let server = Server::start().await;
    let store = open(&server).await;
    server.cli(&["SET", "lease:job:a", "two words"]).await;
    let (holder, _, left) = holder_of(&store, ask("job:a", "ann")).await;
    assert_eq!(holder.name.as_str(), "foreign");
    assert_eq!(left, Ttl::MAX_MILLIS);
    server.cli(&["HSET", "lease:job:b", "a", "1"]).await;
    holder_of(&store, ask("job:b", "ann")).await;
    // The same name is not the same holder: nothing of ours knows of it.
    server
        .cli(&["SET", "lease:job:c", "ann", "PX", "9000"])
        .await;
    holder_of(&store, ask("job:c", "ann")).await;
}

#[tokio::test]
async fn a_foreign_node_is_seen_as_alive() {
    let server = Server::start().await;
    let store = open(&server).await;
    take(&store, ask("node:ours", "ours")).await;
    server
        .cli(&["SET", "poll:node:theirs", "1", "PX", "30000"])
        .await;
    let nodes = store.leases(LeaseQuery {
        kind: Some("node".into()),
        limit: 10,
        ..LeaseQuery::default()
    });
    let nodes: Vec<_> = nodes
        .await
        .expect("answered")
        .items
        .into_iter()
        .map(|lease| (lease.key.to_string(), lease.holder.name.to_string()))
        .collect();
    let expected = [("node:ours", "ours"), ("node:theirs", "theirs")];
    assert_eq!(nodes, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
}

#[tokio::test]
async fn l7_a_key_that_another_program_removed_or_took_is_lost_and_not_put_back() {
    let server = Server::start().await;
    let store = open(&server).await;
    let removed = take(&store, ask("poll:a", "ann")).await;
    let taken = take(&store, ask("poll:b", "ann")).await;
    server.cli(&["DEL", "poll:lease:a"]).await;
    server
        .cli(&["SET", "poll:lease:b", "host-9", "PX", "30000"])
        .await;
    assert!(matches!(
        renew(&store, &removed).await,
        Err(Loss::Revoked { .. })
    ));
    assert_eq!(server.cli(&["EXISTS", "poll:lease:a"]).await, "0");
    assert_eq!(renew(&store, &taken).await, Err(Loss::Stolen));
    assert_eq!(server.cli(&["GET", "poll:lease:b"]).await, "host-9");
    assert!(
        !store
            .release(LeaseRef::from(&taken))
            .await
            .expect("answered")
    );
    assert_eq!(server.cli(&["GET", "poll:lease:b"]).await, "host-9");
    assert!(take(&store, ask("poll:a", "bob")).await.token > removed.token);
    let events = store.events(EventQuery {
        limit: 10,
        ..EventQuery::default()
    });
    let events = events.await.expect("answered").events;
    let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(
        kinds[2..],
        [
            EventKind::LeaseRevoked,
            EventKind::LeaseStolen,
            EventKind::LeaseAcquired
        ]
    );
}

#[tokio::test]
async fn targets_that_other_programs_write_are_records() {
    let server = Server::start().await;
    let store = open(&server).await;
    for id in ["b", "a"] {
        let json = format!(r#"{{"id":"{id}","isPaused":false,"url":"http://x/{id}"}}"#);
        server.cli(&["SET", &format!("session:{id}"), &json]).await;
    }
    let query = RecordQuery {
        kind: "target".into(),
        prefix: String::new(),
        after: None,
        limit: 10,
    };
    let page = store.records(query.clone()).await.expect("answered");
    let keys: Vec<_> = page
        .items
        .iter()
        .map(|record| record.key.to_string())
        .collect();
    assert_eq!(keys, ["target:a", "target:b"]);
    let before = &page.items[0];
    let write = |expected| Transaction {
        expect: vec![Expect {
            key: before.key.clone(),
            revision: Some(expected),
        }],
        writes: vec![Write {
            key: before.key.clone(),
            value: Some(r#"{"id":"a","isPaused":true}"#.into()),
            note: None,
        }],
        ..Transaction::default()
    };
    let done = store
        .commit(write(before.revision))
        .await
        .expect("answered");
    assert!(matches!(done, lease::Committed::Done { .. }), "{done:?}");
    assert_eq!(
        server.cli(&["GET", "session:a"]).await,
        r#"{"id":"a","isPaused":true}"#
    );
    let ours = store.record(key("target:a")).await.expect("answered");
    let ours = ours.expect("there");
    assert!(
        ours.revision > before.revision,
        "revisions of ours are above"
    );
    // A foreign write in between is noticed.
    server.cli(&["SET", "session:a", r#"{"id":"a"}"#]).await;
    let conflict = store.commit(write(ours.revision)).await.expect("answered");
    assert!(
        matches!(conflict, lease::Committed::Conflict { .. }),
        "{conflict:?}"
    );
    server.cli(&["DEL", "session:a"]).await;
    assert_eq!(store.record(key("target:a")).await.expect("answered"), None);
    assert_eq!(store.records(query).await.expect("answered").items.len(), 1);
}

#[tokio::test]
async fn forgotten_scripts_are_sent_again() {
    let server = Server::start().await;
    let store = open(&server).await;
    let lease = take(&store, ask("job:a", "ann")).await;
    server.cli(&["SCRIPT", "FLUSH"]).await;
    renew(&store, &lease).await.expect("kept");
    assert!(
        store
            .release(LeaseRef::from(&lease))
            .await
            .expect("answered")
    );
}

#[tokio::test]
async fn prefixes_keep_installations_apart() {
    let server = Server::start().await;
    let open = async |prefix: &str| {
        let url = format!("{}?prefix={prefix}:", server.url());
        Redis::open_url(&url).await.expect("the store opens")
    };
    let (blue, green) = (open("blue").await, open("green").await);
    take(&blue, ask("poll:a", "ann")).await;
    take(&green, ask("poll:a", "bob")).await;
    assert_eq!(server.cli(&["GET", "blue:poll:lease:a"]).await, "ann");
    assert_eq!(server.cli(&["GET", "green:poll:lease:a"]).await, "bob");
}

#[tokio::test]
async fn a_server_that_may_throw_keys_away_is_refused_unless_allowed() {
    let server = Server::options()
        .set("maxmemory", "100mb")
        .set("maxmemory-policy", "allkeys-lru")
        .start()
        .await;
    let error = Redis::open_url(&server.url()).await.err().expect("refused");
    assert!(error.to_string().contains("allkeys-lru"), "{error}");
    let url = format!("{}?allow_eviction=true", server.url());
    let store = Redis::open_url(&url).await.expect("allowed");
    let caveats = store.capabilities().caveats.join("\n");
    assert!(caveats.contains("allkeys-lru"), "{caveats}");
    assert!(caveats.contains("append-only"), "{caveats}");
    assert!(!store.capabilities().durable);
}

#[tokio::test]
async fn l3_idle_tokens_are_folded_so_that_nothing_grows_and_documented_ones_stay() {
    let server = Server::start().await;
    let options = Options {
        idle_keys: 10,
        ..Options::parse(&server.url()).expect("an address")
    };
    let store = Redis::open(options).await.expect("opens");
    let mut last = Token::ZERO;
    for number in 0..50 {
        let lease = take(&store, ask(&format!("job:{number}"), "ann")).await;
        store
            .release(LeaseRef::from(&lease))
            .await
            .expect("answered");
        last = last.max(lease.token);
    }
    let poll = take(&store, ask("poll:a", "ann")).await;
    store
        .release(LeaseRef::from(&poll))
        .await
        .expect("answered");
    for number in 50..70 {
        let lease = take(&store, ask(&format!("job:{number}"), "ann")).await;
        store
            .release(LeaseRef::from(&lease))
            .await
            .expect("answered");
    }
    wait::until(LIMIT, "old tokens to be folded", async || {
        server.cli(&["EXISTS", "fence:job:0"]).await == "0"
            && server.cli(&["ZCARD", "leasehold:idle"]).await == "10"
    })
    .await;
    let fence = server.cli(&["GET", "poll:fence:a"]).await;
    assert_eq!(fence, poll.token.to_string());
    let again = take(&store, ask("job:0", "ann")).await;
    assert!(again.token > last, "above every token that was folded");
}

/// What Redis has sent to all its clients so far.
async fn sent_bytes(server: &Server) -> u64 {
    let info = server.cli(&["INFO", "stats"]).await;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("total_net_output_bytes:"));
    line.and_then(|bytes| bytes.trim().parse().ok())
        .expect("Redis counts what it sends")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_of_one_key_is_read_without_that_of_the_others() {
    let server = Server::start().await;
    // Whoever seals the history reads all of it meanwhile, and would be counted too.
    let options = Options {
        housekeeping: false,
        ..Options::parse(&server.url()).expect("an address")
    };
    let store = Redis::open(options).await.expect("opens");
    let noise = async || {
        for round in 0..30 {
            let asked = (0..100).map(|n| store.acquire(ask(&format!("noise:{round}-{n}"), "bob")));
            for answer in futures_util::future::join_all(asked).await {
                answer.expect("answered");
            }
        }
    };
    noise().await;
    let lease = take(&store, ask("job:a", "ann")).await;
    noise().await;
    assert!(
        store
            .release(LeaseRef::from(&lease))
            .await
            .expect("answered")
    );
    noise().await;
    let before = sent_bytes(&server).await;
    let events = store.events(EventQuery {
        key: Some(key("job:a")),
        limit: 10,
        ..EventQuery::default()
    });
    let events = events.await.expect("answered").events;
    let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::LeaseAcquired, EventKind::LeaseReleased]);
    let ended = store.lease_by_id(lease.id).await.expect("answered");
    let ended = ended.expect("remembered");
    assert_eq!(ended.status, lease::Status::Released);
    let page = store.leases(LeaseQuery {
        kind: Some("job".into()),
        id: Some("a".into()),
        status: Some(lease::Status::Released),
        limit: 10,
        ..LeaseQuery::default()
    });
    assert_eq!(page.await.expect("answered").items, [ended]);
    let sent = sent_bytes(&server).await - before;
    // The whole history is ten thousand times more than is asked for, and over a megabyte.
    assert!(sent < 100_000, "{sent} bytes for two events");
}

/// A caller that asks for the first watch and is then no longer polled, such as one branch of a loop
/// that went another way.
#[tokio::test]
async fn a_watch_that_is_left_half_open_keeps_nobody_else_waiting() {
    let server = Server::start().await;
    let store = open(&server).await;
    let mut left = store.watch(Watching::everything());
    assert!(futures_util::poll!(&mut left).is_pending());
    let opened = tokio::time::timeout(LIMIT, store.watch(Watching::everything())).await;
    assert!(opened.expect("it opens").is_ok());
    drop(left);
}

#[tokio::test]
async fn l18_a_handoff_without_a_larger_token_leaves_the_key_where_it_is() {
    let server = Server::start().await;
    let store = open(&server).await;
    let lease = take(&store, ask("job:a", "ann")).await;
    let successor = Holder::new("bob", "1").expect("a holder");
    let step = async |step| store.handoff(step).await.expect("answered");
    let offer = HandoffStep::Offer {
        lease: LeaseRef::from(&lease),
        successor: successor.clone(),
        prepare_ms: 60_000,
        drain_ms: 60_000,
        confirm_ms: 60_000,
    };
    assert!(matches!(step(offer).await, HandoffState::Open(_)));
    let prepare = HandoffStep::Prepare {
        key: lease.key.clone(),
        successor,
    };
    assert!(matches!(step(prepare).await, HandoffState::Open(_)));
    // Nothing is above the floor any more.
    let most = Token::MAX.to_string();
    server
        .cli(&["HSET", "leasehold:meta", "floor", &most])
        .await;
    let commit = HandoffStep::Commit {
        lease: LeaseRef::from(&lease),
        limit: None,
    };
    assert_eq!(step(commit).await, HandoffState::Void);
    let kept = renew(&store, &lease).await.expect("its holder keeps it");
    assert_eq!((kept.id, kept.token), (lease.id, lease.token));
    let refused = store.acquire(ask("job:b", "bob")).await.expect("answered");
    assert!(
        matches!(&refused, Acquired::Refused(it) if it.cause == Cause::TokensExhausted),
        "{refused:?}"
    );
}
