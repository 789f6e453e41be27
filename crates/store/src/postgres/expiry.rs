//! The housekeeping: expiring punctually (L12), forgetting, and sealing the history. Whichever replica holds the
//! lease `leadership:expiry` does it, so the store's own background work is owned like everything else. Two
//! replicas doing it simultaneously would do no harm, since the database decides; it would only be waste.

use std::{sync::Arc, time::Duration};

use lease::{Acquire, Acquired, Cause, Command, Error, Holder, Key, Lease, LeaseRef, Refusal, Ttl};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Options,
    connect::Database,
    row,
    seals::Sealer,
    task::Task,
    writer::{Decided, Writer},
};
use crate::leading::{Leading, RESIGN_LIMIT};

/// How long the leadership stays with a replica that fell silent.
const TTL_MS: u64 = 5_000;
/// How often the holder asks for it again, which also keeps it.
const KEEP_INTERVAL: Duration = Duration::from_millis(TTL_MS / 3);
/// How many leases one statement expires: it holds the clock's row all that time.
const EXPIRIES: u32 = 2_000;
/// How often old things are forgotten, and how many in one statement.
const FORGET_INTERVAL: Duration = Duration::from_secs(10);
const FORGOTTEN: u32 = 1_000;
/// How long an event may stay unsealed: until then its change would not show.
const SEAL_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_millis(200);
/// How late the leader may be before another replica expires in its place, and how often that is looked at.
const OVERDUE_MS: i64 = 200;
const OVERDUE_LOOK: Duration = Duration::from_millis(250);

/// When the lease of the oldest key ended that is one too many to remember. Asked outside of any
/// decision, since it looks at all of them.
const SURPLUS: &str = "SELECT CASE WHEN (SELECT count(*) FROM lease_fences) > $1 THEN \
    (SELECT ended_ms FROM lease_fences ORDER BY ended_ms DESC OFFSET $1 LIMIT 1) END";

/// How many milliseconds ago the leader should have looked; negative when it need not yet.
const OVERDUE: &str = "SELECT greatest(at_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) \
    - timer_ms FROM lease_clock";

pub(super) struct Expiry {
    writer: Writer,
    sealer: Sealer,
    database: Database,
    idle_keys: i64,
    request: Acquire,
    timer: Arc<Notify>,
    forget: Forget,
    next_forget: Instant,
    next_seal: Instant,
}

/// What is too old.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Forget {
    most: u32,
    history_ms: u64,
    history_events: u64,
    idle_ms: u64,
    /// Keys whose lease ended no later than this are too many.
    idle_until: Option<i64>,
    from: String,
}

/// Expires what lapsed, and ends waits that are over.
pub(super) async fn tick(writer: &Writer) -> Result<(Decided, Ticked), Error> {
    let decided = writer.decide(Task::Tick(EXPIRIES)).await?;
    let ticked = decided.outcome()?;
    Ok((decided, ticked))
}

#[derive(Deserialize)]
pub(super) struct Ticked {
    expired: u32,
    next: Option<u64>,
}

#[derive(Deserialize)]
struct Forgot {
    events: u32,
    leases: u32,
    from: String,
}

impl Expiry {
    pub fn new(
        writer: Writer,
        sealer: Sealer,
        database: Database,
        options: &Options,
        replica: &str,
        timer: Arc<Notify>,
    ) -> Result<Self, Error> {
        let holder = Holder::new("leasehold", replica)?;
        let request = Acquire::one(
            Key::new("leadership", "expiry")?,
            holder,
            Ttl::from_millis(TTL_MS)?,
        );
        Ok(Self {
            writer,
            sealer,
            database,
            idle_keys: i64::try_from(options.idle_keys).unwrap_or(i64::MAX),
            request,
            timer,
            forget: Forget {
                most: FORGOTTEN,
                history_ms: options.history_ms,
                history_events: options.history_events,
                idle_ms: options.idle_ms,
                idle_until: None,
                from: String::new(),
            },
            next_forget: Instant::now(),
            next_seal: Instant::now(),
        })
    }

    /// Works until the store is closed, then gives the leadership up.
    pub async fn run(mut self, leading: Arc<Leading>, closed: CancellationToken) {
        let mut held = None;
        closed
            .run_until_cancelled(self.work(&mut held, &leading))
            .await;
        if let Some(lease) = held {
            let resigned = self.writer.decide(Task::release(LeaseRef::from(&lease)));
            let _ = timeout(RESIGN_LIMIT, resigned).await;
        }
    }

