//! The layouts that Rust and the scripts share, each written once: names here, and functions and patterns
//! made from them in front of every script ([`page`]). Nobody counts positions.

use std::fmt::Write as _;

/// What stands between two facts; none but the last can have it.
pub(super) const MARK: char = '\u{1f}';

/// The same in a script.
const LUA_MARK: &str = r"\31";

macro_rules! facts {
    ($( $(#[$doc:meta])* $name:ident, )+) => {
        /// The facts of a key's newest lease, in the order in which its string holds them.
        pub(super) const FACTS: &[&str] = &[$(stringify!($name)),+];

        /// The facts of a key's newest lease.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Facts<'a> { $( $(#[$doc])* pub $name: &'a str, )+ }

        impl<'a> Facts<'a> {
            /// Reads a key's string.
            pub fn read(text: &'a str) -> Option<Self> {
                let mut parts = text.splitn(FACTS.len(), MARK);
                Some(Self { $( $name: parts.next()?, )+ })
            }
        }
    };
}

facts! {
    /// How the lease ended; nothing while it is live.
    #[expect(dead_code, reason = "only the scripts look at it")]
    ended,
    /// The fencing token.
    token,
    /// The holder's name.
    name,
    /// The holder's incarnation.
    incarnation,
    /// When it expires.
    expires,
    /// The last renewal, or 0.
    renewed,
    /// The ttl.
    ttl,
    /// The outage policy, as a digit.
    policy,
    /// The grace of the policy.
    grace,
    /// A handoff as JSON.
    handoff,
    /// The id of the lease.
    id,
    /// Whether death releases it.
    death,
    /// When it was granted.
    acquired,
    /// Labels as JSON.
    labels,
    /// Any text: the holder's report, or once the lease has ended why.
    rest,
}

/// The arguments of an acquire in a batch, in their order; the number of keys and the keys follow.
pub(super) const REQUEST: &[&str] = &[
    "verb",
    "replica",
    "wait_name",
    "any",
    "name",
    "incarnation",
    "ttl",
    "policy",
    "grace",
    "death",
    "labels",
    "wait",
    "limit",
    "force",
    "count",
    "first",
];

/// Captures one fact.
const CAPTURE: &str = r"([^\31]*)";

/// The pattern of the facts from `first` on, each as `how` wants it, with a mark behind each.
fn pattern(facts: &[&str], how: impl Fn(&str) -> &'static str) -> String {
    facts
        .iter()
        .map(|fact| how(fact).to_owned() + LUA_MARK)
        .collect()
}

/// The place of a fact.
fn place(name: &str) -> usize {
    FACTS.iter().position(|fact| *fact == name).unwrap_or(0)
}

/// What stands in front of every script.
pub(super) fn page() -> String {
    let (owner, terms) = FACTS.split_at(place("expires"));
    let (terms, _rest) = terms.split_at(terms.len() - 1);
    let all = &FACTS[..FACTS.len() - 1];
    let names = FACTS.join(", ");
    let fields: Vec<String> = FACTS
        .iter()
        .map(|fact| format!("{fact} = {fact}"))
        .collect();
    let values: Vec<String> = FACTS.iter().map(|fact| format!("facts.{fact}")).collect();
    let glue = format!(" .. '{LUA_MARK}' .. ");
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "local PACKED = '^{}(.*)$'
local function unpack_facts(packed)
  local {names} = string.match(packed, PACKED)
  return {{{}}}
end
local function pack_facts(facts)
  return {}
end
local function owner_facts({})
  return '{LUA_MARK}' .. {} .. '{LUA_MARK}'
end
local OWNER = '^{}()'
local TERMS = '^{}()'
local RENEWABLE = '^{}.*)$'
local ENDED_TOKEN = '^{}'
",
        pattern(all, |_| CAPTURE),
        fields.join(", "),
        values.join(&glue),
        owner[1..].join(", "),
        owner[1..].join(&glue),
        pattern(owner, |fact| if fact == "ended" { "" } else { CAPTURE }),
        pattern(terms, |fact| if fact == "handoff" {
            "[^\\31]*"
        } else {
            CAPTURE
        }),
        renewable(terms),
        pattern(&FACTS[..=place("token")], |fact| if fact == "token" {
            CAPTURE
        } else {
            "[^\\31]*"
        }),
    );
    for (place, name) in REQUEST.iter().enumerate() {
        let _ = writeln!(page, "local AT_{} = {place}", name.to_uppercase());
    }
    page
}

/// The terms of a lease without a handoff: its expiry, all behind its last renewal, and of that the ttl, the
/// policy and the grace.
fn renewable(terms: &[&str]) -> String {
    let mut text = String::new();
    for fact in terms.iter().take_while(|fact| **fact != "handoff") {
        text += match *fact {
            "renewed" => r"[^\31]*(\31",
            _ => r"([^\31]*)\31",
        };
    }
    text + LUA_MARK
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `renew.lua` puts together again: the owner, the expiry, the renewal, and everything else.
    #[test]
    fn what_a_renewal_changes_stands_behind_the_owner() {
        assert_eq!(
            FACTS[..6],
            [
                "ended",
                "token",
                "name",
                "incarnation",
                "expires",
                "renewed"
            ]
        );
        assert_eq!(FACTS.last(), Some(&"rest"));
    }

    #[test]
    fn a_string_is_read_as_it_is_written() {
        let text = FACTS.join("\u{1f}") + "\u{1f}more";
        let facts = Facts::read(&text).expect("all facts");
        assert_eq!((facts.token, facts.rest), ("token", "rest\u{1f}more"));
        assert!(Facts::read("\u{1f}1").is_none());
    }
}
