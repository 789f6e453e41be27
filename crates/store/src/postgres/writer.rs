//! The one who asks the database to decide. Whatever is queued goes out as one statement, which
//! commits once (group commit) and needs no second round trip.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lease::{Acquire, Acquired, Error, Revision, Token, UnixMillis};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::{Instant, sleep_until},
};
use tokio_postgres::Row;

use super::{
    Options,
    connect::Database,
    fast_path::{Grant, Together},
    feed::Feed,
    functions::FunctionSet,
    row,
    task::Task,
    waits::{Waits, give_back},
};

/// How many commands may be queued before callers wait for room.
const QUEUE: usize = 4096;
/// How many commands one statement decides at most: it holds the clock's row all that time.
const BATCH: usize = 256;
/// How many keys one statement decides about at most, unless a single command names more. It bounds
/// the answer, which must fit into the buffers between server and client: a paused client must not
/// keep the server from committing.
const BATCH_KEYS: usize = 512;
/// How often a replica with waiters shows itself and looks after them.
const WAKE_INTERVAL: Duration = Duration::from_millis(500);

/// What the database decided about one command.
#[derive(Debug)]
pub(super) struct Decided {
    /// When.
    pub at: UnixMillis,
    /// The revision after the batch.
    pub revision: Revision,
    /// How.
    pub verdict: Verdict,
}

/// The outcome of a command.
#[derive(Debug)]
pub(super) enum Verdict {
    /// As JSON.
    Json(String),
    /// A grant of the fast path.
    Grant(Grant),
}

impl Decided {
    /// The outcome.
    pub fn outcome<T: DeserializeOwned>(&self) -> Result<T, Error> {
        match &self.verdict {
            Verdict::Json(body) => row::json(body),
            Verdict::Grant(_) => Err(row::damaged("a grant that nobody asked for")),
        }
    }

    /// The outcome of this request.
    pub fn acquired(&self, request: &Acquire) -> Result<Acquired, Error> {
        match &self.verdict {
            Verdict::Json(body) => row::json(body),
            Verdict::Grant(grant) => {
                let lease = grant.lease(request, self.at);
                Ok(Acquired::Granted {
                    leases: vec![lease.ok_or_else(|| row::damaged("a grant of several keys"))?],
                    fresh: true,
                })
            }
        }
    }
}

pub(super) type Reply = oneshot::Sender<Result<Decided, Error>>;

struct Item {
    task: Task,
    reply: Reply,
}

/// What the writer is notified of besides commands.
#[derive(Clone, Default)]
pub(super) struct Signals {
    /// A caller stopped waiting.
    pub left: Arc<Notify>,
    /// Answers that were sent to a caller that went away before it took them.
    unheard: Arc<Mutex<Vec<Decided>>>,
    /// Another replica answered a wait of this one.
    pub answered: Arc<Notify>,
}

impl Signals {
    /// Every critical section leaves a whole value behind.
    fn unheard(&self) -> MutexGuard<'_, Vec<Decided>> {
        self.unheard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way to the writer.
#[derive(Clone)]
pub(super) struct Writer {
    queue: mpsc::Sender<Item>,
    signals: Signals,
    limit: Duration,
}

/// Notifies the writer when a caller goes away.
struct Caller {
    answer: Option<oneshot::Receiver<Result<Decided, Error>>>,
    may_wait: bool,
    signals: Signals,
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(mut answer) = self.answer.take() {
            // The writer must find the channel closed when it looks. An answer that crossed with this is
            // in it already: what it granted goes back (L6).
            answer.close();
            if let Ok(Ok(decided)) = answer.try_recv()
                && self.may_wait
            {
                self.signals.unheard().push(decided);
            }
            self.signals.left.notify_one();
        }
    }
}

impl Writer {
    /// Starts the writer. It ends when the last handle is gone.
    pub fn start(
        database: Database,
        replica: String,
        functions: &FunctionSet,
        renewals: &'static str,
        feed: Arc<Feed>,
        signals: Signals,
        options: &Options,
    ) -> Self {
        let (queue, queued) = mpsc::channel(QUEUE);
        let actor = Actor {
            database,
            apply: format!(
                "SELECT item, number, body FROM {}($1, $2, $3, $4, $5::text::jsonb, $6, $7)",
                functions.entry_point()
            ),
            waits: Waits::new(replica.clone(), options),
            replica,
            renewals,
            feed,
            signals: signals.clone(),
            queued,
            chores: Vec::new(),
        };
        tokio::spawn(actor.run());
        Self {
            queue,
            signals,
            limit: options.statement_timeout,
        }
    }

