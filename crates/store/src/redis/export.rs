//! A Redis as an end of a move, and what is read from it.
//!
//! A closed store has a text where its counters are looked for, so that every command of a server
//! fails before it changes anything; the counters themselves are parked under another name.

use ::redis::{Value, cmd};
use lease::{
    Answer, Error, Event, Key, Loss, Record, Revision, Status, Token, UnixMillis,
    engine::{Ended, StoredSlot},
};

use super::{
    checks, events,
    keys::Keys,
    link::{Call, Link, Repeat},
    options::Options,
    scripts::Script,
    wire,
};
use crate::migrate::{Export, Head, Maintenance, PAGE, Part};

/// A Redis, looked at through one connection.
pub(crate) struct Endpoint {
    pub(super) link: Link,
    pub(super) keys: Keys,
    pub(super) options: Options,
    read: Script,
    pub(super) write: Script,
}

/// What the counters say, with some counts.
struct Counters {
    now: UnixMillis,
    /// `None` in a Redis that never was a store.
    revision: Option<u64>,
    base: u64,
    floor: Token,
    /// `None` when the history is empty.
    oldest: Option<u64>,
    events: u64,
    leader: String,
}

/// How cursors through the keys begin: those with a lease, those without, and tokens alone.
const LIVE: &str = "live/";
const IDLE: &str = "idle/";
const BARE: &str = "bare/";

impl Endpoint {
    /// Connects. `None` when there is no store and an empty one is of no use.
    pub async fn open(options: Options, absent: bool) -> Result<Option<Self>, Error> {
        let keys = Keys::new(&options.prefix)?;
        let link = Link::new(&options, &keys);
        checks::run(&link, &options).await?;
        let page = format!(
            "{}local PARKED = '{}'\n",
            keys.page(&options),
            parked(&keys)
        );
        let script = |tail: &str| {
            let text = page.clone() + tail;
            let sha = ::redis::Script::new(&text).get_hash().to_owned();
            Script { text, sha }
        };
        let site = Self {
            read: script(include_str!("lua/export.lua")),
            write: script(include_str!("lua/import.lua")),
            link,
            keys,
            options,
        };
        let there = site.counters().await?.revision.is_some();
        Ok((there || absent).then_some(site))
    }

    /// Asks the script that reads.
    async fn ask(&self, what: &str, arguments: &[&str]) -> Result<Value, Error> {
        let mut call = Call::new(&self.keys);
        call.arg(what);
        for argument in arguments {
            call.arg(argument);
        }
        self.link.run(&self.read, &call, Repeat::Safe).await
    }

    /// The same about these keys.
    async fn ask_about(&self, what: &str, keys: &[String]) -> Result<Vec<Value>, Error> {
        let mut call = Call::new(&self.keys);
        call.arg(what).number(keys.len() as u64);
        for key in keys {
            call.arg(key);
        }
        let answer = self.link.run(&self.read, &call, Repeat::Safe).await?;
        Ok(wire::items(&answer).to_vec())
    }

    async fn counters(&self) -> Result<Counters, Error> {
        let answer = self.ask("head", &[]).await?;
        let [now, revision, base, floor, oldest, events, leader] = wire::items(&answer) else {
            return Err(wire::broken("counters"));
        };
        let some = |value: &Value| {
            let there = !wire::text(value).is_empty();
            there.then(|| wire::number(value))
        };
        Ok(Counters {
            now: wire::millis(now),
            revision: some(revision),
            base: wire::number(base),
            floor: wire::token(floor)?,
            oldest: some(oldest),
            events: wire::number(events),
            leader: wire::text(leader),
        })
    }

    /// One step of a scan: the names behind `beginning`, and the next cursor.
    pub(super) async fn scan(
        &self,
        beginning: &str,
        cursor: &str,
    ) -> Result<(Vec<String>, Option<String>), Error> {
        let mut scan = cmd("SCAN");
        scan.arg(if cursor.is_empty() { "0" } else { cursor })
            .arg("MATCH")
            .arg(format!("{beginning}*"))
            .arg("COUNT")
            .arg(PAGE);
        let answer = self.link.send(&scan, Repeat::Safe).await;
        let answer = answer.map_err(|failure| failure.error)?;
        let [next, names] = wire::items(&answer) else {
            return Err(wire::broken("names"));
        };
        let names = wire::texts(names)
            .into_iter()
            .filter_map(|name| name.strip_prefix(beginning).map(str::to_owned))
            .collect();
        let next = wire::text(next);
        Ok((names, (next != "0").then_some(next)))
    }

