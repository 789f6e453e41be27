//! An authority whose decisions are made by PostgreSQL itself, so that any number of replicas share
//! one truth and none is special.
//!
//! * `migrations/` holds the tables, `functions/` the functions that decide: one file per verb. Their
//!   outcomes are the kernel's. Each version of the set has names of its own ([`functions`]).
//! * [`writer`] sends what is queued as one statement, which decides the [`fast_path`] part of it together;
//!   [`renew`] keeps many leases with one more.
//! * [`read`] and [`watch`] look; [`listen`] hears of other replicas; [`expiry`] expires, forgets and seals.

mod check;
mod connect;
mod error;
mod expiry;
mod export;
mod fast_path;
mod feed;
mod functions;
mod import;
mod listen;
mod migrate;
mod options;
mod read;
mod renew;
mod row;
mod seals;
mod task;
mod waits;
mod watch;
mod writer;

use std::sync::Arc;

use lease::{
    Acquire, Acquired, Answer, Authority, Capabilities, Command, Committed, Error, HandoffState,
    HandoffStep, Invalid, Kept, Lease, Note, Outcome, Query, Renew, Renewals, Transaction, View,
    Watch, Watching, answered, engine::RenewalEvents,
};
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use connect::{Database, Tls};
use expiry::Expiry;
use feed::Feed;
use functions::FunctionSet;
use listen::Hearers;
use read::Reader;
use renew::Renewer;
use seals::Sealer;
use task::Task;
use watch::Watched;
use writer::{Decided, Signals, Writer};

use crate::{leading::Leading, live};

pub(crate) use export::{Endpoint, maintenance_in};
pub use options::{Options, Unsafe, UrlError};

/// How many connections decide: one for the queue, the rest for renewals.
const DECIDING: usize = 4;

/// The authority on PostgreSQL.
///
/// Dropping it closes it too; [`Postgres::close`] also waits until its leadership is given up, so that another
/// replica takes it immediately.
pub struct Postgres {
    writer: Writer,
    renewer: Renewer,
    reader: Reader,
    feed: Arc<Feed>,
    dangers: Vec<Unsafe>,
    /// Whether this replica expires and seals for all of them.
    leading: Arc<Leading>,
    #[cfg(feature = "conformance")]
    functions: Arc<functions::Keeper>,
    closed: CancellationToken,
}

impl Postgres {
    /// Connects, refuses what is unsafe, brings the schema up to date and starts to work.
    pub async fn open(options: Options) -> Result<Self, Error> {
        let tls = Tls::of(&options)?;
        let (mut client, _hears) = connect::direct(&options, &tls).await?;
        let dangers = check::check(&client, &options, &tls).await?;
        let steps = migrate::migrate(&mut client, &options).await?;
        tracing::info!(store = options.describe(), steps, "PostgreSQL is ready");
        for danger in &dangers {
            tracing::warn!(
                "{} (accepted by the configuration)",
                check::sentence(*danger)
            );
        }
        let deciding = Database::deciding(&options, &tls, options.connections.clamp(2, DECIDING))?;
        let reader = Reader {
            database: Database::new(&options, &tls, options.connections)?,
        };
        let replica = uuid::Uuid::new_v4().simple().to_string();
        let feed = Arc::new(Feed::new());
        let signals = Signals::default();
        let renewals = match options.renewals {
            RenewalEvents::Kept => "kept",
            RenewalEvents::Live | RenewalEvents::Off => "live",
        };
        let functions = FunctionSet::of(&options);
        let writer = Writer::start(
            deciding.clone(),
            replica.clone(),
            &functions,
            renewals,
            feed.clone(),
            signals.clone(),
            &options,
        );
        let closed = CancellationToken::new();
        let timer = Arc::default();
        let leading = Arc::new(Leading::new(closed.clone()));
        if options.housekeeping {
            let database = reader.database.clone();
            let sealer = Sealer::new(reader.clone());
            let timer = Arc::clone(&timer);
            let expiry = Expiry::new(writer.clone(), sealer, database, &options, &replica, timer)?;
            let work = expiry.run(leading.clone(), closed.clone());
            leading.start(&Handle::current(), work);
        }
        let hearers = Hearers {
            answered: signals.answered,
            feed: feed.clone(),
            timer,
        };
        let events = options.renewals;
        #[cfg(feature = "conformance")]
        let flip = options.flip.clone();
        let functions = Arc::new(functions::Keeper {
            functions,
            database: reader.database.clone(),
            options: options.clone(),
            tls: tls.clone(),
        });
        tokio::spawn(Arc::clone(&functions).run(closed.clone()));
        tokio::spawn(listen::run(options, tls, hearers, closed.clone()));
        Ok(Self {
            renewer: Renewer {
                database: deciding,
                writer: writer.clone(),
                feed: feed.clone(),
                events,
                #[cfg(feature = "conformance")]
                flip,
            },
            writer,
            reader,
            feed,
            dangers,
            leading,
            #[cfg(feature = "conformance")]
            functions,
            closed,
        })
    }