    /// Has one command decided.
    pub async fn decide(&self, task: impl Into<Task>) -> Result<Decided, Error> {
        let task = task.into();
        let may_wait = task.wait_ms().is_some();
        let (reply, answer) = oneshot::channel();
        let item = Item { task, reply };
        self.queue
            .send_timeout(item, self.limit)
            .await
            .map_err(|_| Error::Unavailable("too many requests are waiting".to_owned()))?;
        let mut caller = Caller {
            answer: Some(answer),
            may_wait,
            signals: self.signals.clone(),
        };
        let Some(answer) = caller.answer.as_mut() else {
            return Err(stopped());
        };
        let answer = answer.await;
        caller.answer = None;
        answer.unwrap_or_else(|_| Err(stopped()))
    }
}

fn stopped() -> Error {
    Error::Unknown("the store was closed".to_owned())
}

struct Actor {
    database: Database,
    /// The statement that decides a batch.
    apply: String,
    replica: String,
    renewals: &'static str,
    feed: Arc<Feed>,
    signals: Signals,
    queued: mpsc::Receiver<Item>,
    waits: Waits,
    /// Commands of the writer's own: gone waiters, and grants that nobody took.
    chores: Vec<Task>,
}

impl Actor {
    async fn run(mut self) {
        let mut last_wake = Instant::now();
        loop {
            let mut items = Vec::new();
            // A wait that ended before the last look is looked at again with all others, so that a
            // database out of reach is not asked in a tight loop.
            let until = self.waits.next_look(last_wake, WAKE_INTERVAL);
            tokio::select! {
                first = self.queued.recv() => match first {
                    Some(first) => self.collect(first, &mut items),
                    None => return,
                },
                () = self.signals.left.notified() => {}
                () = self.signals.answered.notified() => {}
                () = sleep_until(until), if self.waits.are_timed() => {}
            }
            self.chores.extend(self.waits.gone());
            let unheard = std::mem::take(&mut *self.signals.unheard());
            self.chores.extend(unheard.iter().flat_map(give_back));
            if self.waits.are_timed() && Instant::now() >= until {
                self.chores.push(Task::Wake);
                last_wake = Instant::now();
            }
            if items.is_empty() && self.chores.is_empty() && !self.waits.is_busy() {
                continue;
            }
            self.decide(items).await;
            self.waits.expire();
        }
    }

    /// Takes what else is queued, as far as one statement may go.
    fn collect(&mut self, first: Item, items: &mut Vec<Item>) {
        let mut keys = first.task.keys();
        items.push(first);
        while items.len() < BATCH && keys < BATCH_KEYS {
            let Ok(item) = self.queued.try_recv() else {
                break;
            };
            keys = keys.saturating_add(item.task.keys());
            items.push(item);
        }
        // A caller that went away before anything was sent asks for nothing.
        items.retain(|item| !item.reply.is_closed());
    }

    async fn decide(&mut self, items: Vec<Item>) {
        if self.waits.is_doubtful() && self.waits.reconcile(&self.database).await.is_err() {
            // What waits is looked at again as soon as the database answers.
            self.waits.keep_doubt();
        }
        let chores = std::mem::take(&mut self.chores);
        let asked = || items.iter().map(|item| &item.task);
        let tasks: Vec<&Task> = chores.iter().chain(asked()).collect();
        let together = Together::of(asked(), chores.len());
        match self.apply(&tasks, &together).await {
            Ok(rows) => self.answer(&rows, chores.len(), items),
            Err(Error::Broken(_)) if tasks.len() > 1 => {
                // One of them is at fault, and nothing happened: each for itself.
                for item in items {
                    let alone = self.apply(&[&item.task], &Together::default()).await;
                    match alone {
                        Ok(rows) => self.answer(&rows, 0, vec![item]),
                        Err(error) => fail(&error, [item]),
                    }
                }
            }
            Err(error) => {
                // Chores may be repeated: they name what they mean.
                if error.is_retryable() {
                    self.chores = chores;
                    self.chores.retain(|chore| !matches!(chore, Task::Wake));
                }
                fail(&error, items);
            }
        }
    }