    async fn work(&mut self, held: &mut Option<Lease>, leading: &Leading) {
        loop {
            let asked = self.ask().await;
            leading.set(matches!(asked, Ok(Ok(_))));
            match asked {
                Ok(Ok(lease)) => {
                    *held = Some(lease);
                    let keep_until = Instant::now() + KEEP_INTERVAL;
                    while Instant::now() < keep_until {
                        if let Err(error) = self.serve(keep_until).await {
                            tracing::debug!(%error, "the leader cannot expire");
                            sleep(PAUSE).await;
                        }
                    }
                }
                Ok(Err(left)) => {
                    *held = None;
                    self.stand_by(left).await;
                }
                Err(error) => {
                    tracing::debug!(%error, "the leadership of expiry cannot be asked for");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// The leadership, or how long to wait before asking again.
    async fn ask(&self) -> Result<Result<Lease, Duration>, Error> {
        let command = Command::Acquire(self.request.clone());
        let decided = self.writer.decide(command).await?;
        Ok(match decided.acquired(&self.request)? {
            Acquired::Granted { mut leases, .. } => leases.pop().ok_or(PAUSE),
            Acquired::Refused(Refusal {
                cause: Cause::Held { left_ms, .. },
                ..
            }) => Err(Duration::from_millis(left_ms.clamp(50, TTL_MS))),
            Acquired::Refused(_) => Err(PAUSE),
        })
    }

    /// Waits for the leader's lease to end. A leader that was killed leaves it behind for its ttl: what lapses
    /// meanwhile is expired by whoever waits (L12), since the database decides and a second one does no harm.
    async fn stand_by(&self, left: Duration) {
        let until = Instant::now() + left;
        while Instant::now() < until {
            match self.overdue_ms().await {
                Ok(late_ms) if late_ms > OVERDUE_MS => {
                    if let Err(error) = tick(&self.writer).await {
                        tracing::debug!(%error, "cannot expire in the leader's place");
                    }
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "cannot see whether the leader expires"),
            }
            sleep(OVERDUE_LOOK.min(until.saturating_duration_since(Instant::now()))).await;
        }
    }

    async fn overdue_ms(&self) -> Result<i64, Error> {
        let rows = self.database.read(OVERDUE, &[]).await?;
        let row = rows.first().ok_or_else(|| row::damaged("no clock"))?;
        row::get(row, 0)
    }

    /// Expires what lapsed, then sleeps until the next lapse, an earlier one, or `until`.
    async fn serve(&mut self, until: Instant) -> Result<(), Error> {
        let (decided, ticked) = tick(&self.writer).await?;
        if ticked.expired >= EXPIRIES {
            return Ok(());
        }
        if Instant::now() >= self.next_forget {
            self.forget().await?;
        }
        if Instant::now() >= self.next_seal {
            let more = self.sealer.round().await.unwrap_or_else(|error| {
                tracing::warn!(%error, "the history cannot be sealed");
                false
            });
            self.next_seal = Instant::now();
            if !more {
                self.next_seal += SEAL_INTERVAL;
            }
        }
        let until = until.min(self.next_seal);
        let left = ticked
            .next
            .map(|next| Duration::from_millis(next.saturating_sub(decided.at.get())));
        let wake = left.map_or(until, |left| (Instant::now() + left).min(until));
        tokio::select! {
            () = tokio::time::sleep_until(wake) => {}
            () = self.timer.notified() => {}
        }
        Ok(())
    }

    /// Forgets a part of what is too old.
    async fn forget(&mut self) -> Result<(), Error> {
        if self.forget.from.is_empty() {
            let rows = self.database.read(SURPLUS, &[&self.idle_keys]).await?;
            self.forget.idle_until = match rows.first() {
                Some(row) => row::get(row, 0)?,
                None => None,
            };
        }
        let decided = self
            .writer
            .decide(Task::Forget(self.forget.clone()))
            .await?;
        let forgot: Forgot = decided.outcome()?;
        let more = forgot.events >= FORGOTTEN || forgot.leases >= FORGOTTEN;
        // A part of the fences at a time, from the first again when the last was seen.
        let more = more || !forgot.from.is_empty();
        self.forget.from = forgot.from;
        self.next_forget = Instant::now();
        if !more {
            self.next_forget += FORGET_INTERVAL;
        }
        Ok(())
    }
}
