//! From the history to the broker, in order, each event confirmed before the cursor moves on.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use lapin::{BasicProperties, options::BasicPublishOptions};
use lease::{
    Acquire, Acquired, Authority, Cause, Committed, Error, Event, EventQuery, Expect, Holder, Key,
    Lease, Renew, Renewal, Renewals, Revision, Transaction, Ttl, Watch, Write,
};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};

use super::{BROKER_TIMEOUT, EXCHANGE, Link, PAUSE, reach, routing};

/// How long the duty stays with a replica that is silent.
const DUTY_TTL: Duration = Duration::from_secs(10);
/// How many events are on their way to the broker at once: the bound on what is kept in memory and on
/// what is sent twice after a crash.
const BATCH: usize = 256;
/// How often the history is looked at when nothing is heard.
const IDLE: Duration = Duration::from_secs(1);
/// The kind of the cursor's record. Its own changes are not published: each would move it again.
const OUTBOX: &str = "outbox";
/// AMQP's word for "keep it on disk".
const PERSISTENT: u8 = 2;

/// Why a round of publishing ended.
#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error("the store: {0}")]
    Store(#[from] Error),
    #[error("the broker: {0}")]
    Broker(#[from] lapin::Error),
    #[error("the broker did not confirm")]
    Unconfirmed,
    #[error("another replica publishes")]
    NotMine,
    #[error("{0}")]
    Invalid(#[from] lease::Invalid),
}

/// How far the broker has confirmed.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Cursor {
    after: Revision,
}

/// Publishes for ever: whatever fails is begun again from the last confirmed event.
pub(super) async fn run(authority: Arc<dyn Authority>, url: Arc<SecretString>) {
    // New for every start: a crashed predecessor's duty must lapse before it is taken over.
    let incarnation = uuid::Uuid::new_v4().simple().to_string();
    let mut pause = PAUSE.0;
    loop {
        let link = reach(&url).await;
        match round(&*authority, &link, &incarnation).await {
            Ok(never) => match never {},
            Err(Stop::NotMine) => {
                pause = PAUSE.0;
                sleep(IDLE).await;
            }
            Err(stop) => {
                tracing::warn!(%stop, "publishing begins again");
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }
}

async fn round(
    authority: &dyn Authority,
    link: &Link,
    incarnation: &str,
) -> Result<std::convert::Infallible, Stop> {
    let mut duty = Duty::take(authority, incarnation).await?;
    let mut watch = authority.watch(None).await?;
    let (mut cursor, mut stored) = load(authority).await?;
    tracing::info!(after = %cursor.after, "publishing events");
    loop {
        duty.keep(authority).await?;
        let query = EventQuery {
            after: cursor.after,
            limit: BATCH,
            ..EventQuery::default()
        };
        let page = authority.events(query).await?;
        if cursor.after.next() < page.oldest && page.oldest <= page.newest {
            tracing::error!(
                from = %cursor.after, to = %page.oldest,
                "events left the history before they were published"
            );
        }
        let Some(last) = page.events.last().map(|event| event.revision) else {
            heard(authority, &mut watch).await?;
            continue;
        };
        let own = |event: &&Event| event.key.kind() != OUTBOX;
        let events: Vec<&Event> = page.events.iter().filter(own).collect();
        cursor.after = last;
        if events.is_empty() {
            // Nothing but the cursor's own changes: not worth another one.
            if !page.more {
                heard(authority, &mut watch).await?;
            }
            continue;
        }
        publish(link, &events).await?;
        stored = Some(save(authority, cursor, stored).await?);
    }
}

/// Waits until something happened, or for a moment.
async fn heard(authority: &dyn Authority, watch: &mut Watch) -> Result<(), Stop> {
    match timeout(IDLE, watch.next()).await {
        Ok(Some(Ok(_))) | Err(_) => {}
        // A watcher that fell behind starts anew; the history has what it missed.
        Ok(Some(Err(_)) | None) => *watch = authority.watch(None).await?,
    }
    Ok(())
}

/// Sends in order and waits until the broker has all of it on disk.
async fn publish(link: &Link, events: &[&Event]) -> Result<(), Stop> {
    let mut confirms = Vec::with_capacity(events.len());
    for event in events {
        let told = leasehold_api::Event::from(*event);
        let Ok(body) = serde_json::to_vec(&told) else {
            continue;
        };
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(PERSISTENT)
            .with_message_id(told.event_id.into())
            .with_type(told.event_type.into())
            .with_timestamp(event.at.get() / 1000);
        let confirm = timeout(
            BROKER_TIMEOUT,
            link.channel.basic_publish(
                EXCHANGE.into(),
                routing::of_event(event).into(),
                BasicPublishOptions::default(),
                &body,
                properties,
            ),
        );
        confirms.push(confirm.await.map_err(|_| Stop::Unconfirmed)??);
    }
    for confirm in confirms {
        let confirmation = timeout(BROKER_TIMEOUT, confirm)
            .await
            .map_err(|_| Stop::Unconfirmed)??;
        if !confirmation.is_ack() {
            return Err(Stop::Unconfirmed);
        }
    }
    Ok(())
}

fn cursor_key() -> Result<Key, Stop> {
    Ok(Key::new(OUTBOX, "cursor")?)
}

async fn load(authority: &dyn Authority) -> Result<(Cursor, Option<Revision>), Stop> {
    let Some(record) = authority.record(cursor_key()?).await? else {
        return Ok((Cursor::default(), None));
    };
    let cursor = serde_json::from_str(&record.value).unwrap_or_else(|error| {
        // Everything once more is safe: consumers know what they have.
        tracing::error!(%error, "the cursor cannot be read; publishing from the beginning");
        Cursor::default()
    });
    Ok((cursor, Some(record.revision)))
}

/// Moves the cursor, unless somebody else did: then the duty is theirs.
async fn save(
    authority: &dyn Authority,
    cursor: Cursor,
    stored: Option<Revision>,
) -> Result<Revision, Stop> {
    let key = cursor_key()?;
    let value = serde_json::json!(cursor).to_string();
    let transaction = Transaction {
        expect: vec![Expect {
            key: key.clone(),
            revision: stored,
        }],
        writes: vec![Write {
            key,
            value: Some(value.into()),
            note: None,
        }],
        ..Transaction::default()
    };
    match authority.commit(transaction).await? {
        Committed::Done { .. } => {}
        Committed::Conflict { .. } | Committed::Refused(_) => return Err(Stop::NotMine),
    }
    // Other changes may have come between: only the record itself knows its revision.
    match load(authority).await? {
        (found, Some(revision)) if found.after == cursor.after => Ok(revision),
        _ => Err(Stop::NotMine),
    }
}

/// The right to publish.
struct Duty {
    lease: Lease,
    kept: Instant,
}

impl Duty {
    async fn take(authority: &dyn Authority, incarnation: &str) -> Result<Self, Stop> {
        let millis = u64::try_from(DUTY_TTL.as_millis()).unwrap_or(u64::MAX);
        let key = Key::new("duty", OUTBOX)?;
        let holder = Holder::new(OUTBOX, incarnation)?;
        let asked = Acquire::one(key, holder, Ttl::from_millis(millis)?);
        // Only measures when the next renewal is due; the authority's clock decides who has it.
        let kept = Instant::now();
        match authority.acquire(asked).await? {
            Acquired::Granted { leases, .. } => leases
                .into_iter()
                .next()
                .map(|lease| Self { lease, kept })
                .ok_or(Stop::NotMine),
            Acquired::Refused(refusal) => {
                if !matches!(refusal.cause, Cause::Held { .. }) {
                    tracing::warn!(?refusal, "the duty to publish was refused");
                }
                Err(Stop::NotMine)
            }
        }
    }

    /// Renews it in good time.
    async fn keep(&mut self, authority: &dyn Authority) -> Result<(), Stop> {
        if self.kept.elapsed() < DUTY_TTL / 3 {
            return Ok(());
        }
        let sent = Instant::now();
        let renew = Renew {
            holder: self.lease.holder.clone(),
            leases: Renewals::These(vec![Renewal::of(&self.lease)]),
        };
        match authority.renew(renew).await?.pop().map(|it| it.outcome) {
            Some(Ok(lease)) => {
                self.lease = lease;
                self.kept = sent;
                Ok(())
            }
            Some(Err(_)) | None => Err(Stop::NotMine),
        }
    }
}