    async fn apply(&mut self, tasks: &[&Task], together: &Together) -> Result<Vec<Row>, Error> {
        let may_wait = tasks.iter().any(|task| task.wait_ms().is_some());
        let waiting = may_wait || self.waits.is_busy();
        let watching = self.feed.is_watched();
        let batch =
            serde_json::to_string(tasks).map_err(|error| Error::Broken(error.to_string()))?;
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 7] = [
            &self.replica,
            &waiting,
            &watching,
            &self.renewals,
            &batch,
            &together.acquires,
            &together.releases,
        ];
        let began = tokio::time::Instant::now();
        let answer = self.database.change(&self.apply, &parameters).await;
        if answer.is_ok() {
            crate::timing::committed(began.elapsed());
        }
        if answer.is_err() && waiting {
            self.waits.keep_doubt();
        }
        answer
    }

    /// Passes the outcomes on. `skip` is how many of the first ones are the writer's own.
    fn answer(&mut self, rows: &[Row], skip: usize, items: Vec<Item>) {
        let mut items = items.into_iter();
        let (mut at, mut revision) = (UnixMillis::default(), Revision::ZERO);
        for row in rows {
            let Ok(answer) = read(row) else { continue };
            match answer {
                Answer::Clock(now, newest) => (at, revision) = (now, newest),
                Answer::Ended(ticket, body) => {
                    let verdict = Verdict::Json(body);
                    let decided = Decided {
                        at,
                        revision,
                        verdict,
                    };
                    self.chores.extend(self.waits.answer(ticket, decided));
                }
                Answer::Waits(place, ticket) if place >= skip => {
                    if let Some(item) = items.next() {
                        let wait_ms = item.task.wait_ms().unwrap_or_default();
                        self.waits.join(ticket, wait_ms, item.reply);
                    }
                }
                Answer::Outcome(place, verdict) if place >= skip => {
                    if let Some(item) = items.next() {
                        let decided = Decided {
                            at,
                            revision,
                            verdict,
                        };
                        self.reply(item, decided);
                    }
                }
                Answer::Waits(..) | Answer::Outcome(..) => {}
            }
        }
        fail(&row::damaged("too few outcomes"), items);
        self.feed.reached(revision);
    }

    fn reply(&mut self, item: Item, decided: Decided) {
        let may_wait = item.task.wait_ms().is_some();
        if let Err(Ok(unheard)) = item.reply.send(Ok(decided))
            && may_wait
        {
            // A waiter that went away never receives a grant (L6).
            self.chores.extend(give_back(&unheard));
        }
    }
}

/// One row of what `functions/apply.sql` answers.
enum Answer {
    /// The time of the batch and the revision after it.
    Clock(UnixMillis, Revision),
    /// The wait with this ticket is over.
    Ended(u64, String),
    /// The command at this place waits, under this ticket.
    Waits(usize, u64),
    /// The outcome of the command at this place.
    Outcome(usize, Verdict),
}

fn read(row: &Row) -> Result<Answer, Error> {
    let number = || row::count(row, 1);
    let body: Option<String> = row::get(row, 2)?;
    let missing = || row::damaged("an outcome without a text");
    Ok(match row::get::<i32>(row, 0)? {
        -1 => Answer::Clock(
            UnixMillis::new(number()?),
            revision(&body.ok_or_else(missing)?)?,
        ),
        -2 => Answer::Ended(number()?, body.ok_or_else(missing)?),
        place => {
            let place = usize::try_from(place).map_err(row::damaged)?;
            match (row::get::<Option<i64>>(row, 1)?, body) {
                (None, Some(body)) => Answer::Outcome(place, Verdict::Json(body)),
                (Some(_), Some(body)) => {
                    let grant = Grant {
                        token: Token::new(number()?).map_err(row::damaged)?,
                        revision: revision(&body)?,
                    };
                    Answer::Outcome(place, Verdict::Grant(grant))
                }
                (Some(_), None) => Answer::Waits(place, number()?),
                (None, None) => return Err(missing()),
            }
        }
    })
}

fn revision(text: &str) -> Result<Revision, Error> {
    text.parse().map(Revision::new).map_err(row::damaged)
}

fn fail(error: &Error, items: impl IntoIterator<Item = Item>) {
    for item in items {
        let _ = item.reply.send(Err(error.clone()));
    }
}
