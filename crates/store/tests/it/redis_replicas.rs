//! Several servers on one Redis, and what happens when it or one of them fails.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, future::join_all};
use lease::{
    Acquire, Acquired, Authority, Error, EventKind, EventQuery, Holder, Key, Lease, LeaseRef, Loss,
    Notice, Renew, Renewal, Renewals, Revision, Token, Ttl,
    history::{Extent, Verifier},
};
use leasehold_store::redis::{Options, Redis};
use leasehold_testkit::{Proxy, Sentinel, length, redis::Redis as Server, wait};

const LIMIT: Duration = Duration::from_secs(20);

fn ask(id: &str, who: &str, ttl_ms: u64) -> Acquire {
    Acquire::one(
        Key::new("job", id).expect("a key"),
        Holder::new(who, "1").expect("a holder"),
        Ttl::from_millis(ttl_ms).expect("a ttl"),
    )
}

async fn take(store: &Redis, request: Acquire) -> Lease {
    match store.acquire(request).await.expect("answered") {
        Acquired::Granted { mut leases, .. } => leases.remove(0),
        Acquired::Refused(refusal) => panic!("refused: {refusal:?}"),
    }
}

async fn renew(store: &Redis, lease: &Lease) -> Result<Result<Lease, Loss>, Error> {
    let answers = store.renew(Renew {
        holder: lease.holder.clone(),
        leases: Renewals::These(vec![Renewal::of(lease)]),
    });
    Ok(answers.await?.remove(0).outcome)
}

