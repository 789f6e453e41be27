//! The one who asks the database to decide. Whatever is queued goes out as one statement, which
//! commits once (group commit) and needs no second round trip.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lease::{Error, Key, Revision, UnixMillis};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::{Instant, sleep_until},
};
use tokio_postgres::Row;

use super::{
    connect::Database,
    feed::Feed,
    row,
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

const APPLY: &str =
    "SELECT item, number, body FROM lh_apply($1, $2, $3, $4, $5::text::jsonb, $6, $7)";

/// What the database decided about one command.
#[derive(Debug)]
pub(super) struct Decided {
    /// When.
    pub at: UnixMillis,
    /// The revision after the batch.
    pub revision: Revision,
    /// The outcome as JSON.
    pub body: String,
}

impl Decided {
    /// The outcome.
    pub fn outcome<T: DeserializeOwned>(&self) -> Result<T, Error> {
        row::json(&self.body)
    }
}

pub(super) type Reply = oneshot::Sender<Result<Decided, Error>>;

struct Item {
    command: String,
    /// How many keys it is about.
    keys: usize,
    /// Whether it may become a wait.
    may_wait: bool,
    /// The key of a command that is likely to be as usual.
    usual: Option<Key>,
    reply: Reply,
}

/// What the writer is told besides commands.
#[derive(Clone, Default)]
pub(super) struct Signals {
    /// A caller stopped waiting.
    pub left: Arc<Notify>,
    /// Answers that were sent to a caller that went away before it took them.
    unheard: Arc<Mutex<Vec<String>>>,
    /// Another replica answered a wait of this one.
    pub answered: Arc<Notify>,
}

impl Signals {
    /// Every critical section leaves a whole value behind.
    fn unheard(&self) -> MutexGuard<'_, Vec<String>> {
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

/// Tells the writer when a caller goes away.
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
                self.signals.unheard().push(decided.body);
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
        renewals: &'static str,
        feed: Arc<Feed>,
        signals: Signals,
        limit: Duration,
    ) -> Self {
        let (queue, queued) = mpsc::channel(QUEUE);
        let actor = Actor {
            database,
            waits: Waits::new(replica.clone(), limit),
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
            limit,
        }
    }

    /// Has one command decided. `keys` is how many keys it is about.
    pub async fn decide(
        &self,
        name: &'static str,
        command: &impl Serialize,
        keys: usize,
        may_wait: bool,
    ) -> Result<Decided, Error> {
        self.ask(name, command, keys, may_wait, None).await
    }

    /// Has an acquire or a release decided that is likely to be as usual.
    pub async fn decide_usual(
        &self,
        name: &'static str,
        command: &impl Serialize,
        key: &Key,
    ) -> Result<Decided, Error> {
        self.ask(name, command, 1, false, Some(key.clone())).await
    }

    async fn ask(
        &self,
        name: &'static str,
        command: &impl Serialize,
        keys: usize,
        may_wait: bool,
        usual: Option<Key>,
    ) -> Result<Decided, Error> {
        let body =
            serde_json::to_string(command).map_err(|error| Error::Broken(error.to_string()))?;
        let (reply, answer) = oneshot::channel();
        let item = Item {
            command: format!(r#"{{"{name}":{body}}}"#),
            keys,
            may_wait,
            usual,
            reply,
        };
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
    replica: String,
    renewals: &'static str,
    feed: Arc<Feed>,
    signals: Signals,
    queued: mpsc::Receiver<Item>,
    waits: Waits,
    /// Commands of the writer's own: gone waiters, and grants that nobody took.
    chores: Vec<String>,
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
                () = sleep_until(until), if self.waits.is_busy() => {}
            }
            self.chores.extend(self.waits.gone());
            let unheard = std::mem::take(&mut *self.signals.unheard());
            self.chores
                .extend(unheard.iter().flat_map(|body| give_back(body)));
            if self.waits.is_busy() && Instant::now() >= until {
                self.chores.push(r#"{"wake":true}"#.to_owned());
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
        let mut keys = first.keys;
        items.push(first);
        while items.len() < BATCH && keys < BATCH_KEYS {
            let Ok(item) = self.queued.try_recv() else {
                break;
            };
            keys += item.keys;
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
        let commands: Vec<&str> = chores
            .iter()
            .map(String::as_str)
            .chain(items.iter().map(|item| item.command.as_str()))
            .collect();
        let may_wait = items.iter().any(|item| item.may_wait);
        let usual = Usual::of(&items, chores.len());
        match self.apply(&commands, may_wait, &usual).await {
            Ok(rows) => self.answer(&rows, chores.len(), items),
            Err(Error::Broken(_)) if commands.len() > 1 => {
                // One of them is at fault, and nothing happened: each for itself.
                for item in items {
                    let usual = Usual::default();
                    let alone = self.apply(&[&item.command], item.may_wait, &usual).await;
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
                    self.chores.retain(|chore| !chore.starts_with(r#"{"wake""#));
                }
                fail(&error, items);
            }
        }
    }

    async fn apply(
        &mut self,
        commands: &[&str],
        may_wait: bool,
        usual: &Usual,
    ) -> Result<Vec<Row>, Error> {
        let waiting = may_wait || self.waits.is_busy();
        let watching = self.feed.is_watched();
        let batch = format!("[{}]", commands.join(","));
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 7] = [
            &self.replica,
            &waiting,
            &watching,
            &self.renewals,
            &batch,
            &usual.acquires,
            &usual.releases,
        ];
        let began = tokio::time::Instant::now();
        let answer = self.database.change(APPLY, &parameters).await;
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
            let Ok((item, number, body)) = read(row) else {
                continue;
            };
            if item == -1 {
                at = UnixMillis::new(number);
                revision = Revision::new(body.parse().unwrap_or_default());
                continue;
            }
            let decided = Decided { at, revision, body };
            if item == -2 {
                self.chores.extend(self.waits.answer(number, decided));
            } else if usize::try_from(item).is_ok_and(|item| item >= skip)
                && let Some(item) = items.next()
            {
                self.reply(item, decided);
            }
        }
        fail(&row::damaged("too few outcomes"), items);
        self.feed.reached(revision);
    }

    fn reply(&mut self, item: Item, decided: Decided) {
        if !item.may_wait {
            let _ = item.reply.send(Ok(decided));
        } else if let Some(ticket) = decided.body.strip_prefix(r#"{"waiting":"#) {
            let ticket = ticket.trim_end_matches('}').parse().unwrap_or_default();
            self.waits.join(ticket, &item.command, item.reply);
        } else if let Err(Ok(unheard)) = item.reply.send(Ok(decided)) {
            // A waiter that went away never receives a grant (L6).
            self.chores.extend(give_back(&unheard.body));
        }
    }
}

/// The places of the commands that are decided together, since each is likely to be as usual and is
/// about a key of its own. They were asked for at the same time, so none comes before another.
#[derive(Default)]
struct Usual {
    acquires: Vec<i32>,
    releases: Vec<i32>,
}

impl Usual {
    fn of(items: &[Item], first: usize) -> Self {
        let mut usual = Self::default();
        let mut keys = HashSet::with_capacity(items.len());
        for (place, item) in (first..).zip(items) {
            let Some(key) = &item.usual else { continue };
            let Ok(place) = i32::try_from(place) else {
                break;
            };
            if keys.insert(key) {
                if item.command.starts_with(r#"{"acquire""#) {
                    usual.acquires.push(place);
                } else {
                    usual.releases.push(place);
                }
            }
        }
        usual
    }
}

fn read(row: &Row) -> Result<(i32, u64, String), Error> {
    Ok((row::get(row, 0)?, row::count(row, 1)?, row::get(row, 2)?))
}

fn fail(error: &Error, items: impl IntoIterator<Item = Item>) {
    for item in items {
        let _ = item.reply.send(Err(error.clone()));
    }
}
