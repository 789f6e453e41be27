//! What the writer has the database decide: the kernel's commands, and what a replica does by itself.
//! It stays a value until the statement is sent.

use lease::{Acquire, Command, Key, LeaseRef, Renewals};
use serde::{Serialize, Serializer, ser::SerializeMap as _};

use super::{expiry::Forget, fast_path};

/// One item of a batch.
#[derive(Clone, Debug)]
pub(super) enum Task {
    /// A caller's command.
    Command(Command),
    /// The waiter with this ticket went away.
    Abandon(u64),
    /// Look after the waits of this replica.
    Wake,
    /// Expire at most so many leases.
    Tick(u32),
    /// Forget a part of what is too old.
    Forget(Forget),
}

impl From<Command> for Task {
    fn from(command: Command) -> Self {
        Self::Command(command)
    }
}

/// As `functions/apply.sql` reads it: the name, and what it is about.
impl Serialize for Task {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        match self {
            Self::Command(command) => map.serialize_entry(command.name(), command)?,
            Self::Abandon(ticket) => map.serialize_entry("abandon", ticket)?,
            Self::Wake => map.serialize_entry("wake", &true)?,
            Self::Tick(most) => map.serialize_entry("tick", most)?,
            Self::Forget(forget) => map.serialize_entry("forget", forget)?,
        }
        map.end()
    }
}

impl Task {
    /// Gives a lease back.
    pub fn release(lease: LeaseRef) -> Self {
        Self::Command(Command::Release(lease))
    }

    /// How many keys it is about, as far as is known.
    pub fn keys(&self) -> usize {
        /// How much it changes is not known, so it goes alone.
        const MANY: usize = usize::MAX / 2;
        let wanted = |acquire: &Acquire| acquire.want.keys().len();
        match self {
            Self::Command(Command::Acquire(request)) => wanted(request),
            Self::Command(Command::Commit(changes)) => {
                let acquired = changes.acquire.as_ref().map_or(0, wanted);
                changes.writes.len() + changes.release.len() + 1 + acquired
            }
            Self::Command(Command::Renew(request)) => match &request.leases {
                Renewals::All => MANY,
                Renewals::These(renewals) => renewals.len(),
            },
            Self::Command(Command::Keep(_) | Command::Depart(_)) => MANY,
            Self::Command(Command::Release(_) | Command::Revoke(_) | Command::Handoff(_))
            | Self::Abandon(_)
            | Self::Wake
            | Self::Tick(_)
            | Self::Forget(_) => 1,
        }
    }

    /// How long it may wait, if it may.
    pub fn wait_ms(&self) -> Option<u64> {
        match self {
            Self::Command(Command::Acquire(request)) if request.wait_ms > 0 => {
                Some(request.wait_ms)
            }
            _ => None,
        }
    }

    /// The key of a command for the fast path.
    pub fn fast_key(&self) -> Option<&Key> {
        match self {
            Self::Command(Command::Acquire(request)) => fast_path::key_of(request),
            Self::Command(Command::Release(lease)) => Some(&lease.key),
            _ => None,
        }
    }
}
