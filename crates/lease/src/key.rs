//! What is owned: a kind and an id, written `kind:id`.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize, Serializer};

use crate::{
    Invalid,
    text::{is_plain, is_visible},
};

/// The kinds that belong to the server's own agents: leadership, presence of workers, nodes and replicas,
/// tuners, services, sessions, credentials, logins and the authority's own notes. An ordinary caller that could acquire
/// one of them could stop publishing, take another tenant's tuners or end its sessions.
///
/// Runners and cameras are not among them: they are taken by ordinary callers, and their own rules say
/// by which.
pub const RESERVED_KINDS: [&str; 10] = [
    "authority",
    CREDENTIAL,
    "leadership",
    LOGIN,
    "node",
    REPLICA,
    "service",
    "session",
    "tuner",
    "worker",
];

/// The kind of a credential's record.
pub const CREDENTIAL: &str = "credential";
/// The kind of a login's record.
pub const LOGIN: &str = "login";
/// The kind of a server's presence, where several share a store.
pub const REPLICA: &str = "replica";
/// The kinds whose records only the servers themselves read: they hold digests of secrets.
pub const PRIVATE_KINDS: [&str; 2] = [CREDENTIAL, LOGIN];

/// What is owned, or the name of a record: a *kind* and an *id*, split at the first colon.
///
/// ```
/// let key: leasehold_lease::Key = "service:1:0:19:132F".parse().unwrap();
/// assert_eq!((key.kind(), key.id()), ("service", "1:0:19:132F"));
/// assert!("no-colon".parse::<leasehold_lease::Key>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Key(Arc<str>);

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl Key {
    /// The longest kind, in bytes.
    pub const MAX_KIND_BYTES: usize = 64;
    /// The longest id, in bytes.
    pub const MAX_ID_BYTES: usize = 512;

    /// Puts a kind and an id together.
    pub fn new(kind: &str, id: &str) -> Result<Self, Invalid> {
        check_kind(kind)?;
        if id.is_empty() || id.len() > Self::MAX_ID_BYTES || !is_visible(id) {
            return Err(Invalid::new(
                "id",
                "1 to 512 bytes without white space or control characters",
            ));
        }
        Ok(Self(format!("{kind}:{id}").into()))
    }

    /// The part before the first colon.
    pub fn kind(&self) -> &str {
        self.split().0
    }

    /// The part after the first colon.
    pub fn id(&self) -> &str {
        self.split().1
    }

    /// Whether only the server's own agents may own it: see [`RESERVED_KINDS`].
    pub fn is_reserved(&self) -> bool {
        RESERVED_KINDS.contains(&self.kind())
    }

    /// Whether only the servers themselves read its record: see [`PRIVATE_KINDS`].
    pub fn is_private(&self) -> bool {
        PRIVATE_KINDS.contains(&self.kind())
    }

    /// `kind:id`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn split(&self) -> (&str, &str) {
        // Kinds are short: a search that prepares itself takes longer.
        let colon = self.0.bytes().position(|byte| byte == b':');
        let colon = colon.expect("a key was made with its colon");
        (&self.0[..colon], &self.0[colon + 1..])
    }
}

/// Checks a kind that stands alone, as in a query.
pub fn check_kind(kind: &str) -> Result<(), Invalid> {
    if kind.is_empty() || kind.len() > Key::MAX_KIND_BYTES || !is_plain(kind) {
        return Err(Invalid::new(
            "kind",
            "1 to 64 characters of A-Z a-z 0-9 . _ -",
        ));
    }
    Ok(())
}

impl FromStr for Key {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, id) = text.split_once(':').ok_or(Invalid::new(
            "key",
            "KIND:ID, for example camera:front-door",
        ))?;
        Self::new(kind, id)
    }
}

impl TryFrom<String> for Key {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.0.as_ref().to_owned()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl std::borrow::Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}
