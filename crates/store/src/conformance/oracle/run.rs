//! One sequence of moves, played on the store and on the engine.

use std::{collections::HashMap, time::Duration};

use lease::{
    Acquire, Acquired, Command, Departure, Engine, Event, EventKind, Expect, Grace, HandoffStep,
    Holder, Key, Labels, Lease, LeaseId, LeaseQuery, LeaseRef, Note, OnOutage, Outcome,
    RecordQuery, Renew, Renewal, Renewals, Revision, Revoke, Status, Transaction, Ttl, UnixMillis,
    Want, Write,
    engine::{Decision, Effects, Options, Ticket},
    session::State,
};

use super::{
    super::{Harness, Stage, stage::Waiting},
    ledger::{Differs, Ledger, each},
    moves::{Ask, Expectation, HOLDERS, KEYS, Move, RECORDS},
};

/// How long the store may take to follow. Only ever waited for in full when it is wrong.
const PATIENCE: Duration = Duration::from_secs(5);

/// How much time passes in one move, where it stands still otherwise.
const LENGTHS_MS: [u64; 5] = [1, 699, 700, 5_000, 12_345];

/// What lies further ahead than this cannot happen by itself during a run in real time.
const AHEAD_MS: u64 = 60_000;

struct Wait {
    ticket: Ticket,
    task: Waiting,
    key: Key,
    holder: Holder,
}

/// A sequence under way.
pub(super) struct Run<'a> {
    stage: Stage<'a>,
    engine: Engine,
    effects: Effects,
    ledger: Ledger,
    waits: Vec<Wait>,
    /// The engine's history, without renewals.
    events: Vec<Event>,
    /// The leases that ended, as they were then.
    ended: HashMap<LeaseId, Lease>,
    /// Revisions that records had, on both sides.
    revisions: HashMap<Key, Vec<(Revision, Revision)>>,
    /// The engine's time where it is not the store's own.
    now: UnixMillis,
    writes: u64,
}

impl<'a> Run<'a> {
    pub async fn new(harness: &'a dyn Harness) -> Self {
        let stage = Stage::of(harness);
        let now = stage.authority.now().await.expect("the time is answered");
        Self {
            ledger: Ledger::new(stage.pace().exact),
            stage,
            engine: Engine::new(Options::default()),
            effects: Effects::default(),
            waits: Vec::new(),
            events: Vec::new(),
            ended: HashMap::new(),
            revisions: HashMap::new(),
            now,
            writes: 0,
        }
    }

    /// Plays one move and compares everything that can be seen.
    pub async fn play(&mut self, step: &Move) -> Result<(), Differs> {
        match step {
            Move::Pass(length) => self.pass(usize::from(*length)).await?,
            Move::Lapse(length) => self.lapse(usize::from(*length)).await?,
            Move::Succeed {
                lease,
                successor,
                limit,
            } => self.succeed(*lease, *successor, *limit).await?,
            Move::Abandon(wait) => self.abandon(*wait).await?,
            _ => {
                if let Some(command) = self.command(step) {
                    self.decide(command.0, command.1).await?;
                }
            }
        }
        self.settle().await?;
        self.compare_events().await?;
        self.compare_views().await
    }

    /// Compares what is left of every lease, and ends what still waits, so that no task outlives the
    /// run.
    pub async fn finish(mut self) -> Result<(), Differs> {
        self.stage.pass(0).await;
        self.tick().await?;
        self.compare_ended().await?;
        for wait in std::mem::take(&mut self.waits) {
            if wait.task.is_finished() {
                return Err(format!("{} was woken for no reason", wait.holder));
            }
            wait.task.abort();
        }
        Ok(())
    }

    /// Short is a length of time that a run waits for; in real time the others never pass.
    fn span(&self, span: u8) -> u64 {
        let lengths = if self.stage.pace().exact {
            [700, 5_000, 30_000]
        } else {
            [150, 600_000, 900_000]
        };
        lengths[usize::from(span) % lengths.len()]
    }

    fn key(&self, key: u8) -> Key {
        self.stage.key(&format!("k{}", key % KEYS))
    }

    fn record_key(&self, record: u8) -> Key {
        self.stage.key(&format!("r{}", record % RECORDS))
    }

