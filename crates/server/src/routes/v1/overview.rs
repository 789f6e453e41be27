//! What the page at `/` shows beside the resources. Read-only: every handler counts or searches what
//! other routes change.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use ::lease::{
    BootMillis, EventKind, EventQuery, Key, Lease, LeaseQuery, Revision, Status, UnixMillis,
    registry::{CAMERA, RUNNER, ZONE},
};
use axum::{Extension, extract::State};
use leasehold_api::overview::{
    Activity, Broker, KindCount, LEASE_SEARCH, LeaseCounts, LeaseSearch, ME, Me, Minute, OVERVIEW,
    Overview, Replica, SITES, SiteList, SiteSummary, StorePromises,
};
use leasehold_client::pages::Pages;
use serde::Deserialize;
use tokio::sync::Mutex;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::leases::tenant;
use crate::{
    App, Json, Query, Reject,
    auth::{Auth, Authenticated, LeasesRead, RunnersRead},
    query::{MAX_PAGE, page_limit},
    replicas,
};

/// How many leases are looked at in one search, at most: more than a person can mean.
const MAX_SCANNED: usize = 250_000;
/// A scan is used again for this long, so that a store is read once a second however many look.
const SCAN_MS: u64 = 1_000;
/// And for this many times as long as it took: a scan never keeps a store busy for more than a fifth of
/// the time.
const SCAN_SHARE: u64 = 4;
/// How many minutes of the past are counted.
const MINUTES: u64 = 60;
/// How many events are read for one answer, at most; with more, the count begins later.
const MAX_EVENTS: u64 = 20_000;
const MINUTE_MS: u64 = 60_000;

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(me))
        .routes(routes!(overview))
        .routes(routes!(search))
        .routes(routes!(sites))
        .layer(Extension(Arc::new(Looked::default())))
}

/// What was read for one caller and is still good for the next.
#[derive(Default)]
struct Looked {
    // Asynchronous mutexes: held while the store is read, so that simultaneous callers share one read.
    scan: Mutex<Option<Scan>>,
    recent: Mutex<Recent>,
}

/// Every live and waiting lease at one moment.
#[derive(Clone)]
struct Scan {
    leases: Arc<Vec<Lease>>,
    at: UnixMillis,
    fresh_until: BootMillis,
}

impl Looked {
    async fn scan(&self, app: &App) -> Result<Scan, Reject> {
        let mut kept = self.scan.lock().await;
        let begun = app.clock().boot();
        if let Some(scan) = kept.as_ref().filter(|scan| begun < scan.fresh_until) {
            return Ok(scan.clone());
        }
        let mut pages = Pages::new(app.authority(), LeaseQuery::default());
        let leases = pages.first(MAX_SCANNED).await?;
        let at = app.authority().now().await?;
        let ended = app.clock().boot();
        let took = ended.since(begun);
        let scan = Scan {
            leases: Arc::new(leases),
            at,
            fresh_until: ended.plus(SCAN_MS.max(took.saturating_mul(SCAN_SHARE))),
        };
        *kept = Some(scan.clone());
        Ok(scan)
    }
}

/// The caller of this request, and its permissions.
#[utoipa::path(get, path = ME, tag = "overview", security(("bearer" = [])),
    responses((status = 200, body = Me, description = "The caller")))]
