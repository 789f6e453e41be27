//! An authority whose decisions are made by PostgreSQL itself, so that any number of replicas share
//! one truth and none is special.
//!
//! * `migrations/` holds the tables, `functions/` the functions that decide: one file per verb. Their
//!   outcomes are the kernel's.
//! * [`writer`] sends what is queued as one statement, which decides the [`usual`] part of it at once;
//!   [`renew`] keeps many leases with one more.
//! * [`read`] and [`watch`] look; [`listen`] hears of other replicas; [`duty`] expires, forgets and seals.

mod check;
mod connect;
mod duty;
mod error;
mod export;
mod feed;
mod import;
mod listen;
mod migrate;
mod options;
mod read;
mod renew;
mod row;
mod seals;
mod usual;
mod waits;
mod watch;
mod writer;

use std::sync::Arc;

use lease::{
    Acquire, Acquired, Answer, Authority, Capabilities, Committed, Departure, Error, EventPage,
    EventQuery, HandoffState, HandoffStep, Invalid, Key, Lease, LeaseId, LeaseQuery, LeaseRef,
    Page, Record, RecordQuery, Renew, Renewals, Renewed, Revision, Revoke, Token, Transaction,
    UnixMillis, Verdict, Watch, Watching, engine::RenewalEvents, history::SealPage,
};
use tokio_util::sync::CancellationToken;

use connect::{Database, Tls};
use duty::Duty;
use feed::Feed;
use listen::Hearers;
use read::Reader;
use renew::Renewer;
use seals::Sealer;
use watch::Watched;
use writer::{Decided, Signals, Writer};

use crate::live;

pub(crate) use export::{Site, bolt_in};
pub use options::{Options, Unsafe, UrlError};

/// How many connections decide: one for the queue, the rest for renewals.
const DECIDING: usize = 4;

