//! One script per command (acquires and releases share one, which decides several of them in a
//! step), each a tail behind the parts that it stands on.

use super::{keys::Keys, options::Options};

const FAST: &str = include_str!("lua/fast.lua");
const CORE: &str = include_str!("lua/core.lua");
const DECIDE: &str = include_str!("lua/decide.lua");
const RECORDS: &str = include_str!("lua/records.lua");
const SEALS: &str = include_str!("lua/seals.lua");
const VIEW: &str = include_str!("lua/view.lua");

/// A script and the digest by which Redis knows it.
pub(super) struct Script {
    pub text: String,
    pub sha: String,
}

/// All scripts, with this store's names and settings in front.
pub(super) struct Scripts {
    pub apply: Script,
    pub wait: Script,
    pub abandon: Script,
    pub beat: Script,
    pub renew: Script,
    pub revoke: Script,
    pub depart: Script,
    pub handoff: Script,
    pub commit: Script,
    pub tick: Script,
    pub leases: Script,
    pub check: Script,
    pub record: Script,
    pub snapshot: Script,
    pub history: Script,
    pub history_of: Script,
    pub seal: Script,
    pub sealed: Script,
}

impl Scripts {
    pub fn new(keys: &Keys, options: &Options) -> Self {
        let page = keys.page(options);
        let script = |parts: &[&str]| {
            let text = page.clone() + &parts.concat();
            #[cfg(feature = "conformance")]
            let text = planted_in(text);
            #[cfg(feature = "conformance")]
            let text = match &options.flip {
                Some(flip) => flip.plant(&text),
                None => text,
            };
            let sha = ::redis::Script::new(&text).get_hash().to_owned();
            Script { text, sha }
        };
        Self {
            apply: script(&[FAST, CORE, DECIDE, include_str!("lua/apply.lua")]),
            wait: script(&[CORE, DECIDE, include_str!("lua/wait.lua")]),
            abandon: script(&[CORE, DECIDE, include_str!("lua/abandon.lua")]),
            beat: script(&[CORE, DECIDE, include_str!("lua/beat.lua")]),
            renew: script(&[CORE, DECIDE, include_str!("lua/renew.lua")]),
            revoke: script(&[CORE, DECIDE, include_str!("lua/revoke.lua")]),
            depart: script(&[CORE, DECIDE, include_str!("lua/depart.lua")]),
            handoff: script(&[CORE, DECIDE, include_str!("lua/handoff.lua")]),
            commit: script(&[CORE, DECIDE, RECORDS, include_str!("lua/commit.lua")]),
            tick: script(&[CORE, DECIDE, include_str!("lua/tick.lua")]),
            leases: script(&[CORE, DECIDE, VIEW, include_str!("lua/leases.lua")]),
            check: script(&[CORE, VIEW, include_str!("lua/check.lua")]),
            record: script(&[CORE, RECORDS, include_str!("lua/record.lua")]),
            snapshot: script(&[CORE, VIEW, RECORDS, include_str!("lua/snapshot.lua")]),
            history: script(&[CORE, include_str!("lua/history.lua")]),
            history_of: script(&[CORE, include_str!("lua/history_of.lua")]),
            seal: script(&[CORE, SEALS, include_str!("lua/seal.lua")]),
            sealed: script(&[CORE, SEALS, include_str!("lua/sealed.lua")]),
        }
    }
}

/// The script with the bug of this process in it, if its bug is one of these.
#[cfg(feature = "conformance")]
fn planted_in(text: String) -> String {
    use ::lease::planted::{Bug, planted};
    let bugs = [
        (
            Bug::DeadReplicaServedByRedis,
            "if waiter and is_listening(waiter.replica) then",
            "if waiter then",
        ),
        (Bug::PresenceWithoutExpiry, ", 'PXAT', lapses)", ")"),
    ];
    bugs.into_iter().fold(text, |text, (bug, from, to)| {
        if planted(bug) {
            text.replace(from, to)
        } else {
            text
        }
    })
}
