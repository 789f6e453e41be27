//! Every key that this store uses: what is in it and how long it lives. Other programs read and
//! write the first four, so those are exact; all of them stand behind the prefix.
//!
//! | key | type | what | lifetime |
//! |---|---|---|---|
//! | `poll:lease:<id>` | string | the holder's name, for kind `poll` | the lease's |
//! | `poll:node:<id>` | string | `1`, for kind `node` (presence) | the lease's |
//! | `poll:fence:<id>` | string | the last token, for kind `poll` | for ever |
//! | `session:<id>` | string | a polling target as JSON: the record `target:<id>` | until removed |
//! | `lease:<kind>:<id>` | string | the holder's name, for every other kind | the lease's |
//! | `lease:leadership:expiry` | string | the replica that announces what lapsed | [`LEADER_TTL_MS`] |
//! | `fence:<kind>:<id>` | string | the last token, for every other kind | until folded into the floor |
//! | `leasehold:meta` | hash | revision, its base, last time, floor, waits, last ticket | for ever |
//! | `leasehold:meta-parked` | hash | the same, while `leasehold:meta` says that the store is closed | a move |
//! | `leasehold:events` | stream | the history; an entry's id is its revision | the newest ones |
//! | `leasehold:last` | sorted set | keys by the revision of their newest event; each event names the one before it of its key | as those events |
//! | `leasehold:seals` | stream | digests over the history; an entry's id is the last revision it covers | as those events |
//! | `leasehold:lease:<kind>:<id>` | string | the other facts of a key's newest lease, see [`Facts`](super::layout::Facts) | as its fence, at most |
//! | `leasehold:expiry` | sorted set | keys by the time at which they lapse, or earlier | live leases |
//! | `leasehold:index` | sorted set | keys in their order | live leases |
//! | `leasehold:holder:<name>` | sorted set | `<incarnation>\|<kind>:<id>` | live leases |
//! | `leasehold:idle` | sorted set | keys without a lease, by when it ended | until forgotten |
//! | `leasehold:queue:<kind>:<id>` | sorted set | waits by ticket | while somebody waits |
//! | `leasehold:waiting` | hash | waits with their requests | while they wait |
//! | `leasehold:deadlines` | sorted set | waits by their end | while they wait |
//! | `leasehold:answers:<replica>` | hash | answers that a replica has not seen yet | an hour |
//! | `leasehold:alive` | sorted set | replicas by when they were last heard of | an hour |
//! | `leasehold:records:<kind>` | hash | `<revision> <JSON>` by id | until removed |
//! | `leasehold:record-ids:<kind>` | sorted set | ids in their order | until removed |
//! | `leasehold:record-kinds` | set | kinds that ever had a record | for ever |
//! | `leasehold:targets` | hash | digest and revision of the targets that we wrote | until removed |
//!
//! Channels: `leasehold:news` (every event as it happens), `leasehold:wake:<replica>` (answers of
//! waits).

use std::fmt::Write;

use lease::{Invalid, engine};

use super::{layout, options::Options};
use crate::page;

/// How long the leadership of expiry lasts without renewal: also how late an expiry can be
/// announced when the leader was killed.
pub(super) const LEADER_TTL_MS: u64 = 1000;

/// A replica that was silent for this long gets no grants for its waiters.
const STALE_MS: u64 = 5000;

/// How often a key that another program holds is looked at while somebody waits for it.
const FOREIGN_LOOK_MS: u64 = 250;

/// Where plain names begin: nothing on a plain server, a hash tag on a cluster, so that all keys
/// of one command share a slot.
pub(super) const CLUSTER_PREFIX: &str = "{leasehold}:";