async fn me(Authenticated(caller): Authenticated) -> Json<Me> {
    Json(Me {
        credential: caller.token_id.to_string(),
        scopes: caller.scopes.iter().map(ToString::to_string).collect(),
        tenant_id: caller.tenant.as_deref().map(str::to_owned),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// Counts over everything, and what the store promises.
#[utoipa::path(get, path = OVERVIEW, tag = "overview", security(("bearer" = ["leases:read"])),
    responses((status = 200, body = Overview, description = "The counts")))]
async fn overview(
    Auth(caller, _): Auth<LeasesRead>,
    State(app): State<App>,
    Extension(looked): Extension<Arc<Looked>>,
) -> Result<Json<Overview>, Reject> {
    let scan = looked.scan(&app).await?;
    let seen = scan
        .leases
        .iter()
        .filter(|lease| caller.sees(lease.labels.tenant()));
    let leases = count(seen, scan.at);
    let range = app.authority().events(EventQuery {
        limit: 1,
        ..EventQuery::default()
    });
    let range = range.await?;
    let bound = caller.tenant.is_some();
    let activity = if bound {
        None
    } else {
        let mut recent = looked.recent.lock().await;
        recent.catch_up(&app, range.oldest, range.newest).await?;
        Some(recent.activity(scan.at))
    };
    let (broker, replicas) = if bound {
        (None, None)
    } else {
        let replicas = replicas::list(app.authority()).await?;
        let broker = broker(&app, range.newest, &replicas).await?;
        (broker, Some(replicas))
    };
    let promises = app.authority().capabilities();
    Ok(Json(Overview {
        at: scan.at.into(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        store: StorePromises {
            name: promises.store,
            durable: promises.durable,
            time_stops: promises.time_stops,
            shared: promises.shared,
            caveats: promises.caveats,
        },
        leases,
        newest: range.newest.get(),
        oldest: range.oldest.get(),
        activity,
        broker,
        replicas,
    }))
}

fn count<'a>(leases: impl Iterator<Item = &'a Lease>, now: UnixMillis) -> LeaseCounts {
    let mut counts = LeaseCounts::default();
    let mut holders = BTreeSet::new();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for lease in leases {
        if lease.status == Status::Pending {
            counts.pending += 1;
            continue;
        }
        counts.active += 1;
        counts.jeopardy += usize::from(lease.in_jeopardy(now));
        let left = lease.expires_at.since(now);
        counts.expiring += usize::from(left < lease.ttl.millis() / 3);
        holders.insert(lease.holder.name.as_str());
        *kinds.entry(lease.key.kind()).or_default() += 1;
    }
    counts.holders = holders.len();
    counts.kinds = kinds
        .into_iter()
        .map(|(kind, active)| KindCount {
            kind: kind.to_owned(),
            active,
        })
        .collect();
    counts
        .kinds
        .sort_by_key(|kind| std::cmp::Reverse(kind.active));
    counts
}

/// The last hour, read from the history once and continued with every answer.
#[derive(Default)]
struct Recent {
    /// Everything up to here is counted.
    after: Option<Revision>,
    since: UnixMillis,
    minutes: VecDeque<(u64, [u64; COUNTED.len()])>,
}

const COUNTED: [EventKind; 5] = [
    EventKind::LeaseAcquired,
    EventKind::LeaseReleased,
    EventKind::LeaseExpired,
    EventKind::LeaseRevoked,
    EventKind::LeaseStolen,
];

impl Recent {
    async fn catch_up(
        &mut self,
        app: &App,
        oldest: Revision,
        newest: Revision,
    ) -> Result<(), Reject> {
        let now = app.authority().now().await?;
        let hour_ago = UnixMillis::new(now.get().saturating_sub(MINUTES * MINUTE_MS));
        let reach = newest.get().saturating_sub(MAX_EVENTS);
        let mut after = match self.after {
            Some(after) if after <= newest && after.get() >= reach => after,
            _ => {
                self.minutes.clear();
                let floor = reach.max(oldest.get().saturating_sub(1));
                let (after, since) = first_after(app, hour_ago, floor, newest.get()).await?;
                self.since = since;
                after
            }
        };
        while after < newest {
            let page = app
                .authority()
                .events(EventQuery {
                    after,
                    limit: MAX_PAGE,
                    ..EventQuery::default()
                })
                .await?;
            let Some(last) = page.events.last() else {
                after = newest;
                break;
            };
            after = last.revision;
            for event in &page.events {
                if let Some(place) = COUNTED.iter().position(|kind| *kind == event.kind) {
                    self.add(event.at, place);
                }
            }
        }
        self.after = Some(after);
        self.since = self.since.max(hour_ago);
        while self
            .minutes
            .front()
            .is_some_and(|(minute, _)| *minute < hour_ago.get() / MINUTE_MS)
        {
            self.minutes.pop_front();
        }
        Ok(())
    }

    fn add(&mut self, at: UnixMillis, place: usize) {
        let minute = at.get() / MINUTE_MS;
        // Times of one authority only grow; one that a clock set back is counted where it is known.
        if self.minutes.back().is_none_or(|(last, _)| *last < minute) {
            self.minutes.push_back((minute, [0; COUNTED.len()]));
        }
        if let Some((_, counts)) = self.minutes.back_mut() {
            counts[place] += 1;
        }
    }

    fn activity(&self, now: UnixMillis) -> Activity {
        let last = now.get() / MINUTE_MS;
        let minutes = (last.saturating_sub(MINUTES - 1)..=last)
            .map(|minute| {
                let counts = self
                    .minutes
                    .iter()
                    .find(|(at, _)| *at == minute)
                    .map_or([0; COUNTED.len()], |(_, counts)| *counts);
                let [acquired, released, expired, revoked, stolen] = counts;
                Minute {
                    at: UnixMillis::new(minute * MINUTE_MS).into(),
                    acquired,
                    released,
                    expired,
                    revoked,
                    stolen,
                }
            })
            .collect();
        Activity {
            since: self.since.into(),
            minutes,
        }
    }
}

/// The last revision before `time`, by halves, and from when on what follows it is known.
async fn first_after(
    app: &App,
    time: UnixMillis,
    floor: u64,
    newest: u64,
) -> Result<(Revision, UnixMillis), Reject> {
    let at = async |after: u64| -> Result<Option<UnixMillis>, Reject> {
        let page = app.authority().events(EventQuery {
            after: Revision::new(after),
            limit: 1,
            ..EventQuery::default()
        });
        Ok(page.await?.events.first().map(|event| event.at))
    };
    let (mut low, mut high) = (floor, newest);
    match at(low).await? {
        None => return Ok((Revision::new(newest), time)),
        // The history, or what is read of it, begins later than that.
        Some(first) if first >= time => {
            let since = if floor == 0 { time } else { first };
            return Ok((Revision::new(low), since));
        }
        Some(_) => {}
    }
    while low + 1 < high {
        let middle = low.midpoint(high);
        if at(middle).await?.is_none_or(|found| found >= time) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok((Revision::new(low), time))
}

/// How far the broker is, when some replica publishes or has published.
async fn broker(
    app: &App,
    newest: Revision,
    replicas: &[Replica],
) -> Result<Option<Broker>, Reject> {
    #[derive(Deserialize)]
    struct Cursor {
        after: u64,
    }
    let publisher = app
        .authority()
        .lease(Key::new("leadership", "outbox")?)
        .await?;
    let cursor = app
        .authority()
        .record(Key::new("outbox", "cursor")?)
        .await?;
    let cursor = cursor.and_then(|record| serde_json::from_str::<Cursor>(&record.value).ok());
    if publisher.is_none() && cursor.is_none() {
        return Ok(None);
    }
    let leader = replicas
        .iter()
        .find(|replica| replica.leads.iter().any(|task| task == "outbox"));
    Ok(Some(Broker {
        publisher: publisher.map(|lease| match leader {
            Some(replica) => replica.name.clone(),
            None => lease.holder.name.as_str().to_owned(),
        }),
        behind: newest
            .get()
            .saturating_sub(cursor.map_or(0, |cursor| cursor.after)),
    }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Wanted {
    /// Only leases with this text in their key, holder, lease id or token.
    q: Option<String>,
    /// Only this kind.
    kind: Option<String>,
    /// Only this holder, any incarnation.
    holder: Option<String>,
    /// `active`, `pending`, `jeopardy` or `expiring`; without it active and pending.
    status: Option<String>,
    /// `key`, `holder`, `expires_at`, `acquired_at` or `token`; with `-` before it, the other way round.
    sort: Option<String>,
    /// How many to skip.
    offset: Option<usize>,
    /// At most this many: 1 to 1000, 100 when absent.
    limit: Option<usize>,
}

/// Search, sort and count leases.
#[utoipa::path(get, path = LEASE_SEARCH, tag = "overview", security(("bearer" = ["leases:read"])),
    params(Wanted), responses((status = 200, body = LeaseSearch, description = "A part of what matches")))]
async fn search(
    Auth(caller, _): Auth<LeasesRead>,
    State(app): State<App>,
    Extension(looked): Extension<Arc<Looked>>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<LeaseSearch>, Reject> {
    let limit = page_limit(wanted.limit)?;
    let offset = wanted.offset.unwrap_or(0);
    let order = Order::parse(wanted.sort.as_deref().unwrap_or("key"))?;
    let which = Which::parse(wanted.status.as_deref())?;
    let text = wanted.q.as_deref().map(str::to_lowercase);
    let scan = looked.scan(&app).await?;
    let mut total = 0;
    let mut found: Vec<&Lease> = Vec::new();
    for lease in scan.leases.iter() {
        if !caller.sees(lease.labels.tenant()) {
            continue;
        }
        total += 1;
        let kept = which.includes(lease, scan.at)
            && wanted
                .kind
                .as_deref()
                .is_none_or(|kind| lease.key.kind() == kind)
            && wanted
                .holder
                .as_deref()
                .is_none_or(|holder| lease.holder.name.as_str() == holder)
            && text.as_deref().is_none_or(|text| contains(lease, text));
        if kept {
            found.push(lease);
        }
    }
    order.sort(&mut found);
    Ok(Json(LeaseSearch {
        matched: found.len(),
        leases: found
            .into_iter()
            .skip(offset)
            .take(limit)
            .map(leasehold_api::Lease::from)
            .collect(),
        offset,
        total,
        at: scan.at.into(),
    }))
}

/// Whether `text`, in lower case, occurs in what a person may know of a lease.
fn contains(lease: &Lease, text: &str) -> bool {
    let has = |word: &str| word.to_lowercase().contains(text);
    has(lease.key.as_str())
        || has(lease.holder.name.as_str())
        || lease.token.get().to_string().contains(text)
        || has(&lease.id.to_string())
}

/// Which leases by their status.
#[derive(Clone, Copy)]
enum Which {
    Any,
    Active,
    Pending,
    Jeopardy,
    Expiring,
}

impl Which {
    fn parse(word: Option<&str>) -> Result<Self, Reject> {
        Ok(match word {
            None => Self::Any,
            Some("active") => Self::Active,
            Some("pending") => Self::Pending,
            Some("jeopardy") => Self::Jeopardy,
            Some("expiring") => Self::Expiring,
            Some(_) => {
                return Err(Reject::field(
                    "status",
                    "active, pending, jeopardy or expiring",
                ));
            }
        })
    }

    fn includes(self, lease: &Lease, now: UnixMillis) -> bool {
        let active = lease.status == Status::Active;
        match self {
            Self::Any => true,
            Self::Active => active,
            Self::Pending => lease.status == Status::Pending,
            Self::Jeopardy => lease.in_jeopardy(now),
            Self::Expiring => active && lease.expires_at.since(now) < lease.ttl.millis() / 3,
        }
    }
}

/// In which order, and which way round.
struct Order {
    by: fn(&Lease, &Lease) -> Ordering,
    backwards: bool,
}

impl Order {
    fn parse(word: &str) -> Result<Self, Reject> {
        let (backwards, word) = match word.strip_prefix('-') {
            Some(word) => (true, word),
            None => (false, word),
        };
        let by: fn(&Lease, &Lease) -> Ordering = match word {
            "key" => |a, b| a.key.cmp(&b.key),
            "holder" => |a, b| a.holder.name.as_str().cmp(b.holder.name.as_str()),
            "expires_at" => |a, b| a.expires_at.cmp(&b.expires_at),
            "acquired_at" => |a, b| a.acquired_at.cmp(&b.acquired_at),
            "token" => |a, b| a.token.cmp(&b.token),
            _ => {
                return Err(Reject::field(
                    "sort",
                    "key, holder, expires_at, acquired_at or token, with - before it for the other way round",
                ));
            }
        };
        Ok(Self { by, backwards })
    }

    /// Equal ones stay in the order of their keys, so that pages fit together.
    fn sort(&self, leases: &mut [&Lease]) {
        leases.sort_by(|a, b| {
            let order = (self.by)(a, b);
            if self.backwards {
                order.reverse()
            } else {
                order
            }
        });
    }
}

/// Every site that has a camera, a zone or a runner.
#[utoipa::path(get, path = SITES, tag = "overview", security(("bearer" = ["runners:read"])),
    responses((status = 200, body = SiteList, description = "The sites")))]
async fn sites(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
) -> Result<Json<SiteList>, Reject> {
    let own = tenant(&caller, None)?;
    let prefix = own.map(|own| format!("{own}/")).unwrap_or_default();
    let mut found: BTreeMap<(String, String), [usize; 3]> = BTreeMap::new();
    for (place, kind) in [CAMERA, ZONE, RUNNER].into_iter().enumerate() {
        let mut pages = Pages::records(app.authority(), kind, prefix.as_str());
        while let Some(page) = pages.next().await? {
            for record in &page {
                // Ids are `tenant/site/name`; what is not belongs to no site.
                let mut parts = record.key.id().splitn(3, '/');
                if let (Some(tenant), Some(site), Some(_)) =
                    (parts.next(), parts.next(), parts.next())
                {
                    let site = (tenant.to_owned(), site.to_owned());
                    found.entry(site).or_default()[place] += 1;
                }
            }
        }
    }
    let sites = found
        .into_iter()
        .map(
            |((tenant_id, site_id), [cameras, zones, runners])| SiteSummary {
                tenant_id,
                site_id,
                cameras,
                zones,
                runners,
            },
        )
        .collect();
    Ok(Json(SiteList { sites }))
}