/// The authority on PostgreSQL.
///
/// Dropping it closes it; its duties are then given back, so that another replica takes them at once.
pub struct Postgres {
    writer: Writer,
    renewer: Renewer,
    reader: Reader,
    feed: Arc<Feed>,
    dangers: Vec<Unsafe>,
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
        let writer = Writer::start(
            deciding.clone(),
            replica.clone(),
            renewals,
            feed.clone(),
            signals.clone(),
            options.statement_timeout,
        );
        let closed = CancellationToken::new();
        let timer = Arc::default();
        if options.duties {
            let database = reader.database.clone();
            let sealer = Sealer::new(reader.clone());
            let timer = Arc::clone(&timer);
            let duty = Duty::new(writer.clone(), sealer, database, &options, &replica, timer)?;
            tokio::spawn(duty.run(closed.clone()));
        }
        let hearers = Hearers {
            answered: signals.answered,
            feed: feed.clone(),
            timer,
        };
        let events = options.renewals;
        #[cfg(feature = "conformance")]
        let flip = options.flip.clone();
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
            closed,
        })
    }

    /// One round of what the replica with the leadership does about time: what lapsed expires, and waits
    /// that are over end. For tests that are their own timer.
    #[cfg(feature = "conformance")]
    pub async fn tick(&self) -> Result<(), Error> {
        duty::tick(&self.writer).await.map(drop)
    }

    fn acquired(&self, decided: &Decided) -> Result<Acquired, Error> {
        let acquired: Acquired = decided.outcome()?;
        if let Acquired::Granted { leases, .. } = &acquired {
            self.tell_renewed(leases, decided);
        }
        Ok(acquired)
    }

    /// Tells watchers here that an acquire or a handoff kept what its holder had already.
    fn tell_renewed<'a>(&self, leases: impl IntoIterator<Item = &'a Lease>, decided: &Decided) {
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

fn check_acquire(request: &Acquire) -> Result<(), Invalid> {
    request.validate()?;
    check_text("force", request.force.as_deref())
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
        }
    }

    fn now(&self) -> Answer<'_, UnixMillis> {
        Box::pin(self.reader.now())
    }

    fn acquire(&self, request: Acquire) -> Answer<'_, Acquired> {
        Box::pin(async move {
            check_acquire(&request)?;
            let keys = request.want.keys().len();
            let may_wait = request.wait_ms > 0;
            if let Some(key) = usual::key_of(&request) {
                let name = "acquire";
                let decided = self.writer.decide_usual(name, &request, key).await?;
                if let Some(lease) = usual::granted(&request, key, &decided)? {
                    return Ok(Acquired::Granted {
                        leases: vec![lease],
                        fresh: true,
                    });
                }
                return self.acquired(&decided);
            }
            let decided = self
                .writer
                .decide("acquire", &request, keys, may_wait)
                .await?;
            self.acquired(&decided)
        })
    }

    fn renew(&self, request: Renew) -> Answer<'_, Vec<Renewed>> {
        Box::pin(async move {
            request.validate()?;
            if let Renewals::These(renewals) = &request.leases {
                for renewal in renewals {
                    check_text("stats", renewal.stats.as_deref())?;
                }
            }
            self.renewer.renew(request).await
        })
    }

    fn release(&self, lease: LeaseRef) -> Answer<'_, bool> {
        Box::pin(async move {
            self.writer
                .decide_usual("release", &lease, &lease.key)
                .await?
                .outcome()
        })
    }

    fn revoke(&self, request: Revoke) -> Answer<'_, Option<Lease>> {
        Box::pin(async move {
            request.validate()?;
            check_text("reason", Some(&request.reason))?;
            self.writer
                .decide("revoke", &request, 1, false)
                .await?
                .outcome()
        })
    }

    fn depart(&self, departure: Departure) -> Answer<'_, Vec<Lease>> {
        Box::pin(async move {
            // How much it releases is not known, so it goes alone.
            let keys = usize::MAX / 2;
            self.writer
                .decide("depart", &departure, keys, false)
                .await?
                .outcome()
        })
    }

    fn handoff(&self, step: HandoffStep) -> Answer<'_, HandoffState> {
        Box::pin(async move {
            step.validate()?;
            let decided = self.writer.decide("handoff", &step, 1, false).await?;
            let state: HandoffState = decided.outcome()?;
            if let HandoffState::Moved(lease) = &state {
                self.tell_renewed([lease.as_ref()], &decided);
            }
            Ok(state)
        })
    }

    fn commit(&self, transaction: Transaction) -> Answer<'_, Committed> {
        Box::pin(async move {
            transaction.validate()?;
            for write in &transaction.writes {
                check_text("value", write.value.as_deref())?;
                check_text("note", write.note.as_deref())?;
            }
            let mut keys = transaction.writes.len() + transaction.release.len() + 1;
            if let Some(acquire) = &transaction.acquire {
                check_acquire(acquire)?;
                keys += acquire.want.keys().len();
            }
            let decided = self
                .writer
                .decide("commit", &transaction, keys, false)
                .await?;
            let committed: Committed = decided.outcome()?;
            if let Committed::Done { leases, .. } = &committed {
                self.tell_renewed(leases, &decided);
            }
            Ok(committed)
        })
    }

    fn lease(&self, key: Key) -> Answer<'_, Option<Lease>> {
        Box::pin(async move { self.reader.lease(&key).await })
    }

    fn lease_by_id(&self, id: LeaseId) -> Answer<'_, Option<Lease>> {
        Box::pin(self.reader.lease_by_id(id))
    }

    fn leases(&self, query: LeaseQuery) -> Answer<'_, Page<Lease>> {
        Box::pin(async move { self.reader.leases(&query).await })
    }

    fn check(&self, tokens: Vec<(Key, Token)>) -> Answer<'_, Vec<Verdict>> {
        Box::pin(async move { self.reader.check(&tokens).await })
    }

    fn record(&self, key: Key) -> Answer<'_, Option<Record>> {
        Box::pin(async move { self.reader.record(&key).await })
    }

    fn records(&self, query: RecordQuery) -> Answer<'_, Page<Record>> {
        Box::pin(async move { self.reader.records(&query).await })
    }

    fn events(&self, query: EventQuery) -> Answer<'_, EventPage> {
        Box::pin(async move { self.reader.events(&query).await })
    }

    fn seals(&self, after: Revision, limit: usize) -> Answer<'_, SealPage> {
        Box::pin(self.reader.seals(after, limit))
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
            self.writer.decide("wake", &true, 1, false).await?;
            Ok(watch)
        })
    }
}
