//! The servers that share a store. Each announces its presence and keeps a record beside it of what it
//! is and does; readers combine the two. A graceful stop removes both. The record of a replica
//! that died stays for a while, so that people see that one is missing.

use lease::{
    Authority, Departure, Error, Holder, Key, LeaseQuery, REPLICA, Transaction, Ttl, UnixMillis,
};
use leasehold_api::overview::{Replica, ReplicaStatus};
use leasehold_client::{Announced, Keeper, Presence, keeper, pages::Pages};
use leasehold_clock::Ticks;
use serde::{Deserialize, Serialize};

use crate::{
    App, Reject,
    registry::store::{self, Found},
};

/// How long a replica counts as present after its last sign of life.
const TTL_MS: u64 = 10_000;
/// Signs of life come every third of that; one that is older than this is late.
const LATE_MS: u64 = TTL_MS * 2 / 3;
/// How often a replica looks whether what it says of itself still holds, in ms.
const LOOK_MS: u64 = 2_000;
/// With every so many of these looks it looks after the others.
const SWEEP_LOOKS: u32 = 3;
/// How long a replica that died is remembered.
const REMEMBERED_MS: u64 = 3_600_000;
/// How many replicas are listed: more than share one store.
const MAX_LISTED: usize = 200;
/// How long a replica that stops waits for the store.
const WITHDRAW_MS: u64 = 2_000;

/// What a replica says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Announcement {
    holder: Holder,
    address: String,
    version: String,
    #[serde(default)]
    leads: Vec<String>,
    #[serde(default)]
    store_writable: bool,
    #[serde(default)]
    broker_connected: Option<bool>,
    /// When others found its presence gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gone_at: Option<UnixMillis>,
}

impl Announcement {
    fn of(app: &App, holder: &Holder, address: &str) -> Self {
        let promises = app.authority().capabilities();
        let outbox = &app.parts().outbox;
        let leads = [
            ("expiry", promises.leads_expiry),
            ("outbox", outbox.is_publishing()),
        ];
        Self {
            holder: holder.clone(),
            address: address.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            leads: leads
                .into_iter()
                .filter(|(_, leads)| *leads)
                .map(|(task, _)| task.to_owned())
                .collect(),
            store_writable: !promises.degraded,
            broker_connected: outbox.is_connected(),
            gone_at: None,
        }
    }
}

/// Announces this server until it stops, and takes the announcement back then.
pub(crate) async fn run(app: App, name: String, address: String) {
    if let Err(error) = announce(&app, &name, &address).await {
        tracing::error!(%error, name, "this replica cannot be announced");
    }
}

async fn announce(app: &App, name: &str, address: &str) -> Result<(), Error> {
    let holder = leasehold_client::new_holder(name)?;
    // One key per start: a replica that died must not keep its successor from being seen.
    let start: String = holder.incarnation.as_str().chars().take(8).collect();
    let key = Key::new(REPLICA, &format!("{name}/{start}"))?;
    let options = keeper::Options {
        stop_limit_ms: WITHDRAW_MS,
        ..keeper::Options::default()
    };
    let keeper = Keeper::start(
        app.shared_authority(),
        holder.clone(),
        app.clock().clone(),
        options,
    );
    let request = keeper.request(key.clone(), Ttl::from_millis(TTL_MS)?);
    let presence = Presence::start(keeper.clone(), request);
    let keeping = keep(app, &presence, &holder, address);
    app.closing().run_until_cancelled(keeping).await;
    let leaving = async {
        let gone = Transaction {
            writes: vec![store::remove(key, "stopped")],
            ..Transaction::default()
        };
        app.authority().commit(gone).await?;
        presence.withdraw().await?;
        keeper.stop().await
    };
    let until = app.clock().boot().plus(WITHDRAW_MS);
    let left = tokio::select! {
        left = leaving => left,
        () = app.clock().sleep_until(until) => Err(Error::Unavailable("no answer".into())),
    };
    if let Err(error) = left {
        tracing::warn!(%error, name, "replica stays listed as gone: the store did not remove it");
    }
    Ok(())
}

/// Keeps the record true for as long as the presence is announced.
async fn keep(app: &App, presence: &Presence, holder: &Holder, address: &str) {
    let mut announced = presence.watch();
    let mut ticks = Ticks::every(LOOK_MS);
    let mut started_at = None;
    let mut written = None;
    let mut cleared = false;
    let mut looks = 0_u32;
    loop {
        if *announced.borrow_and_update() == Announced::Present {
            let current = Announcement::of(app, holder, address);
            if written.as_ref() != Some(&current) {
                match write(app.authority(), presence.key(), &current, started_at).await {
                    Ok(began) => (started_at, written) = (Some(began), Some(current)),
                    Err(error) => tracing::debug!(?error, "the replica's record waits"),
                }
            }
            if !cleared && !app.authority().capabilities().shared {
                cleared = succeed(app.authority(), presence.key()).await.is_ok();
            }
            if looks.is_multiple_of(SWEEP_LOOKS)
                && let Err(error) = sweep(app.authority()).await
            {
                tracing::debug!(?error, "replicas that are gone stay listed");
            }
            looks = looks.wrapping_add(1);
        } else {
            // Others may have written meanwhile that this one is gone.
            written = None;
        }
        tokio::select! {
            () = ticks.next(&**app.clock()) => {}
            changed = announced.changed() => if changed.is_err() { return },
        }
    }
}

