//! A store with one deliberate fault: a wrapper that passes everything on, except where it is wrong.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use futures_util::StreamExt as _;
use lease::{
    Acquire, Acquired, Answer, Authority, Capabilities, Cause, Command, Committed, Departure,
    Error, HandoffState, HandoffStep, Holder, Key, Lease, LeaseRef, Loss, Notice, OnOutage,
    Outcome, Query, Renew, Renewals, Renewed, Token, Transaction, Verdict, View, Want, Watch,
    Watching, answered,
};
use tokio::sync::watch;

/// What is wrong with a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    RevivesLapsed,
    TokenStartsAgain,
    GrantsTwice,
    AnyoneReleases,
    AnyoneRenews,
    WakesAll,
    ServesTheGone,
    LastComeFirstServed,
    IgnoresHold,
    DropsNotices,
    GrantsPartly,
    RefreshesAnew,
    MovesExpiryBack,
    LosesReasons,
    IgnoresIncarnations,
    SortsAnswers,
    WritesDespiteConflict,
    ReversesPools,
    IgnoresLimits,
    SkipsPrepare,
    PassesEnded,
    ReversesHistory,
    ChangesHistory,
    IgnoresTenants,
    DeathTakesAll,
    ListsForeignKinds,
    IgnoresFilters,
    HidesProgress,
}

/// A sound store behind a faulty one.
pub struct Broken {
    inner: Arc<dyn Authority>,
    fault: Option<Fault>,
    first_tokens: Mutex<HashMap<Key, Token>>,
    releases: watch::Sender<u64>,
    waits: Mutex<u64>,
}