/// The names in front of which a prefix stands.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    /// Checks the prefix: it is written into scripts and patterns.
    pub fn new(prefix: &str) -> Result<Self, Invalid> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:_-{}".contains(&byte);
        if prefix.len() > 64 || !prefix.bytes().all(plain) {
            return Err(Invalid::new(
                "prefix",
                "at most 64 characters of A-Z a-z 0-9 . : _ - { }",
            ));
        }
        Ok(Self {
            prefix: prefix.to_owned(),
        })
    }

    /// The counters; also what says where on a cluster a command goes.
    pub fn meta(&self) -> String {
        format!("{}leasehold:meta", self.prefix)
    }

    /// The channel of the live stream.
    pub fn news(&self) -> String {
        format!("{}leasehold:news", self.prefix)
    }

    /// The channel on which a replica hears about its waiters.
    pub fn wake(&self, replica: &str) -> String {
        format!("{}leasehold:wake:{replica}", self.prefix)
    }

    /// What the plain keys of the documented kinds begin with: other programs may hold some, so a
    /// list of them needs a scan.
    pub fn listed(&self, kind: &str) -> String {
        match kind {
            "poll" => format!("{}poll:lease:", self.prefix),
            _ => format!("{}poll:node:", self.prefix),
        }
    }

    /// What the plain keys of polling targets begin with.
    pub fn targets(&self) -> String {
        format!("{}session:", self.prefix)
    }

    /// What everything that only we use begins with.
    pub fn own(&self) -> String {
        format!("{}leasehold:", self.prefix)
    }

    /// The history.
    pub fn events(&self) -> String {
        format!("{}leasehold:events", self.prefix)
    }

    /// The kinds that ever had a record.
    pub fn record_kinds(&self) -> String {
        format!("{}leasehold:record-kinds", self.prefix)
    }

    /// The ids of one kind of records.
    pub fn record_ids(&self, kind: &str) -> String {
        format!("{}leasehold:record-ids:{kind}", self.prefix)
    }

    /// The polling targets that we wrote.
    pub fn own_targets(&self) -> String {
        format!("{}leasehold:targets", self.prefix)
    }

    /// What the tokens of polling targets begin with: those stay for ever.
    pub fn fences(&self) -> String {
        format!("{}poll:fence:", self.prefix)
    }

    /// What the plain keys of all other kinds begin with.
    pub fn leases(&self) -> String {
        format!("{}lease:", self.prefix)
    }

    /// The same page for the scripts: names, and the settings they go by.
    pub fn page(&self, options: &Options) -> String {
        let mut page = String::new();
        for (name, key) in [
            ("META", "leasehold:meta"),
            ("EVENTS", "leasehold:events"),
            ("LAST", "leasehold:last"),
            ("SEALS", "leasehold:seals"),
            ("SIDE", "leasehold:lease:"),
            ("EXPIRY", "leasehold:expiry"),
            ("INDEX", "leasehold:index"),
            ("HOLDER", "leasehold:holder:"),
            ("IDLE", "leasehold:idle"),
            ("QUEUE", "leasehold:queue:"),
            ("WAITING", "leasehold:waiting"),
            ("DEADLINES", "leasehold:deadlines"),
            ("ANSWERS", "leasehold:answers:"),
            ("ALIVE", "leasehold:alive"),
            ("RECORDS", "leasehold:records:"),
            ("RECORD_IDS", "leasehold:record-ids:"),
            ("RECORD_KINDS", "leasehold:record-kinds"),
            ("TARGETS", "leasehold:targets"),
            ("TARGET", "session:"),
            ("LEADER", "lease:leadership:expiry"),
            ("NEWS", "leasehold:news"),
            ("WAKE", "leasehold:wake:"),
            ("POLL_LEASE", "poll:lease:"),
            ("POLL_FENCE", "poll:fence:"),
            ("POLL_NODE", "poll:node:"),
            ("LEASE", "lease:"),
            ("FENCE", "fence:"),
        ] {
            declare(&mut page, name, &format!("'{}{key}'", self.prefix));
        }
        let renewals = match options.renewals {
            engine::RenewalEvents::Off => "'off'",
            engine::RenewalEvents::Live => "'live'",
            engine::RenewalEvents::Kept => "'kept'",
        };
        declare(&mut page, "RENEWALS", renewals);
        for (name, number) in [
            ("HISTORY", options.history),
            ("IDLE_KEYS", options.idle_keys as u64),
            ("IDLE_MS", options.idle_ms),
            ("LEADER_TTL", LEADER_TTL_MS),
            ("STALE", STALE_MS),
            ("FOREIGN_LOOK", FOREIGN_LOOK_MS),
        ]
        .into_iter()
        .chain(page::numbers())
        {
            declare(&mut page, name, &number.to_string());
        }
        for (name, sentence) in page::sentences() {
            declare(&mut page, name, &format!("'{sentence}'"));
        }
        page.push_str(NAMES);
        page.push_str(page::LEASE_ID_LUA);
        page.push_str(&layout::page());
        page
    }
}

/// The plain key and the fence of a lease's key.
const NAMES: &str = "
local function names(key)
  local head = string.sub(key, 1, 5)
  if head == 'poll:' then
    local id = string.sub(key, 6)
    return POLL_LEASE .. id, POLL_FENCE .. id
  end
  if head == 'node:' then return POLL_NODE .. string.sub(key, 6), FENCE .. key end
  return LEASE .. key, FENCE .. key
end
";

fn declare(page: &mut String, name: &str, value: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(page, "local {name} = {value}");
}
