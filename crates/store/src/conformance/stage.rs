//! The words in which the suite is written.

use std::{sync::Arc, time::Duration};

use lease::{
    Acquire, Acquired, Authority, Cause, Committed, Error, Event, EventKind, EventQuery,
    HandoffState, HandoffStep, Holder, Key, Lease, LeaseQuery, LeaseRef, Loss, Record, Refusal,
    Renew, Renewal, Renewals, Renewed, Revision, Revoke, Status, Token, Transaction, Ttl, Verdict,
    Want,
};
use tokio::task::JoinHandle;

use super::{Harness, Pace};

/// How long the suite waits for something that must come. Far beyond what any store needs.
const PATIENCE: Duration = Duration::from_secs(10);

/// An authority, and a kind of keys that only this test uses.
pub struct Stage<'a> {
    harness: &'a dyn Harness,
    /// The authority under test.
    pub authority: Arc<dyn Authority>,
    kind: String,
}

/// A wait under way.
pub type Waiting = JoinHandle<Result<Acquired, Error>>;

impl<'a> Stage<'a> {
    /// Sets the stage.
    pub fn of(harness: &'a dyn Harness) -> Self {
        Self {
            harness,
            authority: harness.authority(),
            kind: format!("t{}", uuid::Uuid::new_v4().simple()),
        }
    }

    /// The same keys after a restart of the authority.
    #[must_use]
    pub fn again(&self) -> Self {
        Self {
            harness: self.harness,
            authority: self.harness.authority(),
            kind: self.kind.clone(),
        }
    }

    /// How time runs.
    pub fn pace(&self) -> Pace {
        self.harness.pace()
    }

    /// The kind of this test's keys.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// A key of this test.
    pub fn key(&self, id: &str) -> Key {
        Key::new(&self.kind, id).expect("a well-formed key")
    }

    /// Several keys of this test.
    pub fn keys<const N: usize>(&self, ids: [&str; N]) -> Vec<Key> {
        ids.iter().map(|id| self.key(id)).collect()
    }

    /// A key of another kind that is still this test's own.
    pub fn other_kind(&self, suffix: &str, id: &str) -> Key {
        Key::new(&format!("{}{suffix}", self.kind), id).expect("a well-formed key")
    }

    /// A holder of this test, in its first incarnation.
    pub fn holder(&self, name: &str) -> Holder {
        self.incarnation(name, "1")
    }

    /// A holder of this test in a given incarnation.
    pub fn incarnation(&self, name: &str, incarnation: &str) -> Holder {
        Holder::new(&format!("{name}.{}", self.kind), incarnation).expect("a well-formed holder")
    }

    /// A ttl that no test outlives.
    pub fn long(&self) -> Ttl {
        Ttl::from_secs(600).expect("within range")
    }

    /// A ttl that a test lets lapse.
    pub fn short(&self) -> Ttl {
        Ttl::from_millis(self.pace().short_ms).expect("within range")
    }

    /// A request for one key with a long ttl.
    pub fn ask(&self, id: &str, holder: &str) -> Acquire {
        Acquire::one(self.key(id), self.holder(holder), self.long())
    }

    /// A request for one key with a short ttl.
    pub fn ask_short(&self, id: &str, holder: &str) -> Acquire {
        Acquire {
            ttl: self.short(),
            ..self.ask(id, holder)
        }
    }

    /// A request for all of several keys.
    pub fn ask_all<const N: usize>(&self, ids: [&str; N], holder: &str) -> Acquire {
        Acquire::of(Want::All(self.keys(ids)), self.holder(holder), self.long())
    }

    /// A request for one of several keys.
    pub fn ask_any<const N: usize>(&self, ids: [&str; N], holder: &str) -> Acquire {
        Acquire::of(Want::Any(self.keys(ids)), self.holder(holder), self.long())
    }

    /// Asks.
    pub async fn acquire(&self, request: Acquire) -> Acquired {
        self.authority
            .acquire(request)
            .await
            .expect("an acquire is answered")
    }

    /// Asks, and must get.
    pub async fn grant_all(&self, request: Acquire) -> Vec<Lease> {
        granted(self.acquire(request).await)
    }

    /// Asks for one lease, and must get it.
    pub async fn grant(&self, request: Acquire) -> Lease {
        let mut leases = self.grant_all(request).await;
        assert_eq!(leases.len(), 1, "one lease was asked for: {leases:?}");
        leases.remove(0)
    }