    fn holder(&self, holder: u8) -> Holder {
        let holder = holder % HOLDERS;
        let name = ["ann", "bob", "cid"][usize::from(holder % 3)];
        self.stage
            .incarnation(name, if holder < 3 { "1" } else { "2" })
    }

    /// A lease that both sides know: the engine's and the store's.
    fn lease(&self, pick: u8) -> Option<(Lease, Lease)> {
        // The newest ones are the most interesting.
        let count = self.ledger.leases.len().min(8);
        let index = self.ledger.leases.len() - count + usize::from(pick) % count.max(1);
        self.ledger.leases.get(index).cloned()
    }

    fn request(&self, ask: &Ask) -> Acquire {
        let keys = ask.keys.iter().map(|&key| self.key(key)).collect();
        let want = if ask.any {
            Want::Any(keys)
        } else {
            Want::All(keys)
        };
        let exact = self.stage.pace().exact;
        // In real time a wait that ends in a short lease could not be distinguished from one that did not.
        let ttl = if ask.wait.is_some() && !exact {
            1
        } else {
            ask.ttl
        };
        let ttl = Ttl::from_millis(self.span(ttl)).expect("within range");
        let mut request = Acquire::of(want, self.holder(ask.holder), ttl);
        if let Some(grace) = ask.hold {
            let grace = Grace::from_millis(self.span(grace)).expect("within range");
            request.on_outage = OnOutage::Hold(grace);
        }
        let tenant = ask.tenant.then(|| ("tenant".into(), "acme".into()));
        let id = ask.request.map(|id| ("request".into(), id.to_string()));
        request.labels = Labels::new(tenant.into_iter().chain(id).collect()).expect("well-formed");
        request.release_on_death = ask.on_death;
        request.wait_ms = ask.wait.map_or(0, |wait| self.span(wait));
        request.limit = ask.limit;
        request.force = (ask.force && !ask.any).then(|| "by force".into());
        request
    }

