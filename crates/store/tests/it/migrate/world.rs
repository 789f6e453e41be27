//! A store with something of everything in it, and whether all of it arrived.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lease::{
    Acquire, Authority, Event, EventKind, EventQuery, Grace, HandoffStep, Labels, Lease, LeaseRef,
    Loss, OnOutage, Record, RecordQuery, Renew, Renewal, Renewals, Revision, Revoke, Status, Token,
    Transaction, UnixMillis, Verdict, Want, Write,
};
use leasehold_store::migrate::Report;
use tokio::time::Instant;

use super::stage::{acquire, close, holder, key, open, take_over, ttl};

/// Lapses while the move is under way.
const SHORT_MS: u64 = 1_500;
/// How far a clock may be off when two moments are compared on a busy machine.
const SLACK: Duration = Duration::from_millis(100);

/// What was there before the move.
pub struct World {
    /// Live leases by key, each with the moment at which it would end on this machine's clock.
    live: BTreeMap<String, (Lease, Instant)>,
    ended: BTreeMap<String, (Lease, Loss)>,
    records: Vec<Record>,
    events: Vec<Event>,
    newest: Revision,
}

fn records() -> Vec<Write> {
    [
        (
            "camera:route",
            r#"{"camera_uuid":"route","tenant_id":"acme"}"#,
        ),
        ("runner:r1", r#"{"tenant_id":"acme","capacity":4}"#),
        ("session:s1", r#"{"state":"running"}"#),
        ("idempotency:k1", r#"{"session":"s1"}"#),
        ("target:t1", r#"{"id":"t1","isPaused":false}"#),
        ("zone:1", r#"{"zone_id":1}"#),
    ]
    .map(|(name, value)| Write {
        key: key(name),
        value: Some(Arc::from(value)),
        note: None,
    })
    .into()
}

async fn all_events(authority: &dyn Authority) -> Vec<Event> {
    let (mut events, mut after) = (Vec::new(), Revision::ZERO);
    loop {
        let query = EventQuery {
            after,
            limit: 1_000,
            ..EventQuery::default()
        };
        let page = authority.events(query).await.expect("a page");
        let Some(last) = page.events.last() else {
            return events;
        };
        after = last.revision;
        events.extend(page.events);
    }
}

async fn all_records(authority: &dyn Authority) -> Vec<Record> {
    let mut found = Vec::new();
    for kind in [
        "camera",
        "idempotency",
        "runner",
        "session",
        "target",
        "zone",
    ] {
        let query = RecordQuery {
            kind: kind.to_owned(),
            prefix: String::new(),
            after: None,
            limit: 1_000,
        };
        found.extend(authority.records(query).await.expect("a page").items);
    }
    found
}

/// When a lease ends on this machine's clock, as the authority's clock says now.
async fn ends(authority: &dyn Authority, lease: &Lease) -> Instant {
    let asked = Instant::now();
    let now = authority.now().await.expect("a time");
    asked + Duration::from_millis(lease.expires_at.since(now))
}

impl World {
    /// Fills a new store, and stops it.
    pub async fn make(store: &str) -> Self {
        let store = open(store).await.unwrap_or_else(|error| panic!("{error}"));
        let authority = store.authority();
        let mut ended = BTreeMap::new();
        for (name, how) in [("job:done", ""), ("job:revoked", "out of order")] {
            // Twice, so that the newest token is not the only one.
            for turn in 0..2 {
                let request = Acquire::one(key(name), holder("early"), ttl(60_000));
                let lease = acquire(&*authority, request).await;
                let loss = if how.is_empty() || turn == 0 {
                    authority
                        .release(LeaseRef::from(&lease))
                        .await
                        .expect("it ends");
                    Loss::Released
                } else {
                    let revoke = Revoke {
                        id: lease.id,
                        reason: how.into(),
                    };
                    authority.revoke(revoke).await.expect("it ends");
                    Loss::Revoked { why: how.into() }
                };
                ended.insert(name.to_owned(), (lease, loss));
            }
        }
        let written = authority
            .commit(Transaction {
                writes: records(),
                ..Transaction::default()
            })
            .await;
        written.expect("the records are written");
        Self::hold(&*authority).await;
        let waiting = authority.clone();
        let waiter = tokio::spawn(async move {
            let mut request = Acquire::one(key("job:live"), holder("waiter"), ttl(60_000));
            request.wait_ms = 60_000;
            waiting.acquire(request).await
        });
        let mut live = BTreeMap::new();
        for name in ["job:live", "job:held", "job:short", "poll:t1", "tuner:1"] {
            let lease = authority.lease(key(name)).await.expect("an answer");
            let lease = lease.unwrap_or_else(|| panic!("{name} is held"));
            let until = ends(&*authority, &lease).await;
            live.insert(name.to_owned(), (lease, until));
        }
        let events = all_events(&*authority).await;
        let newest = events.last().expect("something happened").revision;
        let records = all_records(&*authority).await;
        assert_eq!(records.len(), 6);
        waiter.abort();
        let _ = waiter.await;
        drop(authority);
        close(store).await;
        Self {
            live,
            ended,
            records,
            events,
            newest,
        }
    }

    async fn hold(authority: &dyn Authority) {
        let one = |name: &str, millis| Acquire::one(key(name), holder("worker"), ttl(millis));
        acquire(authority, one("job:live", 60_000)).await;
        acquire(authority, one("poll:t1", 60_000)).await;
        let pool = Want::Any(vec![key("tuner:1"), key("tuner:2")]);
        acquire(authority, Acquire::of(pool, holder("worker"), ttl(60_000))).await;
        let mut request = one("job:held", 60_000);
        request.on_outage = OnOutage::Hold(Grace::from_millis(5_000).expect("a grace"));
        request.release_on_death = true;
        let facts = [("tenant", "acme"), ("site", "north")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        request.labels = Labels::new(facts.into()).expect("labels");
        let held = acquire(authority, request).await;
        let renew = Renew {
            holder: holder("worker"),
            leases: Renewals::These(vec![Renewal {
                stats: Some(r#"{"frames":3}"#.into()),
                ..Renewal::of(&held)
            }]),
        };
        authority.renew(renew).await.expect("renewed");
        let offer = HandoffStep::Offer {
            lease: LeaseRef::from(&held),
            successor: holder("heir"),
            prepare_ms: 50_000,
            drain_ms: 5_000,
            confirm_ms: 5_000,
        };
        authority.handoff(offer).await.expect("offered");
        acquire(authority, one("job:short", SHORT_MS)).await;
    }

    /// Whether everything is in the new backend, and the old one keeps silent.
    pub async fn check(&self, source: &str, target: &str, report: &Report) {
        let way = format!("{source} to {target}");
        assert_eq!((report.leases, report.records), (5, 6), "{way}");
        assert_eq!(report.keys, 7, "{way}");
        let Err(error) = open(source).await else {
            panic!("{way}: the source must be closed")
        };
        assert!(error.to_string().contains("it was moved to"), "{error}");

        let store = open(target)
            .await
            .unwrap_or_else(|error| panic!("{way}: {error}"));
        let authority = store.authority();
        self.check_past(&*authority, &way).await;
        assert_eq!(all_records(&*authority).await, self.records, "{way}");
        self.check_leases(&*authority, source, target, &way).await;
        self.check_ended(&*authority, &way).await;
        self.check_tokens(&*authority, &way).await;
        drop(authority);
        close(store).await;
    }

    /// The history is the same, and goes on with the news of the move.
    async fn check_past(&self, authority: &dyn Authority, way: &str) {
        let mut events = all_events(authority).await;
        let after = events.split_off(self.events.len());
        assert_eq!(events, self.events, "{way}");
        // Leases of leaders and what lapsed meanwhile may stand between.
        let news = after
            .iter()
            .find(|event| event.kind == EventKind::AuthorityResumed)
            .unwrap_or_else(|| panic!("{way}: no news of the move in {after:?}"));
        let detail = news.detail.as_deref().expect("a detail");
        assert!(detail.contains(r#""after":"move""#), "{way}: {detail}");
        assert!(news.revision > self.newest, "{way}");
    }

    /// L14: a move may lengthen a lease, never shorten one; its token and all its facts stay.
    async fn check_leases(&self, authority: &dyn Authority, source: &str, target: &str, way: &str) {
        let stands_still = [source, target].iter().any(|it| it.starts_with("embedded"));
        for (name, (before, until)) in &self.live {
            if name == "job:short" {
                continue;
            }
            let after = authority.lease(key(name)).await.expect("an answer");
            let after = after.unwrap_or_else(|| panic!("{way}: {name} is lost"));
            let ends = ends(authority, &after).await;
            assert!(ends + SLACK >= *until, "{way}: {name} was shortened");
            if !stands_still {
                let most = Duration::from_secs(2);
                assert!(
                    ends <= *until + most,
                    "{way}: {name} was lengthened for nothing"
                );
            }
            let same_time = |lease: &Lease| {
                let mut lease = lease.clone();
                lease.expires_at = UnixMillis::new(0);
                if let Some(handoff) = &mut lease.handoff {
                    handoff.until = UnixMillis::new(0);
                }
                lease
            };
            assert_eq!(same_time(&after), same_time(before), "{way}");
            let renew = Renew {
                holder: before.holder.clone(),
                leases: Renewals::These(vec![Renewal::of(before)]),
            };
            let renewed = authority.renew(renew).await.expect("an answer");
            let kept = renewed[0].outcome.as_ref();
            let kept = kept.unwrap_or_else(|loss| panic!("{way}: {name} is {loss:?}"));
            assert_eq!((kept.token, kept.id), (before.token, before.id), "{way}");
            let verdict = authority.check(vec![(key(name), before.token)]).await;
            assert_eq!(verdict.expect("a verdict"), [Verdict::Current], "{way}");
        }
    }

    /// How leases ended is still known, and by their ids too.
    async fn check_ended(&self, authority: &dyn Authority, way: &str) {
        for (name, (lease, loss)) in &self.ended {
            let renew = Renew {
                holder: lease.holder.clone(),
                leases: Renewals::These(vec![Renewal::of(lease)]),
            };
            let renewed = authority.renew(renew).await.expect("an answer");
            assert_eq!(renewed[0].outcome, Err(loss.clone()), "{way}: {name}");
            let found = authority.lease_by_id(lease.id).await.expect("an answer");
            let found = found.unwrap_or_else(|| panic!("{way}: {name} is not remembered"));
            assert_eq!(
                (found.token, found.status),
                (lease.token, loss.status()),
                "{way}"
            );
            assert_ne!(found.status, Status::Active);
        }
    }

    /// L3: every next grant has a larger token than ever before. L5: the pool goes on where it was.
    async fn check_tokens(&self, authority: &dyn Authority, way: &str) {
        let pool = Want::Any(vec![key("tuner:1"), key("tuner:2")]);
        let slot = acquire(authority, Acquire::of(pool, holder("second"), ttl(60_000))).await;
        assert_eq!(slot.key, key("tuner:2"), "{way}: the first slot is taken");
        let short = take_over(authority, "job:short", Duration::from_secs(10)).await;
        assert!(short > self.live["job:short"].0.token, "{way}");
        for (name, (lease, _)) in &self.live {
            if name != "job:short" {
                let released = authority.release(LeaseRef::from(lease)).await;
                assert!(released.expect("an answer"), "{way}: {name}");
                let next = take_over(authority, name, Duration::ZERO).await;
                assert!(next > lease.token, "{way}: {name}");
            }
        }
        for (name, (lease, _)) in &self.ended {
            let next = take_over(authority, name, Duration::ZERO).await;
            assert!(next > lease.token, "{way}: {name}");
        }
        let largest = self.events.iter().filter_map(|event| event.lease.as_ref());
        let largest = largest
            .map(|lease| lease.token)
            .max()
            .unwrap_or(Token::ZERO);
        assert!(
            take_over(authority, "job:new", Duration::ZERO).await > largest,
            "{way}"
        );
    }
}