    /// Takes a free key with a long ttl.
    pub async fn take(&self, id: &str, holder: &str) -> Lease {
        self.grant(self.ask(id, holder)).await
    }

    /// Takes a free key with a short ttl.
    pub async fn take_short(&self, id: &str, holder: &str) -> Lease {
        self.grant(self.ask_short(id, holder)).await
    }

    /// Asks, and must be refused.
    pub async fn refuse(&self, request: Acquire) -> Refusal {
        refused(self.acquire(request).await)
    }

    /// Asks for one key, and must learn that somebody has it: who, and under which token.
    pub async fn refuse_held(&self, request: Acquire) -> (Holder, Token) {
        held(self.refuse(request).await)
    }

    /// Starts to wait, and returns once the authority shows it as pending.
    pub async fn queue(&self, request: Acquire) -> Waiting {
        let key = request.want.keys()[0].clone();
        let holder = request.holder.clone();
        let before = self.pending(&key, &holder).await;
        let authority = self.authority.clone();
        let waiting = tokio::spawn(async move { authority.acquire(request).await });
        self.eventually("a waiter is pending", async || {
            self.pending(&key, &holder).await > before
        })
        .await;
        assert!(!waiting.is_finished(), "a waiter waits");
        waiting
    }

    /// How often `holder` waits for `key`.
    pub async fn pending(&self, key: &Key, holder: &Holder) -> usize {
        let query = LeaseQuery {
            kind: Some(key.kind().to_owned()),
            id: Some(key.id().to_owned()),
            holder: Some(holder.name.clone()),
            status: Some(Status::Pending),
            limit: 1000,
            ..LeaseQuery::default()
        };
        self.list(query).await.len()
    }

    /// The answer of a waiter, which must come now.
    pub async fn answer(&self, waiting: Waiting) -> Acquired {
        tokio::time::timeout(PATIENCE, waiting)
            .await
            .expect("a waiter gets its answer in time")
            .expect("a waiter does not panic")
            .expect("a wait is answered")
    }

    /// One page of leases.
    pub async fn list(&self, query: LeaseQuery) -> Vec<Lease> {
        self.authority
            .leases(query)
            .await
            .expect("a list is answered")
            .items
    }

    /// Renews several leases of one holder.
    pub async fn renew_these(&self, holder: &Holder, leases: Vec<Renewal>) -> Vec<Renewed> {
        self.authority
            .renew(Renew {
                holder: holder.clone(),
                leases: Renewals::These(leases),
            })
            .await
            .expect("a renewal is answered")
    }

    /// Renews one lease as its holder.
    pub async fn renew(&self, lease: &Lease) -> Result<Lease, Loss> {
        self.renew_as(&lease.holder, Renewal::of(lease)).await
    }

    /// Renews one lease as anybody.
    pub async fn renew_as(&self, holder: &Holder, renewal: Renewal) -> Result<Lease, Loss> {
        let mut answers = self.renew_these(holder, vec![renewal]).await;
        assert_eq!(answers.len(), 1, "an answer per lease: {answers:?}");
        answers.remove(0).outcome
    }

    /// Releases a lease as its holder.
    pub async fn release(&self, lease: &Lease) -> bool {
        self.release_as(LeaseRef::from(lease)).await
    }

    /// Releases a lease as anybody.
    pub async fn release_as(&self, lease: LeaseRef) -> bool {
        self.authority
            .release(lease)
            .await
            .expect("a release is answered")
    }

    /// Revokes a lease.
    pub async fn revoke(&self, lease: &Lease, reason: &str) -> Option<Lease> {
        let request = Revoke {
            id: lease.id,
            reason: reason.into(),
        };
        self.authority
            .revoke(request)
            .await
            .expect("a revocation is answered")
    }

    /// One step of a handoff.
    pub async fn step(&self, step: HandoffStep) -> HandoffState {
        self.authority
            .handoff(step)
            .await
            .expect("a handoff is answered")
    }

    /// A transaction.
    pub async fn commit(&self, transaction: Transaction) -> Committed {
        self.authority
            .commit(transaction)
            .await
            .expect("a transaction is answered")
    }

    /// One record.
    pub async fn record(&self, id: &str) -> Option<Record> {
        self.authority
            .record(self.key(id))
            .await
            .expect("a record is answered")
    }

