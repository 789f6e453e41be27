//! The leases that this server granted last, by their ids: releasing one of them needs no read of the store first.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lease::{Lease, LeaseId, LeaseRef};

/// How many are remembered. An id's last bits are the revision of its grant, so these are about the
/// last so many changes.
const ENTRIES: usize = 4_096;

type Entry = Mutex<Option<(LeaseId, LeaseRef)>>;

/// A table with one place per id, in which a newer lease takes an older one's place. It proves nothing:
/// the authority still compares key, token and holder.
pub(crate) struct Recent(Box<[Entry]>);

impl Default for Recent {
    fn default() -> Self {
        Self((0..ENTRIES).map(|_| Mutex::default()).collect())
    }
}

impl Recent {
    /// Remembers a grant.
    pub fn note(&self, lease: &Lease) {
        *self.place(lease.id) = Some((lease.id, LeaseRef::from(lease)));
    }

    /// The lease of this id, if it is remembered; once.
    pub fn take(&self, id: LeaseId) -> Option<LeaseRef> {
        let taken = self.place(id).take_if(|(noted, _)| *noted == id);
        taken.map(|(_, lease)| lease)
    }

    fn place(&self, id: LeaseId) -> MutexGuard<'_, Option<(LeaseId, LeaseRef)>> {
        let [.., high, low] = id.0.into_bytes();
        let place = usize::from(u16::from_be_bytes([high, low])) % self.0.len();
        self.0[place].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
