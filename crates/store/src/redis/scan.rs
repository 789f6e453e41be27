//! Finding the plain keys that other programs write too. Only a scan of the whole key space finds them,
//! so the pages of one list share one scan.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ::redis::cmd;
use lease::{BootMillis, Clock as _, Error};
use leasehold_clock::System;

use super::{Inner, link::Repeat, wire};

/// How long the pages after the first may go by its scan.
const FOUND_MS: u64 = 10_000;
/// How many keys one `SCAN` looks at: so that no other command waits long.
const COUNT: usize = 1_000;

/// What the last scan for each prefix found, and when.
type Found = HashMap<String, (BootMillis, Arc<BTreeSet<String>>)>;

/// The last scans.
#[derive(Default)]
pub(super) struct Scans {
    found: Mutex<Found>,
    clock: System,
}

impl Scans {
    /// Poisoning is no concern: every critical section leaves a whole value behind.
    fn lock(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recent(&self, prefix: &str) -> Option<Arc<BTreeSet<String>>> {
        let now = self.clock.boot();
        let mut found = self.lock();
        found.retain(|_, (at, _)| now.since(*at) < FOUND_MS);
        found.get(prefix).map(|(_, ids)| ids.clone())
    }

    /// This replica changed what a scan would find.
    pub fn forget(&self, prefix: &str) {
        self.lock().remove(prefix);
    }
}

impl Inner {
    /// The ids of plain keys that begin with this. A page that is not a list's first may go by the scan
    /// that was made for the first.
    pub(super) async fn plain_ids(
        &self,
        prefix: &str,
        is_first_page: bool,
    ) -> Result<Arc<BTreeSet<String>>, Error> {
        if !is_first_page && let Some(ids) = self.scans.recent(prefix) {
            return Ok(ids);
        }
        let at = self.scans.clock.boot();
        let ids = Arc::new(self.scan(prefix).await?);
        self.scans
            .lock()
            .insert(prefix.to_owned(), (at, ids.clone()));
        Ok(ids)
    }

    async fn scan(&self, prefix: &str) -> Result<BTreeSet<String>, Error> {
        let pattern = prefix.replace('[', "\\[") + "*";
        let mut ids = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut command = cmd("SCAN");
            command
                .arg(&cursor)
                .arg("MATCH")
                .arg(&pattern)
                .arg("COUNT")
                .arg(COUNT);
            let reply = self.link.send(&command, Repeat::Safe).await;
            let reply = reply.map_err(|failure| failure.error)?;
            let [next, keys] = wire::items(&reply) else {
                return Err(wire::broken("a scan"));
            };
            ids.extend(
                wire::items(keys)
                    .iter()
                    .filter_map(|key| wire::text(key).strip_prefix(prefix).map(str::to_owned)),
            );
            cursor = wire::text(next);
            if cursor == "0" {
                return Ok(ids);
            }
        }
    }
}