async fn replicas(url: &str, count: usize) -> Vec<Redis> {
    let stores = (0..count).map(|_| Redis::open_url(url));
    join_all(stores)
        .await
        .into_iter()
        .map(|store| store.expect("the store opens"))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_l1_a_hundred_racers_on_three_replicas_and_one_grant_each_time() {
    let server = Server::start().await;
    let stores = replicas(&server.url(), 3).await;
    let mut last = Token::ZERO;
    for round in 0..length::pick_or("LEASEHOLD_RACE_ROUNDS", 100, 1_000) {
        let racers = (0..100).map(|racer| {
            let store = &stores[racer % 3];
            store.acquire(ask("race", &format!("racer-{racer}"), 30_000))
        });
        let mut granted = Vec::new();
        for answer in join_all(racers).await {
            if let Acquired::Granted { leases, .. } = answer.expect("answered") {
                granted.extend(leases);
            }
        }
        assert_eq!(granted.len(), 1, "round {round}");
        assert!(granted[0].token > last);
        last = granted[0].token;
        let given_back = stores[round % 3].release(LeaseRef::from(&granted[0]));
        assert!(given_back.await.expect("answered"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l6_a_waiter_on_another_replica_is_woken_and_a_dead_replica_is_passed_over() {
    let server = Server::start().await;
    let mut stores = replicas(&server.url(), 2).await;
    let lease = take(&stores[0], ask("a", "ann", 30_000)).await;
    // First in the queue: a waiter whose replica ends without a word.
    let doomed = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let url = server.url();
    doomed.spawn(async move {
        let store = Redis::open_url(&url).await.expect("opens");
        let patient = Acquire {
            wait_ms: 60_000,
            ..ask("a", "dead", 30_000)
        };
        store.acquire(patient).await
    });
    let queued = async |count: &str| {
        wait::until(LIMIT, "waiters to queue", async || {
            server.cli(&["ZCARD", "leasehold:queue:job:a"]).await == count
        })
        .await;
    };
    queued("1").await;
    let patient = Acquire {
        wait_ms: 60_000,
        ..ask("a", "bob", 30_000)
    };
    let other = stores.remove(1);
    let waiting = tokio::spawn(async move { take(&other, patient).await });
    queued("2").await;
    // Its sockets close with it, and nothing of it runs any more.
    tokio::task::spawn_blocking(move || doomed.shutdown_timeout(Duration::from_millis(100)))
        .await
        .expect("the runtime ends");
    assert!(
        stores[0]
            .release(LeaseRef::from(&lease))
            .await
            .expect("answered")
    );
    let next = tokio::time::timeout(LIMIT, waiting).await.expect("in time");
    assert_eq!(next.expect("granted").holder.name.as_str(), "bob");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l12_the_leadership_passes_on_when_its_replica_ends() {
    let server = Server::start().await;
    let mut stores = replicas(&server.url(), 2).await;
    take(&stores[0], ask("a", "ann", 2500)).await;
    wait::until(LIMIT, "a replica to lead", async || {
        server.cli(&["EXISTS", "lease:leadership:expiry"]).await == "1"
    })
    .await;
    // One of the two leads; whichever is left must announce the expiry.
    let kept = stores.remove(1);
    drop(stores);
    let mut watch = kept
        .watch(lease::Watching::everything())
        .await
        .expect("watching");
    let event = tokio::time::timeout(LIMIT, async {
        loop {
            match watch.next().await.expect("no end").expect("no error") {
                Notice::Event(event) if event.kind == EventKind::LeaseExpired => break event,
                _ => {}
            }
        }
    })
    .await
    .expect("announced");
    let due = event.lease.as_ref().expect("about a lease").expires_at;
    assert!(
        event.at.since(due) < 1500,
        "{} ms late",
        event.at.since(due)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l12_a_replica_that_closes_gives_its_leadership_up() {
    let server = Server::start().await;
    let store = Redis::open_url(&server.url()).await.expect("opens");
    wait::until(LIMIT, "the replica to lead", async || {
        store.capabilities().leads_expiry
    })
    .await;
    store.close().await;
    let leader = server.cli(&["GET", "lease:leadership:expiry"]).await;
    assert_eq!(leader, "", "the next one need not wait for the ttl");
    assert!(!store.capabilities().leads_expiry);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l3_restarted_empty_tokens_still_grow_and_everyone_learns_it() {
    let mut server = Server::start().await;
    let store = Redis::open_url(&server.url()).await.expect("opens");
    let lease = take(&store, ask("a", "ann", 30_000)).await;
    let patient = Acquire {
        wait_ms: 30_000,
        ..ask("a", "bob", 30_000)
    };
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.acquire(patient).await }
    });
    wait::until(LIMIT, "the waiter to queue", async || {
        server.cli(&["HLEN", "leasehold:waiting"]).await == "1"
    })
    .await;
    let mut watch = store
        .watch(lease::Watching::everything())
        .await
        .expect("watching");
    server.restart_empty().await;
    wait::until(LIMIT, "the store to be back", async || {
        store.now().await.is_ok()
    })
    .await;
    let lost = renew(&store, &lease).await.expect("answered");
    assert_eq!(lost, Err(Loss::Unknown), "and nothing is put back");
    let again = take(&store, ask("a", "zoe", 30_000)).await;
    assert!(again.token > lease.token);
    let notice = tokio::time::timeout(LIMIT, watch.next())
        .await
        .expect("told");
    let Some(Ok(Notice::Snapshot(snapshot))) = notice else {
        panic!("a lost history is told by a snapshot, not {notice:?}");
    };
    // The watcher may have looked before or after the new grant; then it follows.
    if snapshot.leases.is_empty() {
        let next = tokio::time::timeout(LIMIT, watch.next())
            .await
            .expect("told");
        assert!(matches!(next, Some(Ok(Notice::Event(_)))), "{next:?}");
    }
    let answer = tokio::time::timeout(LIMIT, waiting).await.expect("told");
    let error = answer.expect("no panic").expect_err("its queue is gone");
    assert!(error.is_retryable(), "{error:?}");
    let resumed = store.watch(
        lease::Watching::everything().after(Revision::new(snapshot.revision.get() - 1_000_000)),
    );
    let first = resumed.await.expect("watching").next().await;
    assert!(matches!(first, Some(Ok(Notice::Snapshot(_)))), "{first:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_is_unavailable_and_silent_is_unknown() {
    let mut server = Server::start().await;
    let options = Options {
        response_timeout: Duration::from_millis(500),
        ..Options::parse(&server.url()).expect("an address")
    };
    let store = Redis::open(options).await.expect("opens");
    let lease = take(&store, ask("a", "ann", 60_000)).await;
    server.pause();
    let error = store
        .release(LeaseRef::from(&lease))
        .await
        .expect_err("silent");
    assert!(matches!(error, Error::Unknown(_)), "{error:?}");
    server.resume();
    server.stop().await;
    wait::until(LIMIT, "the server to be out of reach", async || {
        matches!(store.now().await, Err(Error::Unavailable(_)))
    })
    .await;
    let error = store
        .acquire(ask("b", "ann", 1000))
        .await
        .expect_err("down");
    assert!(error.has_no_side_effects(), "{error:?}");
    server.restart().await;
    wait::until(LIMIT, "the store to be back", async || {
        store.acquire(ask("b", "ann", 1000)).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_a_failover_of_the_primary_is_followed() {
    let mut sentinel = Sentinel::start(3).await;
    let hosts: Vec<String> = sentinel
        .urls()
        .iter()
        .map(|url| {
            url.trim_start_matches("redis://")
                .trim_end_matches('/')
                .to_owned()
        })
        .collect();
    let url = format!(
        "redis+sentinel://{}/{}",
        hosts.join(","),
        sentinel.service_name()
    );
    let store = Redis::open_url(&url).await.expect("opens");
    let caveats = store.capabilities().caveats.join("\n");
    assert!(caveats.contains("asynchronous"), "{caveats}");
    let lease = take(&store, ask("a", "ann", 120_000)).await;
    let mut watch = store
        .watch(lease::Watching::everything())
        .await
        .expect("watching");
    let old = sentinel.kill_primary().await;
    sentinel.wait_for_failover(old).await;
    wait::until(LIMIT, "the store to follow", async || {
        store.now().await.is_ok()
    })
    .await;
    // Replication had long finished, so that the lease is there, and may be kept.
    let kept = renew(&store, &lease)
        .await
        .expect("answered")
        .expect("kept");
    assert_eq!(kept.token, lease.token);
    let next = take(&store, ask("b", "ann", 30_000)).await;
    assert!(next.token > lease.token);
    let event = tokio::time::timeout(LIMIT, async {
        loop {
            match watch.next().await.expect("no end").expect("no error") {
                Notice::Event(event) if event.key == next.key => break event,
                _ => {}
            }
        }
    });
    assert_eq!(event.await.expect("told").kind, EventKind::LeaseAcquired);
}

/// Who believes to own what: a claim is made after the grant's answer and withdrawn before its
/// release, and it stands only as long as the holder's own deadline (L10).
#[derive(Default)]
struct Claims {
    open: Mutex<HashMap<String, (u64, tokio::time::Instant)>>,
    tokens: Mutex<HashMap<String, Token>>,
    grants: AtomicU64,
    errors: AtomicU64,
}

impl Claims {
    fn claim(&self, id: &str, lease: &Lease, worker: u64, until: tokio::time::Instant) {
        let now = tokio::time::Instant::now();
        if now >= until {
            return;
        }
        let before = self
            .open
            .lock()
            .expect("not poisoned")
            .insert(id.to_owned(), (worker, until));
        if let Some((other, until)) = before {
            assert!(
                other == worker || now >= until,
                "two holders of {id}: {other} and {worker}"
            );
        }
        let newest = self
            .tokens
            .lock()
            .expect("not poisoned")
            .insert(id.to_owned(), lease.token);
        assert!(
            newest.is_none_or(|newest| newest < lease.token),
            "tokens only grow"
        );
        self.grants.fetch_add(1, Ordering::Relaxed);
    }

    fn withdraw(&self, id: &str, worker: u64) {
        let mut open = self.open.lock().expect("not poisoned");
        if open.get(id).is_some_and(|(owner, _)| *owner == worker) {
            open.remove(id);
        }
    }
}

async fn work(store: Redis, claims: Arc<Claims>, worker: u64, stop: Arc<AtomicBool>) {
    let ttl = Duration::from_millis(1500);
    let mut round = worker;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let id = format!("k{}", round % 5);
        let sent = tokio::time::Instant::now();
        match store
            .acquire(ask(&id, &format!("worker-{worker}"), 1500))
            .await
        {
            Ok(Acquired::Granted {
                leases,
                fresh: true,
            }) => {
                claims.claim(&id, &leases[0], worker, sent + ttl);
                tokio::time::sleep(Duration::from_millis(2)).await;
                claims.withdraw(&id, worker);
                if let Err(error) = store.release(LeaseRef::from(&leases[0])).await {
                    assert!(error.is_retryable(), "{error:?}");
                    claims.errors.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(Acquired::Granted { leases, .. }) => {
                // An earlier request of ours had no answer: it is ours, with time of its own.
                let _ = store.release(LeaseRef::from(&leases[0])).await;
            }
            Ok(Acquired::Refused(_)) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                claims.errors.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_three_replicas_survive_a_redis_that_is_slow_paused_killed_and_cut_off() {
    let mut server = Server::options().persistent().start().await;
    let proxy = Proxy::start(server.addr()).await;
    let options = Options {
        response_timeout: Duration::from_millis(700),
        ..Options::parse(&format!("redis://{}", proxy.addr())).expect("an address")
    };
    let open = || Redis::open(options.clone());
    let mut stores = vec![
        open().await.expect("opens"),
        open().await.expect("opens"),
        open().await.expect("opens"),
    ];
    let claims = Arc::new(Claims::default());
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..12)
        .map(|worker| {
            let store = stores[worker as usize % 3].clone();
            tokio::spawn(work(store, claims.clone(), worker, stop.clone()))
        })
        .collect();
    let progress = async |claims: &Claims, what: &str| {
        let before = claims.grants.load(Ordering::Relaxed);
        wait::until(LIMIT, what, async || {
            claims.grants.load(Ordering::Relaxed) > before + 50
        })
        .await;
    };
    progress(&claims, "grants at the start").await;
    proxy.delay(Duration::from_millis(50));
    progress(&claims, "grants while it is slow").await;
    proxy.pass();
    server.pause();
    tokio::time::sleep(Duration::from_secs(2)).await;
    server.resume();
    progress(&claims, "grants after a pause").await;
    // A replica ends and another one comes.
    drop(stores.remove(0));
    stores.push(open().await.expect("opens"));
    server.kill9();
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.restart().await;
    progress(&claims, "grants after a crash").await;
    proxy.cut();
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.pass();
    progress(&claims, "grants after a cut").await;
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.expect("no worker panics");
    }
    assert!(
        claims.errors.load(Ordering::Relaxed) > 0,
        "the faults were felt"
    );
    let mut verifier = Verifier::new(Extent::Consecutive);
    let mut after = Revision::ZERO;
    loop {
        // Its connection was cut, which it may find out only now.
        let page = wait::until_some(LIMIT, "the history is read", async || {
            let query = EventQuery {
                after,
                limit: 1000,
                ..EventQuery::default()
            };
            stores[0].events(query).await.ok()
        })
        .await;
        for event in &page.events {
            verifier.see(event);
            after = event.revision;
        }
        if !page.more {
            break;
        }
    }
    let (seen, faults) = verifier.finish();
    assert!(faults.is_empty(), "{faults:?}");
    assert!(seen >= 2 * 250, "{seen} events");
}