    /// Names of keys with a token, each once, but for the same key with and without a lease.
    pub(super) async fn names(&self, cursor: &str) -> Result<(Vec<String>, Option<String>), Error> {
        let most = PAGE.to_string();
        if let Some(from) = cursor.strip_prefix(IDLE) {
            let rank: usize = from.parse().unwrap_or(0);
            let names = wire::texts(&self.ask("idle", &[&rank.to_string(), &most]).await?);
            let next = match names.len() {
                PAGE => format!("{IDLE}{}", rank + PAGE),
                _ => BARE.to_owned(),
            };
            return Ok((names, Some(next)));
        }
        if let Some(at) = cursor.strip_prefix(BARE) {
            let (ids, next) = self.scan(&self.keys.fences(), at).await?;
            let names = ids.into_iter().map(|id| format!("poll:{id}")).collect();
            return Ok((names, next.map(|next| format!("{BARE}{next}"))));
        }
        let from = match cursor.strip_prefix(LIVE) {
            Some(last) => format!("({last}"),
            None => "-".to_owned(),
        };
        let names = wire::texts(&self.ask("index", &[&from, &most]).await?);
        let next = match names.last() {
            Some(last) if names.len() == PAGE => format!("{LIVE}{last}"),
            _ => IDLE.to_owned(),
        };
        Ok((names, Some(next)))
    }

    /// The kinds of records, and at the end the polling targets.
    async fn kinds(&self) -> Result<Vec<String>, Error> {
        let mut members = cmd("SMEMBERS");
        members.arg(self.keys.record_kinds());
        let answer = self.link.send(&members, Repeat::Safe).await;
        let answer = answer.map_err(|failure| failure.error)?;
        let mut kinds = match answer {
            Value::Set(kinds) | Value::Array(kinds) => kinds.iter().map(wire::text).collect(),
            _ => Vec::new(),
        };
        kinds.sort_unstable();
        Ok(kinds)
    }

    async fn ids(&self, kind: &str, from: &str) -> Result<Vec<String>, Error> {
        let mut range = cmd("ZRANGEBYLEX");
        range
            .arg(self.keys.record_ids(kind))
            .arg(from)
            .arg("+")
            .arg("LIMIT")
            .arg(0)
            .arg(PAGE);
        let answer = self.link.send(&range, Repeat::Safe).await;
        Ok(wire::texts(&answer.map_err(|failure| failure.error)?))
    }

    /// How many keys and leases, counted by looking at all of them.
    async fn count(&self) -> Result<(u64, u64, u64), Error> {
        let (mut keys, mut live, mut records) = (0, 0, 0);
        let mut cursor = String::new();
        loop {
            let part = self.slots(cursor).await?;
            let own = part
                .items
                .iter()
                .filter(|slot| slot.key.kind() != "leadership");
            for slot in own {
                keys += 1;
                live += u64::from(slot.lease.is_some());
            }
            let Some(next) = part.next else { break };
            cursor = next;
        }
        let mut cursor = String::new();
        loop {
            let part = self.records(cursor).await?;
            records += part.items.len() as u64;
            let Some(next) = part.next else { break };
            cursor = next;
        }
        Ok((keys, live, records))
    }
}

/// Where the counters are while the store is closed.
fn parked(keys: &Keys) -> String {
    format!("{}-parked", keys.meta())
}

fn slot(value: &Value) -> Result<StoredSlot, Error> {
    let [tag, key, token, rest @ ..] = wire::items(value) else {
        return Err(wire::broken("a key"));
    };
    let (mut lease, mut ended) = (None, None);
    match (wire::text(tag).as_str(), rest) {
        ("L", [facts]) => lease = Some(wire::lease(facts, Status::Active)?),
        ("E", [id, loss, why, at]) => {
            ended = Some(Ended {
                id: wire::text(id)
                    .parse()
                    .map_err(|_| wire::broken("a lease's id"))?,
                loss: Loss::parse(&wire::text(loss), &wire::text(why))
                    .ok_or_else(|| wire::broken("a loss"))?,
                at: wire::millis(at),
            });
        }
        ("T", []) => {}
        _ => return Err(wire::broken("a key")),
    }
    Ok(StoredSlot {
        key: wire::key(key)?,
        token: wire::token(token)?,
        lease,
        ended,
        counted_from: None,
    })
}

async fn read_maintenance(link: &Link, keys: &Keys) -> Result<Option<Maintenance>, Error> {
    let mut get = cmd("GET");
    get.arg(keys.meta());
    match link.send(&get, Repeat::Safe).await {
        Ok(Value::BulkString(text)) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|_| wire::broken("a maintenance lock")),
        Ok(_) => Ok(None),
        // The counters, where they belong.
        Err(failure) if failure.error.to_string().contains("WRONGTYPE") => Ok(None),
        Err(failure) => Err(failure.error),
    }
}

/// Whether a store is closed to servers.
pub(crate) async fn maintenance_in(options: &Options) -> Result<Option<Maintenance>, Error> {
    let keys = Keys::new(&options.prefix)?;
    read_maintenance(&Link::new(options, &keys), &keys).await
}

