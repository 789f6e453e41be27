//! Who owns: a stable name plus an incarnation that is new on every process start.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::text::{is_plain, is_visible, text};

text! {
    /// The stable part of a holder: survives restarts of the process behind it.
    HolderName, "holder", 1..=255, is_visible,
    "1 to 255 bytes without white space or control characters"
}

text! {
    /// The part of a holder that is new on every process start, so that a restarted process
    /// can never renew what its predecessor held.
    Incarnation, "incarnation", 1..=64, is_plain,
    "1 to 64 characters of A-Z a-z 0-9 . _ -"
}

/// Who owns a lease. Two processes that were configured with one name still differ in their
/// incarnation, and only the same name *and* incarnation, within the same tenant, count as the same
/// holder (L2).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// The stable name.
    pub name: HolderName,
    /// This process start.
    pub incarnation: Incarnation,
}

impl Holder {
    /// Checks both parts.
    pub fn new(name: &str, incarnation: &str) -> Result<Self, crate::Invalid> {
        Ok(Self {
            name: HolderName::new(name)?,
            incarnation: Incarnation::new(incarnation)?,
        })
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.name, self.incarnation)
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whose process it is, in full: namesakes of two tenants are two holders, and so are two starts of
/// one program (L2). Whatever is kept per holder is kept by this.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identity {
    /// The tenant that its leases are bound to, if any.
    pub tenant: Option<Arc<str>>,
    /// Its name and incarnation.
    pub holder: Holder,
}

impl Identity {
    /// The holder within a tenant, or outside of all.
    pub fn new(tenant: Option<&str>, holder: Holder) -> Self {
        Self {
            tenant: tenant.map(Into::into),
            holder,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tenant {
            Some(tenant) => write!(f, "{tenant}/{}", self.holder),
            None => fmt::Display::fmt(&self.holder, f),
        }
    }
}