    /// One round of what the replica with the leadership does about time: what lapsed expires, and waits
    /// that are over end. For tests that are their own timer.
    #[cfg(feature = "conformance")]
    pub async fn tick(&self) -> Result<(), Error> {
        expiry::tick(&self.writer).await.map(drop)
    }

    /// Stops, and gives its leadership up: another replica takes it immediately.
    pub async fn close(&self) {
        self.leading.resign().await;
    }

    /// Records that this server uses its functions, as it does every minute.
    #[cfg(feature = "conformance")]
    pub async fn keep_functions(&self) -> Result<(), Error> {
        self.functions.keep().await
    }

    async fn acquire_keys(&self, request: Acquire) -> Result<Acquired, Error> {
        let decided = self
            .writer
            .decide(Command::Acquire(request.clone()))
            .await?;
        let acquired = decided.acquired(&request)?;
        if let Acquired::Granted { leases, .. } = &acquired {
            self.notify_renewed(leases, &decided);
        }
        Ok(acquired)
    }

    async fn step_handoff(&self, step: HandoffStep) -> Result<HandoffState, Error> {
        let decided = self.writer.decide(Command::Handoff(step)).await?;
        let state = decided.outcome()?;
        if let HandoffState::Moved(lease) = &state {
            self.notify_renewed([lease.as_ref()], &decided);
        }
        Ok(state)
    }

    async fn commit_changes(&self, changes: Transaction) -> Result<Committed, Error> {
        let decided = self.writer.decide(Command::Commit(changes)).await?;
        let committed = decided.outcome()?;
        if let Committed::Done { leases, .. } = &committed {
            self.notify_renewed(leases, &decided);
        }
        Ok(committed)
    }

    /// A command without anything more to it.
    async fn decided<T: DeserializeOwned>(&self, command: Command) -> Result<T, Error> {
        self.writer.decide(command).await?.outcome()
    }