impl Export for Endpoint {
    fn store(&self) -> &'static str {
        "redis"
    }

    fn maintenance(&self) -> Answer<'_, Option<Maintenance>> {
        Box::pin(read_maintenance(&self.link, &self.keys))
    }

    fn at_work(&self) -> Answer<'_, Option<String>> {
        Box::pin(async {
            let leader = self.counters().await?.leader;
            Ok((!leader.is_empty())
                .then(|| format!("it holds lease:leadership:expiry as {leader}")))
        })
    }

    fn head(&self) -> Answer<'_, Head> {
        Box::pin(async {
            let counters = self.counters().await?;
            let (keys, live, records) = self.count().await?;
            let revision = counters.revision.unwrap_or(0);
            Ok(Head {
                revision: Revision::new(revision),
                base: Revision::new(counters.base),
                oldest: Revision::new(counters.oldest.unwrap_or(revision + 1)),
                floor: counters.floor,
                keys,
                live,
                records,
                events: counters.events,
            })
        })
    }

    fn now(&self) -> Answer<'_, UnixMillis> {
        Box::pin(async { Ok(self.counters().await?.now) })
    }

    fn slots(&self, cursor: String) -> Answer<'_, Part<StoredSlot>> {
        Box::pin(async move {
            let (names, next) = self.names(&cursor).await?;
            let found = self.ask_about("slots", &names).await?;
            let mut items: Vec<StoredSlot> = found.iter().map(slot).collect::<Result<_, _>>()?;
            // A key that is listed twice is taken where it belongs.
            if cursor.starts_with(IDLE) {
                items.retain(|slot| slot.lease.is_none());
            } else if cursor.starts_with(BARE) {
                items.retain(|slot| slot.lease.is_none() && slot.ended.is_none());
            }
            Ok(Part { items, next })
        })
    }

    fn records(&self, cursor: String) -> Answer<'_, Part<Record>> {
        Box::pin(async move {
            let kinds = self.kinds().await?;
            let (kind, at) = cursor.split_once('/').unwrap_or((&cursor, ""));
            let place = kinds.iter().position(|it| it.as_str() >= kind);
            let (names, next) = if let Some(kind) = place
                .and_then(|place| kinds.get(place))
                .filter(|_| !cursor.starts_with(TARGETS))
            {
                let from = if at.is_empty() {
                    "-".to_owned()
                } else {
                    format!("({at}")
                };
                let ids = self.ids(kind, &from).await?;
                let following = kinds.iter().find(|other| *other > kind);
                let next = match ids.last() {
                    Some(last) if ids.len() == PAGE => format!("{kind}/{last}"),
                    _ => following.map_or_else(|| TARGETS.to_owned(), |kind| format!("{kind}/")),
                };
                let names = ids.iter().map(|id| format!("{kind}:{id}")).collect();
                (names, Some(next))
            } else {
                let at = cursor.strip_prefix(TARGETS).unwrap_or("");
                let (ids, next) = self.scan(&self.keys.targets(), at).await?;
                let names: Vec<String> = ids.iter().map(|id| format!("target:{id}")).collect();
                (names, next.map(|next| format!("{TARGETS}{next}")))
            };
            let found = self.ask_about("records", &names).await?;
            let items = found.iter().map(wire::record).collect::<Result<_, _>>()?;
            Ok(Part { items, next })
        })
    }

    fn events(&self, after: Revision) -> Answer<'_, Vec<Event>> {
        Box::pin(async move { events::after(&self.link, &self.keys, after.get(), PAGE).await })
    }

    fn tokens(&self, keys: Vec<Key>) -> Answer<'_, Vec<Token>> {
        Box::pin(async move {
            let names: Vec<String> = keys.iter().map(ToString::to_string).collect();
            let found = self.ask_about("slots", &names).await?;
            found.iter().map(|value| Ok(slot(value)?.token)).collect()
        })
    }

    fn foreign(&self, cursor: String) -> Answer<'_, Part<Key>> {
        Box::pin(async move {
            let kinds = [
                (self.keys.listed("poll"), "poll:"),
                (self.keys.listed("node"), "node:"),
                (self.keys.leases(), ""),
            ];
            let (place, at) = cursor.split_once('/').unwrap_or(("0", ""));
            let place: usize = place.parse().unwrap_or(0);
            let Some((beginning, kind)) = kinds.get(place) else {
                return Ok(Part::none());
            };
            let (ids, next) = self.scan(beginning, at).await?;
            let names: Vec<String> = ids
                .into_iter()
                .map(|id| format!("{kind}{id}"))
                // Not a lease, but the servers' own.
                .filter(|name| name != "leadership:expiry" && name.parse::<Key>().is_ok())
                .collect();
            let found = self.ask_about("foreign", &names).await?;
            let items = found.iter().map(wire::key).collect::<Result<_, _>>()?;
            let next = match next {
                Some(next) => Some(format!("{place}/{next}")),
                None => (place + 1 < kinds.len()).then(|| format!("{}/", place + 1)),
            };
            Ok(Part { items, next })
        })
    }
}

/// How the cursor through the polling targets begins; no kind has a blank.
const TARGETS: &str = " /";
