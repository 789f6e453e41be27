//! From the history to the broker, in order, each event confirmed before the cursor moves on.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use lease::{
    Authority, Clock, Committed, Error, Event, EventQuery, Expect, Invalid, Key, Revision,
    Transaction, Ttl, Watching, Write,
};
use leasehold_broker::{Broker, Link, Message};
use leasehold_client::{
    Change, Follower, Leadership,
    documents::{self, Edit},
};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{EXCHANGE, Figures, routing};

/// How long the leadership stays with a replica that is silent.
const LEADER_TTL_SECS: u64 = 10;
/// How many events are in flight to the broker: the bound on what is kept in memory and on
/// what is sent twice after a crash.
const BATCH: usize = 256;
/// How often the history is read when no event arrives.
const IDLE: Duration = Duration::from_secs(1);
/// The kind of the cursor's record and of the identity. Their own changes are not published: each would
/// move the cursor again.
const OUTBOX: &str = "outbox";

/// Why a round of publishing ended.
#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error("the store: {0}")]
    Store(#[from] Error),
    #[error("the broker: {0}")]
    Broker(#[from] leasehold_broker::Error),
    #[error("another replica publishes")]
    NotMine,
    #[error("{0}")]
    Invalid(#[from] Invalid),
}

/// What the publishing replica holds.
pub(super) fn leader_key() -> Result<Key, Invalid> {
    Key::new("leadership", OUTBOX)
}

pub(super) fn leader_ttl() -> Result<Ttl, Invalid> {
    Ttl::from_secs(LEADER_TTL_SECS)
}

/// How far the broker has confirmed.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Cursor {
    after: Revision,
}

/// Publishes for ever: whatever fails is begun again from the last confirmed event.
pub(super) async fn run(
    authority: Arc<dyn Authority>,
    clock: Arc<dyn Clock>,
    leadership: &Leadership,
    broker: &Broker,
    figures: &Figures,
) {
    let mut backoff = leasehold_broker::backoff();
    loop {
        // The broker first: who cannot reach it leaves the leadership to others.
        figures.connected.set(0);
        let link = broker.reach(&[EXCHANGE], &*clock).await;
        figures.connected.set(1);
        let term = match leadership.elected().await {
            Ok(term) => term,
            Err(error) => {
                tracing::warn!(%error, "this replica may not publish");
                backoff.pause(&*clock).await;
                continue;
            }
        };
        figures.leads.store(true, Ordering::Relaxed);
        let stop = tokio::select! {
            _ = term.lost() => Stop::NotMine,
            Err(stop) = round(&authority, &clock, &link, figures) => stop,
        };
        drop(term);
        figures.leads.store(false, Ordering::Relaxed);
        // Another replica publishes now, or nobody.
        figures.lag.set(0);
        match stop {
            Stop::NotMine => backoff.reset(),
            stop => tracing::warn!(%stop, "publishing interrupted; starting again"),
        }
        backoff.pause(&*clock).await;
    }
}

async fn round(
    authority: &Arc<dyn Authority>,
    clock: &Arc<dyn Clock>,
    link: &Link,
    figures: &Figures,
) -> Result<std::convert::Infallible, Stop> {
    let mut follower = Follower::new(authority.clone(), clock.clone(), Watching::default());
    let authority = &**authority;
    let identity = identity(authority).await?;
    let (mut cursor, mut stored) = load(authority).await?;
    tracing::info!(after = %cursor.after, identity, "publishing events");
    loop {
        let query = EventQuery {
            after: cursor.after,
            limit: BATCH,
            ..EventQuery::default()
        };
        let page = authority.events(query).await?;
        let behind = page.newest.get().saturating_sub(cursor.after.get());
        figures.lag.set(i64::try_from(behind).unwrap_or(i64::MAX));
        if cursor.after.next() < page.oldest && page.oldest <= page.newest {
            tracing::error!(
                from = %cursor.after, to = %page.oldest,
                "events left the history before they were published"
            );
        }
        let Some(last) = page.events.last().map(|event| event.revision) else {
            heard(&mut follower).await?;
            continue;
        };
        let published = |event: &&Event| event.key.kind() != OUTBOX && !event.key.is_private();
        let events: Vec<&Event> = page.events.iter().filter(published).collect();
        cursor.after = last;
        if events.is_empty() {
            // Nothing but the cursor's own changes: not worth another one.
            if !page.more {
                heard(&mut follower).await?;
            }
            continue;
        }
        publish(link, &identity, &events).await?;
        figures.published.inc_by(events.len() as u64);
        stored = Some(save(authority, cursor, stored).await?);
    }
}

/// Waits until something happened, or for a moment: the history is looked at anyway.
async fn heard(follower: &mut Follower) -> Result<(), Stop> {
    let happened = async {
        while let Change::Progress(_) | Change::Interrupted(_) = follower.next().await? {}
        Ok(())
    };
    timeout(IDLE, happened).await.unwrap_or(Ok(()))
}

/// Sends in order and waits until the broker has all of it on disk.
async fn publish(link: &Link, identity: &str, events: &[&Event]) -> Result<(), Stop> {
    let mut confirms = Vec::with_capacity(events.len());
    for event in events {
        let mut view = leasehold_api::Event::from(*event);
        view.event_id = format!("{identity}-{}", event.revision);
        let Ok(body) = serde_json::to_vec(&view) else {
            continue;
        };
        let message = Message {
            exchange: EXCHANGE,
            routing_key: &routing::of_event(event),
            body: &body,
            id: Some(&view.event_id),
            kind: Some(&view.event_type),
            at: Some(event.at.get() / 1000),
        };
        confirms.push(link.publish(message).await?);
    }
    for sent in confirms {
        sent.confirmed().await?;
    }
    Ok(())
}

/// Distinguishes this store's events from those of another one on the same broker, such as its
/// predecessor before a rebuild: created when the first event is published, and kept in the store.
async fn identity(authority: &dyn Authority) -> Result<String, Stop> {
    let key = Key::new(OUTBOX, "identity")?;
    let made = uuid::Uuid::new_v4().simple().to_string();
    // What is in the store counts, whoever wrote it.
    let identity = documents::change(authority, &key, |found| {
        Ok::<_, Error>(match found {
            Some(record) => Edit::Keep(record.value.trim_matches('"').to_owned()),
            None => Edit::Put(format!("\"{made}\"").into(), "made".into(), made.clone()),
        })
    });
    Ok(identity.await?)
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

/// Moves the cursor, unless somebody else did: then they lead.
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
