//! `kill -9` of the server in the middle of many clients' load, again and again, over HTTP.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lease::{Acquire, Acquired, Authority, Holder, Key, Lease, LeaseRef, Token, Ttl};
use leasehold_client::{Client, Options, Remote};
use leasehold_testkit::length;

use crate::cli_support::{Server, boot_ms};

const CLIENTS: usize = 64;
/// Keys that all clients fight for, besides each client's own.
const SHARED_KEYS: usize = 8;
/// Kills in an ordinary run and in a soak; `LEASEHOLD_TEST_CRASH_ROUNDS` decides for it alone.
const ROUNDS: (usize, usize) = (4, 50);
const TTL_MS: u64 = 60_000;

/// What a client knows about its own key when the server dies.
#[derive(Clone, Debug)]
enum Known {
    /// Nothing acknowledged: the last acquire had no answer. This was the token before.
    Unsure(Token),
    /// Granted, and no release was tried; the grant was asked for at this moment.
    Held(Box<Lease>, u64),
    /// A release was sent and not answered.
    Releasing(Token),
    /// Released.
    Released(Token),
}

/// What one client saw in one round.
struct Seen {
    known: Known,
    /// Every grant: key and token.
    grants: Vec<(Key, Token)>,
    operations: u64,
}

fn key(kind: &str, number: usize) -> Key {
    Key::new(kind, &number.to_string()).expect("a key")
}

fn ttl() -> Ttl {
    Ttl::from_millis(TTL_MS).expect("a ttl")
}

/// Acquires and releases until the server is gone.
async fn client(
    remote: Remote,
    number: usize,
    round: usize,
    mut last: Token,
    stop: Arc<AtomicBool>,
) -> Seen {
    let holder =
        Holder::new(&format!("client-{number}"), &format!("round-{round}")).expect("a holder");
    let own = key("own", number);
    let shared = key("shared", number % SHARED_KEYS);
    let mut seen = Seen {
        known: Known::Released(last),
        grants: Vec::new(),
        operations: 0,
    };
    for turn in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        seen.known = Known::Unsure(last);
        let asked_ms = boot_ms();
        let Ok(answer) = remote
            .acquire(Acquire::one(own.clone(), holder.clone(), ttl()))
            .await
        else {
            break;
        };
        let Acquired::Granted { leases, .. } = answer else {
            panic!("nobody else wants {own}: {answer:?}");
        };
        let lease = leases.into_iter().next().expect("one lease");
        assert!(lease.token > last, "tokens never go back (L3)");
        last = lease.token;
        seen.grants.push((own.clone(), last));
        let own_lease = LeaseRef::from(&lease);
        seen.known = Known::Held(Box::new(lease), asked_ms);
        seen.operations += 1;
        // A key that others want too: whoever gets it gives it back at once.
        match remote
            .acquire(Acquire::one(shared.clone(), holder.clone(), ttl()))
            .await
        {
            Ok(Acquired::Granted { leases, .. }) => {
                let lease = leases.first().expect("one lease");
                seen.grants.push((shared.clone(), lease.token));
                seen.operations += 1;
                if remote.release(LeaseRef::from(lease)).await.is_err() {
                    break;
                }
            }
            Ok(Acquired::Refused(_)) => {}
            Err(_) => break,
        }
        // Some are holding their key when the end comes.
        if turn % 3 == 2 && number.is_multiple_of(2) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        seen.known = Known::Releasing(last);
        match remote.release(own_lease).await {
            Ok(released) => assert!(released, "it was held"),
            Err(_) => break,
        }
        seen.known = Known::Released(last);
        seen.operations += 1;
    }
    seen
}

fn remote(server: &Server) -> Remote {
    let token = std::fs::read_to_string(server.data().join("admin.token")).expect("made");
    let options = Options::new(format!("http://{}", server.address)).token(token.trim());
    Remote::new(Client::new(options).expect("a client"))
}