impl Broken {
    pub fn new(inner: Arc<dyn Authority>, fault: Option<Fault>) -> Self {
        Self {
            inner,
            fault,
            first_tokens: Mutex::default(),
            releases: watch::Sender::new(0),
            waits: Mutex::default(),
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    async fn live(&self, key: &Key) -> Result<Option<Lease>, Error> {
        self.inner.lease(key.clone()).await
    }

    /// The wait of a store that lets waiters go wrong.
    async fn wait(&self, request: Acquire) -> Result<Acquired, Error> {
        if self.has(Fault::ServesTheGone) {
            let inner = self.inner.clone();
            let task = tokio::spawn(async move { inner.acquire(request).await });
            return task.await.expect("no panic");
        }
        if self.has(Fault::WakesAll) {
            let mut releases = self.releases.subscribe();
            let at_once = Acquire {
                wait_ms: 0,
                ..request.clone()
            };
            tokio::select! {
                answer = self.inner.acquire(request) => return answer,
                _ = releases.changed() => {}
            }
            return self.inner.acquire(at_once).await;
        }
        if self.has(Fault::LastComeFirstServed) {
            let first = {
                let mut waits = self.waits.lock().expect("not poisoned");
                *waits += 1;
                *waits == 1
            };
            let answer = self.inner.acquire(request.clone()).await?;
            let Acquired::Granted { leases, .. } = &answer else {
                return Ok(answer);
            };
            if !first {
                return Ok(answer);
            }
            self.inner.release(LeaseRef::from(&leases[0])).await?;
            return self.inner.acquire(request).await;
        }
        self.inner.acquire(request).await
    }

    async fn ask(&self, mut request: Acquire) -> Result<Acquired, Error> {
        let asked = request.clone();
        match self.fault {
            Some(Fault::IgnoresHold) => request.on_outage = OnOutage::FailClosed,
            Some(Fault::IgnoresLimits) => request.limit = None,
            Some(Fault::IgnoresIncarnations) => {
                request.holder =
                    Holder::new(request.holder.name.as_str(), "1").expect("well-formed");
            }
            Some(Fault::IgnoresTenants) => {
                for key in request.want.keys() {
                    if let Some(lease) = self.live(key).await?
                        && lease.holder == request.holder
                    {
                        request.labels = lease.labels;
                    }
                }
            }
            Some(Fault::ReversesPools) => {
                if let Want::Any(keys) = &mut request.want {
                    keys.reverse();
                }
            }
            Some(Fault::RefreshesAnew) => {
                for key in request.want.keys() {
                    if let Some(lease) = self.live(key).await?
                        && lease.holder == request.holder
                    {
                        self.inner.release(LeaseRef::from(&lease)).await?;
                    }
                }
            }
            _ => {}
        }
        if request.wait_ms > 0 {
            return self.wait(request).await;
        }
        let mut answer = self.inner.acquire(request.clone()).await?;
        match &mut answer {
            Acquired::Granted { leases, .. } => self.spoil(leases, &asked),
            Acquired::Refused(refusal) => {
                if self.has(Fault::GrantsPartly)
                    && let Want::All(keys) = &request.want
                {
                    for key in keys {
                        let one = Acquire {
                            want: Want::one(key.clone()),
                            ..request.clone()
                        };
                        self.inner.acquire(one).await?;
                    }
                }
                if self.has(Fault::GrantsTwice)
                    && let Cause::Held { token, .. } = &refusal.cause
                    && let Some(mut lease) = self.live(&refusal.key).await?
                {
                    lease.holder = request.holder;
                    lease.token = Token::new(token.get() + 1)?;
                    return Ok(Acquired::Granted {
                        leases: vec![lease],
                        fresh: true,
                    });
                }
            }
        }
        Ok(answer)
    }

    fn spoil(&self, leases: &mut [Lease], asked: &Acquire) {
        for lease in leases {
            if self.has(Fault::TokenStartsAgain) {
                let mut tokens = self.first_tokens.lock().expect("not poisoned");
                lease.token = *tokens.entry(lease.key.clone()).or_insert(lease.token);
            }
            if self.has(Fault::IgnoresHold) {
                lease.on_outage = asked.on_outage;
            }
        }
    }

    async fn keep(&self, mut request: Renew) -> Result<Vec<Renewed>, Error> {
        let mut answers = Vec::new();
        if self.has(Fault::AnyoneRenews)
            && let Renewals::These(renewals) = &request.leases
            && let Some(first) = renewals.first()
            && let Some(lease) = self.live(&first.key).await?
        {
            request.holder = lease.holder;
        }
        for mut answer in self.inner.renew(request.clone()).await? {
            if let (Some(Fault::RevivesLapsed), Err(Loss::Expired)) = (self.fault, &answer.outcome)
            {
                let ttl = lease::Ttl::from_secs(600)?;
                let again = Acquire::one(answer.key.clone(), request.holder.clone(), ttl);
                if let Acquired::Granted { leases, .. } = self.inner.acquire(again).await? {
                    answer.outcome = leases.into_iter().next().ok_or(Loss::Unknown);
                }
            }
            if self.has(Fault::LosesReasons)
                && let Err(Loss::Revoked { why }) = &mut answer.outcome
            {
                *why = "".into();
            }
            if self.has(Fault::MovesExpiryBack)
                && let Ok(lease) = &mut answer.outcome
            {
                let now = self.inner.now().await?;
                lease.expires_at = now.plus(lease.ttl.millis());
            }
            answers.push(answer);
        }
        if self.has(Fault::SortsAnswers) {
            answers.sort_by(|a, b| a.key.cmp(&b.key));
        }
        Ok(answers)
    }

    async fn give_back(&self, mut lease: LeaseRef) -> Result<bool, Error> {
        if self.has(Fault::AnyoneReleases)
            && let Some(live) = self.live(&lease.key).await?
        {
            lease = LeaseRef::from(&live);
        }
        let released = self.inner.release(lease).await?;
        self.releases.send_modify(|count| *count += 1);
        Ok(released)
    }

    async fn step(&self, step: HandoffStep) -> Result<HandoffState, Error> {
        if let (Some(Fault::SkipsPrepare), HandoffStep::Commit { lease, .. }) = (self.fault, &step)
            && let Some(live) = self.live(&lease.key).await?
            && let Some(handoff) = live.handoff
        {
            let prepare = HandoffStep::Prepare {
                key: lease.key.clone(),
                successor: handoff.successor,
            };
            self.inner.handoff(prepare).await?;
        }
        self.inner.handoff(step).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<Committed, Error> {
        let answer = self.inner.commit(transaction.clone()).await?;
        if self.has(Fault::WritesDespiteConflict) && matches!(answer, Committed::Conflict { .. }) {
            let writes = Transaction {
                writes: transaction.writes,
                ..Transaction::default()
            };
            self.inner.commit(writes).await?;
        }
        Ok(answer)
    }
}

impl Authority for Broken {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn decide(&self, command: Command) -> Answer<'_, Outcome> {
        match command {
            Command::Acquire(request) => answered(self.ask(request), Outcome::Acquired),
            Command::Renew(request) => answered(self.keep(request), Outcome::Renewed),
            Command::Release(lease) => answered(self.give_back(lease), Outcome::Released),
            Command::Depart(Departure::Died(holder)) if self.has(Fault::DeathTakesAll) => {
                let left = Departure::Left(holder);
                self.inner.decide(Command::Depart(left))
            }
            Command::Handoff(step) => answered(self.step(step), Outcome::Handoff),
            Command::Commit(transaction) => {
                answered(self.transact(transaction), Outcome::Committed)
            }
            Command::Keep(holder) => answered(
                async move {
                    let leases = lease::Renewals::All;
                    let answers = self.keep(Renew { holder, leases }).await?;
                    Ok(lease::Kept::from(answers))
                },
                Outcome::Kept,
            ),
            command @ (Command::Revoke(_) | Command::Depart(_)) => self.inner.decide(command),
        }
    }

    fn look(&self, mut query: Query) -> Answer<'_, View> {
        if let Query::Leases(query) = &mut query
            && self.has(Fault::ListsForeignKinds)
        {
            query.kind = None;
        }
        Box::pin(async move {
            let mut view = self.inner.look(query).await?;
            match &mut view {
                View::Checked(verdicts) if self.has(Fault::PassesEnded) => {
                    for verdict in verdicts {
                        if *verdict == Verdict::Ended {
                            *verdict = Verdict::Current;
                        }
                    }
                }
                View::Events(page) => {
                    if self.has(Fault::ReversesHistory) && !page.more {
                        page.events.reverse();
                    }
                    if self.has(Fault::ChangesHistory) {
                        for event in &mut page.events {
                            event.at = event.at.plus(1);
                        }
                    }
                }
                _ => {}
            }
            Ok(view)
        })
    }

    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        Box::pin(async move {
            let watching = if self.has(Fault::IgnoresFilters) {
                Watching::everything().after(watching.from)
            } else {
                watching
            };
            let stream = self.inner.watch(watching).await?;
            if self.has(Fault::HidesProgress) {
                let shown = stream.filter(|notice| {
                    let hidden = matches!(notice, Ok(Notice::Progress(_)));
                    std::future::ready(!hidden)
                });
                return Ok(Box::pin(shown) as Watch);
            }
            if !self.has(Fault::DropsNotices) {
                return Ok(stream);
            }
            let kept = stream.enumerate().filter_map(|(place, notice)| async move {
                let dropped = place == 2 && matches!(notice, Ok(Notice::Event(_)));
                (!dropped).then_some(notice)
            });
            Ok(Box::pin(kept) as Watch)
        })
    }
}