    /// The live lease of a key.
    pub async fn live(&self, id: &str) -> Option<Lease> {
        self.authority
            .lease(self.key(id))
            .await
            .expect("a lookup is answered")
    }

    /// Who has the key now, by name and token.
    pub async fn owner(&self, id: &str) -> Option<(Holder, Token)> {
        self.live(id).await.map(|lease| (lease.holder, lease.token))
    }

    /// Whether one token counts.
    pub async fn verdict(&self, id: &str, token: Token) -> Verdict {
        let verdicts = self
            .authority
            .check(vec![(self.key(id), token)])
            .await
            .expect("a check is answered");
        verdicts[0]
    }

    /// Lets time pass.
    pub async fn pass(&self, millis: u64) {
        self.harness.pass(millis).await;
    }

    /// The same without a tick; `false`, with no time passed, where that cannot be.
    pub async fn pass_without_tick(&self, millis: u64) -> bool {
        self.harness.pass_without_tick(millis).await
    }

    /// Lets a short ttl lapse.
    pub async fn lapse(&self) {
        self.pass(self.pace().short_ms + self.pace().slack_ms).await;
    }

    /// The events of this test's keys, oldest first, without renewals: whether those are kept is a
    /// setting.
    pub async fn events(&self) -> Vec<Event> {
        self.events_after(Revision::ZERO).await
    }

    /// The same, after a revision.
    pub async fn events_after(&self, after: Revision) -> Vec<Event> {
        let mut events = Vec::new();
        let mut query = EventQuery {
            after,
            kind: Some(self.kind.clone()),
            limit: 100,
            ..EventQuery::default()
        };
        loop {
            let page = self
                .authority
                .events(query.clone())
                .await
                .expect("the history is answered");
            let Some(last) = page.events.last() else {
                assert!(!page.more, "an empty page is the last one");
                break;
            };
            query.after = last.revision;
            let more = page.more;
            events.extend(page.events);
            if !more {
                break;
            }
        }
        events.retain(|event| event.kind != EventKind::LeaseRenewed);
        events
    }

    /// What happened to one key, in order.
    pub async fn story(&self, id: &str) -> Vec<EventKind> {
        let key = self.key(id);
        self.events()
            .await
            .into_iter()
            .filter(|event| event.key == key)
            .map(|event| event.kind)
            .collect()
    }

    /// Waits until one lease's end by expiry is in the history.
    pub async fn until_expired(&self, lease: &Lease) {
        self.eventually("a lapsed lease expires", async || {
            self.events().await.iter().any(|event| {
                event.kind == EventKind::LeaseExpired
                    && event.lease.as_ref().is_some_and(|it| it.id == lease.id)
            })
        })
        .await;
    }

    /// Waits, bounded, until something is so.
    pub async fn eventually(&self, what: &str, check: impl AsyncFn() -> bool) {
        let looking = async {
            while !check().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let came = tokio::time::timeout(PATIENCE, looking).await;
        assert!(came.is_ok(), "did not come to pass: {what}");
    }

    /// Compares two spans of time, exactly where time stands still.
    pub fn assert_about(&self, what: &str, actual_ms: u64, expected_ms: u64) {
        // A busy machine may take long between two steps, but not as long as this.
        let tolerance = if self.pace().exact { 0 } else { 5_000 };
        assert!(
            actual_ms.abs_diff(expected_ms) <= tolerance,
            "{what}: {actual_ms} ms where {expected_ms} ms were expected"
        );
    }
}

/// The leases of a grant.
pub fn granted(answer: Acquired) -> Vec<Lease> {
    match answer {
        Acquired::Granted { leases, .. } => leases,
        Acquired::Refused(refusal) => panic!("a grant was expected, not {refusal:?}"),
    }
}

/// The refusal in an answer.
pub fn refused(answer: Acquired) -> Refusal {
    match answer {
        Acquired::Refused(refusal) => refusal,
        Acquired::Granted { leases, .. } => panic!("a refusal was expected, not {leases:?}"),
    }
}

/// Who has the key, by a refusal.
pub fn held(refusal: Refusal) -> (Holder, Token) {
    match refusal.cause {
        Cause::Held { holder, token, .. } => (holder, token),
        other => panic!("somebody has the key, so not {other:?}"),
    }
}