/// What was acknowledged is there, with at least the time it had left.
async fn check(remote: &Remote, number: usize, known: &Known, killed_ms: u64) {
    let now = remote.now().await.expect("the server is back");
    let lease = remote.lease(key("own", number)).await.expect("an answer");
    match known {
        Known::Held(held, asked_ms) => {
            let lease = lease.unwrap_or_else(|| panic!("the acknowledged grant {held:?} is lost"));
            assert_eq!((lease.token, &lease.holder), (held.token, &held.holder));
            let left_ms = lease.expires_at.since(now);
            // At the crash it had its ttl less the time since the grant; a restart never shortens (L14).
            let had_ms = TTL_MS.saturating_sub(killed_ms.saturating_sub(*asked_ms));
            assert!(
                left_ms + boot_ms().saturating_sub(killed_ms) + 5 >= had_ms,
                "{left_ms} ms left, had {had_ms}"
            );
            assert!(left_ms <= TTL_MS, "at most its full ttl: {left_ms}");
        }
        Known::Released(token) => {
            assert!(
                lease.is_none_or(|lease| lease.token > *token),
                "the acknowledged release of {token} is lost"
            );
        }
        Known::Releasing(token) => {
            assert!(
                lease.is_none_or(|lease| lease.token == *token),
                "either way, and nothing else"
            );
        }
        Known::Unsure(before) => {
            assert!(
                lease.is_none_or(|lease| lease.token > *before),
                "either way, with a new token"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_kill_9_under_load_loses_nothing_that_was_acknowledged() {
    let rounds = length::pick_or("LEASEHOLD_TEST_CRASH_ROUNDS", ROUNDS.0, ROUNDS.1);
    let mut server = Server::start().await;
    let mut last = vec![Token::ZERO; CLIENTS];
    let mut tokens: BTreeMap<Key, BTreeSet<Token>> = BTreeMap::new();
    let (mut operations, mut held, mut in_doubt) = (0, 0, 0);
    for round in 0..rounds {
        let stop = Arc::new(AtomicBool::new(false));
        let shared = remote(&server);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let started = client(shared.clone(), number, round, last[number], stop.clone());
                tokio::spawn(started)
            })
            .collect();
        // Not the same moment in every round.
        tokio::time::sleep(Duration::from_millis(200 + 37 * (round as u64 % 7))).await;
        server.child.kill9();
        let killed_ms = boot_ms();
        stop.store(true, Ordering::Relaxed);
        let mut seen = Vec::new();
        for client in clients {
            seen.push(client.await.expect("no client saw anything wrong"));
        }
        server.restart().await;
        let remote = remote(&server);
        for (number, seen) in seen.iter().enumerate() {
            check(&remote, number, &seen.known, killed_ms).await;
            operations += seen.operations;
            held += usize::from(matches!(seen.known, Known::Held(..)));
            in_doubt += usize::from(matches!(seen.known, Known::Releasing(_) | Known::Unsure(_)));
            for (key, token) in &seen.grants {
                let known = tokens.entry(key.clone()).or_default();
                assert!(
                    known.insert(*token),
                    "{key}: token {token} was granted twice (L3)"
                );
            }
            // Whatever is left over of this round is taken away, so that the next begins free.
            if let Some(lease) = remote.lease(key("own", number)).await.expect("an answer") {
                last[number] = last[number].max(lease.token);
                remote
                    .release(LeaseRef::from(&lease))
                    .await
                    .expect("released");
            }
            last[number] = seen
                .grants
                .iter()
                .filter(|(key, _)| key.kind() == "own")
                .map(|(_, token)| *token)
                .fold(last[number], Token::max);
        }
        for number in 0..SHARED_KEYS {
            if let Some(lease) = remote
                .lease(key("shared", number))
                .await
                .expect("an answer")
            {
                remote
                    .release(LeaseRef::from(&lease))
                    .await
                    .expect("released");
            }
        }
    }
    println!(
        "{rounds} kills, {operations} acknowledged operations, {held} held and {in_doubt} in doubt at a kill"
    );
    assert!(
        operations > 0 && held + in_doubt > 0,
        "the kills came in the middle of load"
    );
    let verified = server.run(&["lease", "verify"]).await;
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
}