/// Writes the record; returns since when there is one.
async fn write(
    authority: &dyn Authority,
    key: &Key,
    current: &Announcement,
    started_at: Option<UnixMillis>,
) -> Result<UnixMillis, Reject> {
    let now = authority.now().await?;
    let started_at = started_at.unwrap_or(now);
    let write = store::put(key.clone(), current, started_at, now, "announced")?;
    let transaction = Transaction {
        writes: vec![write],
        ..Transaction::default()
    };
    authority.commit(transaction).await?;
    Ok(started_at)
}

/// A store that only one server can have open proves that those before are dead (L15).
async fn succeed(authority: &dyn Authority, own: &Key) -> Result<(), Reject> {
    for found in records(authority).await? {
        if found.key == *own {
            continue;
        }
        let died = Departure::Died(found.value.holder.clone());
        authority.depart(died).await?;
        forget(authority, &found).await?;
    }
    Ok(())
}

/// Notes which replicas are gone, and forgets those that have been for long, or that came back.
async fn sweep(authority: &dyn Authority) -> Result<(), Reject> {
    let (found, now) = look(authority).await?;
    for (it, status, _) in &found {
        if *status != ReplicaStatus::Gone {
            continue;
        }
        let name = &it.value.holder.name;
        let is_back = found.iter().any(|(other, status, _)| {
            *status != ReplicaStatus::Gone && other.value.holder.name == *name
        });
        match it.value.gone_at {
            _ if is_back => forget(authority, it).await?,
            Some(gone_at) if now.since(gone_at) >= REMEMBERED_MS => forget(authority, it).await?,
            Some(_) => {}
            None => {
                tracing::warn!(replica = %name, address = it.value.address, "replica is gone");
                let gone = Announcement {
                    gone_at: Some(now),
                    ..it.value.clone()
                };
                let write = store::put(it.key.clone(), &gone, it.created_at, now, "gone")?;
                // Another replica may have noted it already, or it is back.
                let transaction = Transaction {
                    expect: vec![it.expect()],
                    writes: vec![write],
                    ..Transaction::default()
                };
                authority.commit(transaction).await?;
            }
        }
    }
    Ok(())
}

async fn forget(authority: &dyn Authority, found: &Found<Announcement>) -> Result<(), Reject> {
    let transaction = Transaction {
        expect: vec![found.expect()],
        writes: vec![store::remove(found.key.clone(), "forgotten")],
        ..Transaction::default()
    };
    authority.commit(transaction).await?;
    Ok(())
}

/// The records of all replicas. One of another version that cannot be read is left out.
async fn records(authority: &dyn Authority) -> Result<Vec<Found<Announcement>>, Reject> {
    let records = Pages::records(authority, REPLICA, "")
        .first(MAX_LISTED)
        .await?;
    let found = records.into_iter().map(store::read);
    Ok(found.filter_map(Result::ok).collect())
}

type Seen = (Found<Announcement>, ReplicaStatus, Option<UnixMillis>);

/// Every replica with its last sign of life, and the time.
async fn look(authority: &dyn Authority) -> Result<(Vec<Seen>, UnixMillis), Reject> {
    // Presence after the records: a replica that begins meanwhile is not taken for one that is gone.
    let records = records(authority).await?;
    let leases = Pages::new(authority, LeaseQuery::active(REPLICA))
        .all()
        .await?;
    let now = authority.now().await?;
    let found = records.into_iter().map(|found| {
        let lease = leases.iter().find(|lease| lease.key == found.key);
        let seen_at = lease.map(|lease| lease.renewed_at.unwrap_or(lease.acquired_at));
        let status = match seen_at {
            None => ReplicaStatus::Gone,
            Some(seen_at) if now.since(seen_at) > LATE_MS => ReplicaStatus::Stale,
            Some(_) => ReplicaStatus::Healthy,
        };
        (found, status, seen_at)
    });
    Ok((found.collect(), now))
}

/// The replicas, by name; those that died lately included.
pub(crate) async fn list(authority: &dyn Authority) -> Result<Vec<Replica>, Reject> {
    let (found, _) = look(authority).await?;
    let shown = found.iter().filter(|(it, status, _)| {
        *status != ReplicaStatus::Gone
            || found.iter().all(|(other, status, _)| {
                *status == ReplicaStatus::Gone || other.value.holder.name != it.value.holder.name
            })
    });
    let mut shown: Vec<Replica> = shown
        .map(|(it, status, seen_at)| Replica {
            name: it.value.holder.name.as_str().to_owned(),
            address: it.value.address.clone(),
            version: it.value.version.clone(),
            started_at: it.created_at.into(),
            status: *status,
            seen_at: seen_at.map(Into::into),
            gone_at: it.value.gone_at.map(Into::into),
            leads: match status {
                ReplicaStatus::Gone => Vec::new(),
                _ => it.value.leads.clone(),
            },
            store_writable: it.value.store_writable,
            broker_connected: it.value.broker_connected,
        })
        .collect();
    shown.sort_by(|a, b| (&a.name, a.started_at).cmp(&(&b.name, b.started_at)));
    Ok(shown)
}