    /// Notifies watchers here that an acquire or a handoff kept what its holder had already.
    fn notify_renewed<'a>(&self, leases: impl IntoIterator<Item = &'a Lease>, decided: &Decided) {
        if self.renewer.events == RenewalEvents::Live {
            let kept = leases
                .into_iter()
                .filter(|lease| lease.renewed_at == Some(decided.at));
            self.feed.renewed(kept, decided.at, decided.revision);
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

/// PostgreSQL cannot hold the character NUL in a text.
fn check_text(field: &'static str, text: Option<&str>) -> Result<(), Invalid> {
    if text.is_some_and(|text| text.contains('\0')) {
        return Err(Invalid::new(field, "text without the character NUL"));
    }
    Ok(())
}

/// Checks a command, and what only this store cannot hold.
fn check_command(command: &Command) -> Result<(), Invalid> {
    command.validate()?;
    let acquire = match command {
        Command::Acquire(request) => Some(request),
        Command::Commit(changes) => {
            for write in &changes.writes {
                check_text("value", write.value.as_deref())?;
                if let Some(Note::Words(words)) = &write.note {
                    check_text("note", Some(words))?;
                }
            }
            changes.acquire.as_ref()
        }
        Command::Renew(request) => {
            if let Renewals::These(renewals) = &request.leases {
                for renewal in renewals {
                    check_text("stats", renewal.stats.as_deref())?;
                }
            }
            None
        }
        Command::Revoke(request) => {
            check_text("reason", Some(&request.reason))?;
            None
        }
        Command::Keep(_) | Command::Release(_) | Command::Depart(_) | Command::Handoff(_) => None,
    };
    acquire.map_or(Ok(()), |acquire| {
        check_text("force", acquire.force.as_deref())
    })
}

impl Authority for Postgres {
    fn capabilities(&self) -> Capabilities {
        let mut caveats = vec![
            "time runs on while the database is down: leases may lapse meanwhile (L14)".to_owned(),
            "a renewal that is not kept in the history is streamed only by the replica that made it"
                .to_owned(),
        ];
        caveats.extend(
            self.dangers
                .iter()
                .map(|it| check::sentence(*it).to_owned()),
        );
        let loses = |it: &Unsafe| matches!(it, Unsafe::FsyncOff | Unsafe::SynchronousCommitOff);
        Capabilities {
            store: "postgres".to_owned(),
            durable: !self.dangers.iter().any(loses),
            time_stops: false,
            shared: true,
            renewals_streamed: self.renewer.events == RenewalEvents::Kept,
            caveats,
            degraded: false,
            leads_expiry: self.leading.leads(),
        }
    }

    fn decide(&self, command: Command) -> Answer<'_, Outcome> {
        if let Err(invalid) = check_command(&command) {
            return Box::pin(std::future::ready(Err(invalid.into())));
        }
        match command {
            Command::Acquire(request) => answered(self.acquire_keys(request), Outcome::Acquired),
            Command::Renew(request) => answered(self.renewer.renew(request), Outcome::Renewed),
            Command::Keep(holder) => answered(
                async move {
                    let leases = Renewals::All;
                    let answers = self.renewer.renew(Renew { holder, leases }).await?;
                    Ok(Kept::from(answers))
                },
                Outcome::Kept,
            ),
            Command::Release(_) => answered(self.decided(command), Outcome::Released),
            Command::Revoke(_) => answered(self.decided(command), Outcome::Revoked),
            Command::Depart(_) => answered(self.decided(command), Outcome::Departed),
            Command::Handoff(step) => answered(self.step_handoff(step), Outcome::Handoff),
            Command::Commit(changes) => answered(self.commit_changes(changes), Outcome::Committed),
        }
    }

    fn look(&self, query: Query) -> Answer<'_, View> {
        let reader = &self.reader;
        match query {
            Query::Now(()) => answered(reader.now(), View::Now),
            Query::Lease(key) => answered(async move { reader.lease(&key).await }, View::Lease),
            Query::LeaseById(id) => answered(reader.lease_by_id(id), View::LeaseById),
            Query::Leases(query) => {
                answered(async move { reader.leases(&query).await }, View::Leases)
            }
            Query::Check(tokens) => {
                answered(async move { reader.check(&tokens).await }, View::Checked)
            }
            Query::Record(key) => answered(async move { reader.record(&key).await }, View::Record),
            Query::Records(query) => {
                answered(async move { reader.records(&query).await }, View::Records)
            }
            Query::Events(query) => {
                answered(async move { reader.events(&query).await }, View::Events)
            }
            Query::Seals((after, limit)) => answered(reader.seals(after, limit), View::Seals),
        }
    }

    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        Box::pin(async move {
            let watched = Watched {
                reader: self.reader.clone(),
                feed: self.feed.clone(),
                closed: self.closed.clone(),
            };
            let watch = live::watch(watched, watching).await?;
            // Lets the database know immediately that somebody wants to hear of events.
            self.writer.decide(Task::Wake).await?;
            Ok(watch)
        })
    }
}