    /// The same command for both sides; `None` when it names something that is not there yet.
    fn command(&mut self, step: &Move) -> Option<(Command, Command)> {
        let both = |command: Command| Some((command.clone(), command));
        match step {
            Move::Acquire(ask) => both(Command::Acquire(self.request(ask))),
            Move::Renew { holder, leases } => {
                let holder = self.holder(*holder);
                let picked: Vec<_> = leases
                    .iter()
                    .filter_map(|(pick, ttl, report)| Some((self.lease(*pick)?, ttl, report)))
                    .collect();
                // Mostly the owner of the first one asks, so that some are kept.
                let holder = picked
                    .first()
                    .filter(|_| leases.len() > 1)
                    .map_or(holder, |((lease, _), _, _)| lease.holder.clone());
                let renew = |side: fn(&(Lease, Lease)) -> &Lease| {
                    let renewals = picked.iter().map(|(pair, ttl, report)| Renewal {
                        ttl: ttl.map(|ttl| Ttl::from_millis(self.span(ttl)).expect("within range")),
                        stats: report.then(|| r#"{"ok":true}"#.into()),
                        ..Renewal::of(side(pair))
                    });
                    Command::Renew(Renew {
                        holder: holder.clone(),
                        leases: Renewals::These(renewals.collect()),
                    })
                };
                Some((renew(|pair| &pair.0), renew(|pair| &pair.1)))
            }
            Move::RenewAll(lease) => both(Command::Renew(Renew {
                holder: self.lease(*lease)?.0.holder,
                leases: Renewals::All,
            })),
            Move::Release { lease, stranger } => {
                let (mine, theirs) = self.lease(*lease)?;
                let by = stranger.map_or_else(|| mine.holder.clone(), |it| self.holder(it));
                let release = |lease: &Lease| {
                    Command::Release(LeaseRef {
                        holder: by.clone(),
                        ..LeaseRef::from(lease)
                    })
                };
                Some((release(&mine), release(&theirs)))
            }
            Move::Revoke(lease) => {
                let (mine, theirs) = self.lease(*lease)?;
                let revoke = |lease: &Lease| {
                    Command::Revoke(Revoke {
                        id: lease.id,
                        reason: "an order".into(),
                    })
                };
                Some((revoke(&mine), revoke(&theirs)))
            }
            Move::Depart { how, holder } => {
                let holder = self.holder(*holder);
                both(Command::Depart(match how {
                    0 => Departure::Died(holder),
                    1 => Departure::Succeeded(holder),
                    _ => Departure::Left(holder),
                }))
            }
            Move::Offer { .. }
            | Move::Prepare { .. }
            | Move::HandOver(_)
            | Move::Confirm(_)
            | Move::Cancel { .. } => self.handoff(step),
            Move::Commit {
                expect,
                writes,
                acquire,
                release,
            } => Some(self.transaction(expect, writes, acquire.as_ref(), release)),
            Move::Abandon(_) | Move::Pass(_) | Move::Lapse(_) | Move::Succeed { .. } => None,
        }
    }

    fn handoff(&self, step: &Move) -> Option<(Command, Command)> {
        let on = |lease: u8, make: &dyn Fn(LeaseRef) -> HandoffStep| {
            let (mine, theirs) = self.lease(lease)?;
            Some((
                Command::Handoff(make(LeaseRef::from(&mine))),
                Command::Handoff(make(LeaseRef::from(&theirs))),
            ))
        };
        let both =
            |step: HandoffStep| Some((Command::Handoff(step.clone()), Command::Handoff(step)));
        match step {
            Move::Offer {
                lease,
                successor,
                prepare,
                drain,
                confirm,
            } => on(*lease, &|lease| HandoffStep::Offer {
                successor: self.holder(*successor),
                lease,
                prepare_ms: self.span(*prepare),
                drain_ms: self.span(*drain),
                confirm_ms: self.span(*confirm),
            }),
            Move::HandOver(lease) => {
                on(*lease, &|lease| HandoffStep::Commit { lease, limit: None })
            }
            Move::Confirm(lease) => on(*lease, &|lease| HandoffStep::Confirm { lease }),
            Move::Prepare { key, holder } => both(HandoffStep::Prepare {
                key: self.key(*key),
                // Whoever was offered the key, if somebody was: a random one seldom is.
                successor: self
                    .offered(&self.key(*key))
                    .unwrap_or_else(|| self.holder(*holder)),
            }),
            Move::Cancel { key, holder } => both(HandoffStep::Cancel {
                key: self.key(*key),
                by: self.holder(*holder),
            }),
            _ => None,
        }
    }

    fn offered(&self, key: &Key) -> Option<Holder> {
        let lease = self.engine.lease(self.engine.now(), key)?;
        Some(lease.handoff?.successor)
    }

    fn transaction(
        &mut self,
        expect: &[(u8, Expectation)],
        writes: &[(u8, bool)],
        acquire: Option<&Ask>,
        release: &[u8],
    ) -> (Command, Command) {
        let mut sides = (Transaction::default(), Transaction::default());
        for (record, expectation) in expect {
            let key = self.record_key(*record);
            let known = self.revisions.get(&key).map_or(&[][..], Vec::as_slice);
            let revisions = match expectation {
                Expectation::Absent => None,
                Expectation::Current => {
                    self.engine.record(&key).and_then(|_| known.last().copied())
                }
                Expectation::Old(pick) => {
                    known.get(usize::from(*pick) % known.len().max(1)).copied()
                }
            };
            let expect = |revision| Expect {
                key: key.clone(),
                revision,
            };
            sides.0.expect.push(expect(revisions.map(|it| it.0)));
            sides.1.expect.push(expect(revisions.map(|it| it.1)));
        }
        for (record, put) in writes {
            self.writes += 1;
            let write = Write {
                key: self.record_key(*record),
                value: put.then(|| self.writes.to_string().into()),
                note: Some(if self.writes.is_multiple_of(2) {
                    Note::Session(State::Running)
                } else {
                    "a note".into()
                }),
            };
            sides.0.writes.push(write.clone());
            sides.1.writes.push(write);
        }
        sides.0.acquire = acquire.map(|ask| self.request(ask));
        sides.1.acquire.clone_from(&sides.0.acquire);
        for (mine, theirs) in release.iter().filter_map(|&pick| self.lease(pick)) {
            sides.0.release.push(LeaseRef::from(&mine));
            sides.1.release.push(LeaseRef::from(&theirs));
        }
        (Command::Commit(sides.0), Command::Commit(sides.1))
    }

    /// The engine's time: the store's own where that stands still.
    async fn now(&self) -> UnixMillis {
        if self.stage.pace().exact {
            self.stage.authority.now().await.expect("answered")
        } else {
            self.now
        }
    }

    async fn apply(&mut self, command: Command) -> Result<Decision, Differs> {
        let now = self.now().await;
        self.engine
            .apply(now, command, &mut self.effects)
            .map_err(|invalid| format!("the engine finds a move invalid: {invalid}"))
    }

    async fn decide(&mut self, mine: Command, theirs: Command) -> Result<(), Differs> {
        if mine.validate().is_err() {
            return Ok(());
        }
        match (self.apply(mine).await?, theirs) {
            (Decision::Waiting(ticket), Command::Acquire(request)) => {
                self.start_waiting(ticket, request).await?;
            }
            (Decision::Waiting(_), other) => return Err(format!("{other:?} waits")),
            (Decision::Now(mine), theirs) => {
                let answer = self.stage.authority.decide(theirs);
                let theirs = tokio::time::timeout(PATIENCE, answer)
                    .await
                    .map_err(|_| format!("no answer from the store, the engine says {mine:?}"))?
                    .map_err(|error| format!("the store failed: {error}"))?;
                self.compare(&mine, &theirs)?;
            }
        }
        self.follow().await
    }

    fn compare(&mut self, mine: &Outcome, theirs: &Outcome) -> Result<(), Differs> {
        match (mine, theirs) {
            (Outcome::Acquired(a), Outcome::Acquired(b)) => self.ledger.acquired(a, b),
            (Outcome::Renewed(a), Outcome::Renewed(b)) => self.ledger.renewed(a, b),
            (Outcome::Revoked(Some(a)), Outcome::Revoked(Some(b))) => self.ledger.lease(a, b),
            (Outcome::Departed(a), Outcome::Departed(b)) => self.ledger.leases(a, b),
            (Outcome::Handoff(a), Outcome::Handoff(b)) => self.ledger.handoff(a, b),
            (Outcome::Committed(a), Outcome::Committed(b)) => self.ledger.committed(a, b),
            (a, b) if a == b => Ok(()),
            (a, b) => Err(format!("the engine says {a:?}, the store says {b:?}")),
        }
    }

    async fn start_waiting(&mut self, ticket: Ticket, request: Acquire) -> Result<(), Differs> {
        let key = request.want.keys()[0].clone();
        let holder = request.holder.clone();
        let before = self.stage.pending(&key, &holder).await;
        let authority = self.stage.authority.clone();
        let short = request.wait_ms <= self.span(0);
        let task = tokio::spawn(async move { authority.acquire(request).await });
        let joined = async {
            // In real time a short wait may be over before it was seen.
            while self.stage.pending(&key, &holder).await <= before
                && !(task.is_finished() && short)
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, joined).await.is_err() {
            return Err(format!("{holder} waits for {key}, and is not pending"));
        }
        self.waits.push(Wait {
            ticket,
            task,
            key,
            holder,
        });
        Ok(())
    }

    /// Takes in what a command did beside its outcome: waiters must be woken on both sides.
    async fn follow(&mut self) -> Result<(), Differs> {
        let woken = std::mem::take(&mut self.effects.woken);
        for (ticket, mine) in woken {
            let Some(place) = self.waits.iter().position(|wait| wait.ticket == ticket) else {
                continue;
            };
            let wait = self.waits.remove(place);
            let theirs = tokio::time::timeout(PATIENCE, wait.task).await;
            let theirs: Acquired = match theirs {
                Ok(Ok(Ok(answer))) => answer,
                other => {
                    let holder = wait.holder;
                    return Err(format!("{holder} gets {mine:?}, but {other:?}"));
                }
            };
            self.ledger.acquired(&mine, &theirs)?;
        }
        if let Some(wait) = self.waits.iter().find(|wait| wait.task.is_finished()) {
            return Err(format!("{} was woken for no reason", wait.holder));
        }
        let events = std::mem::take(&mut self.effects.events);
        for (revision, terms) in std::mem::take(&mut self.effects.ended) {
            let end = events
                .iter()
                .find(|event| event.revision == revision && event.kind.ends_lease());
            let lease = end.and_then(|end| terms.ended_lease(end));
            self.ended.extend(lease.map(|lease| (lease.id, lease)));
        }
        self.events.extend(
            events
                .into_iter()
                .filter(|event| event.kind != EventKind::LeaseRenewed),
        );
        self.effects.clear();
        Ok(())
    }

    /// Every lease that was ever granted, by its id: live, or as it was at its end.
    async fn compare_ended(&mut self) -> Result<(), Differs> {
        let now = self.now().await;
        for (mine, theirs) in self.ledger.leases.clone() {
            let expected = self
                .engine
                .lease_by_id(now, mine.id)
                .or_else(|| self.ended.get(&mine.id).cloned());
            let found = self.stage.authority.lease_by_id(theirs.id).await;
            match (expected, found.map_err(|error| error.to_string())?) {
                (Some(expected), Some(found)) => self.ledger.lease(&expected, &found)?,
                (None, None) => {}
                (expected, found) => {
                    return Err(format!(
                        "by its id, the engine remembers {expected:?}, the store {found:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// A handoff from its offer to its commit.
    async fn succeed(
        &mut self,
        lease: u8,
        successor: u8,
        limit: Option<u32>,
    ) -> Result<(), Differs> {
        let Some((mine, theirs)) = self.lease(lease) else {
            return Ok(());
        };
        let successor = self.holder(successor);
        let (some_ms, key) = (self.span(1), mine.key.clone());
        let offer = |lease: &Lease| HandoffStep::Offer {
            lease: LeaseRef::from(lease),
            successor: successor.clone(),
            prepare_ms: some_ms,
            drain_ms: some_ms,
            confirm_ms: some_ms,
        };
        let prepare = HandoffStep::Prepare {
            key,
            successor: successor.clone(),
        };
        let commit = |lease: &Lease| HandoffStep::Commit {
            lease: LeaseRef::from(lease),
            limit,
        };
        for (mine, theirs) in [
            (offer(&mine), offer(&theirs)),
            (prepare.clone(), prepare),
            (commit(&mine), commit(&theirs)),
        ] {
            self.decide(Command::Handoff(mine), Command::Handoff(theirs))
                .await?;
        }
        Ok(())
    }

    /// Time passes, and nothing that lapses is expired yet. A wait whose end comes meanwhile looks for
    /// itself, so then time passes by itself.
    async fn lapse(&mut self, length: usize) -> Result<(), Differs> {
        let now = self.now().await;
        // Most is decided around the moment at which something is due.
        let due = self.engine.next_tick().map_or(0, |at| at.since(now));
        let millis = match length {
            0 => due.saturating_sub(1),
            1 | 2 => due,
            3 => due + 1,
            _ => LENGTHS_MS[length % LENGTHS_MS.len()],
        };
        let after = now.plus(millis);
        if !self.stage.pace().exact || self.engine.next_deadline().is_some_and(|at| at <= after) {
            return self.pass(length).await;
        }
        if !self.stage.pass_without_tick(millis).await {
            return self.pass(length).await;
        }
        self.follow().await
    }

    async fn pass(&mut self, length: usize) -> Result<(), Differs> {
        let millis = if self.stage.pace().exact {
            LENGTHS_MS[length % LENGTHS_MS.len()]
        } else {
            10
        };
        self.stage.pass(millis).await;
        self.now = self.now.plus(millis);
        self.tick().await
    }

    async fn tick(&mut self) -> Result<(), Differs> {
        let now = self.now().await;
        if self.engine.next_tick().is_some_and(|at| at <= now) {
            self.engine.tick(now, &mut self.effects);
        }
        self.follow().await
    }

    /// In real time, lets everything happen that is about to happen by itself, so that each move
    /// finds a state in which time decides nothing.
    async fn settle(&mut self) -> Result<(), Differs> {
        if self.stage.pace().exact {
            return Ok(());
        }
        for _ in 0..8 {
            let soon = self.now.plus(AHEAD_MS);
            let handoffs = self
                .engine
                .live()
                .filter_map(|lease| lease.handoff.map(|handoff| handoff.until))
                .filter(|&until| until > self.now);
            let next = self.engine.next_tick().into_iter().chain(handoffs).min();
            if next.is_none_or(|next| next > soon) {
                return Ok(());
            }
            let millis = self.span(0) + 150;
            self.stage.pass(millis).await;
            self.now = self.now.plus(millis);
            self.tick().await?;
        }
        Err("the state does not come to rest".into())
    }

    async fn abandon(&mut self, pick: u8) -> Result<(), Differs> {
        if self.waits.is_empty() {
            return Ok(());
        }
        let wait = self.waits.remove(usize::from(pick) % self.waits.len());
        let before = self.stage.pending(&wait.key, &wait.holder).await;
        let now = self.now().await;
        self.engine.abandon(now, wait.ticket, &mut self.effects);
        wait.task.abort();
        let left = async {
            while self.stage.pending(&wait.key, &wait.holder).await >= before {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, left).await.is_err() {
            return Err(format!("{} left and is still pending", wait.holder));
        }
        self.follow().await
    }

    async fn compare_events(&mut self) -> Result<(), Differs> {
        let caught_up = async {
            loop {
                let events = self.stage.events().await;
                if events.len() >= self.events.len() {
                    return events;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let theirs = match tokio::time::timeout(PATIENCE, caught_up).await {
            Ok(events) => events,
            Err(_) => self.stage.events().await,
        };
        self.ledger.events(&self.events, &theirs)?;
        for (mine, theirs) in self.events.iter().zip(&theirs) {
            if mine.kind == EventKind::RecordPut && mine.key == theirs.key {
                let known = self.revisions.entry(mine.key.clone()).or_default();
                if known.last().is_none_or(|last| last.0 < mine.revision) {
                    known.push((mine.revision, theirs.revision));
                }
            }
        }
        Ok(())
    }

    async fn compare_views(&mut self) -> Result<(), Differs> {
        let now = self.now().await;
        let failed = |error| format!("the store failed: {error}");
        let query = LeaseQuery {
            kind: Some(self.stage.kind().to_owned()),
            limit: 1000,
            ..LeaseQuery::default()
        };
        let mine = self.engine.leases(now, &query).items;
        let theirs = self.stage.authority.leases(query).await.map_err(failed)?;
        let exact = self.stage.pace().exact;
        let split = |leases: Vec<Lease>| -> (Vec<Lease>, Vec<Lease>) {
            let (mut pending, active): (Vec<_>, Vec<_>) = leases
                .into_iter()
                .partition(|lease| lease.status == Status::Pending);
            // One holder may wait twice for one key, and stores list those in any order.
            pending.sort_by_cached_key(|wait| format!("{:?}", as_wait(wait, exact)));
            (pending, active)
        };
        let ((waiting, mine), (theirs_waiting, theirs)) = (split(mine), split(theirs.items));
        self.ledger.leases(&mine, &theirs)?;
        each("pending", &waiting, &theirs_waiting, |a, b| {
            if as_wait(a, exact) == as_wait(b, exact) {
                Ok(())
            } else {
                Err(format!("the engine has {a:?} waiting, the store {b:?}"))
            }
        })?;
        let pairs = &self.ledger.leases;
        let tokens = pairs.iter().map(|(_, it)| (it.key.clone(), it.token));
        let verdicts = self.stage.authority.check(tokens.collect()).await;
        let verdicts = verdicts.map_err(failed)?;
        for ((mine, _), theirs) in pairs.iter().zip(verdicts) {
            let verdict = self.engine.check(now, &mine.key, mine.token);
            self.ledger.verdict(&mine.key, verdict, theirs)?;
        }
        let query = RecordQuery {
            kind: self.stage.kind().to_owned(),
            prefix: "r".to_owned(),
            after: None,
            limit: 100,
        };
        let mine = self.engine.records(&query).items;
        let theirs = self.stage.authority.records(query).await.map_err(failed)?;
        each("records", &mine, &theirs.items, Ledger::record)
    }
}

/// What must be the same about a wait.
fn as_wait(lease: &Lease, exact: bool) -> impl PartialEq + std::fmt::Debug {
    (
        lease.key.clone(),
        lease.holder.clone(),
        lease.ttl,
        lease.release_on_death,
        lease.labels.clone(),
        exact.then_some((lease.acquired_at, lease.expires_at)),
    )
}
