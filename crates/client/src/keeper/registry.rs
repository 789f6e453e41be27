//! Which keys a keeper has, is asking for, or is giving back. One key is in one stage at a time, so
//! that a late release can never end a lease that was granted after it.

use std::{collections::HashMap, sync::Arc};

use lease::{Cause, Holder, Key, Labels, LeaseRef, Refusal, Token};
use tokio::sync::oneshot;

use super::{Loss, state::Holding};

/// Where a key is.
pub(super) enum Stage {
    /// An acquire for it is under way.
    Asked,
    /// Held.
    Held(Arc<Holding>),
    /// Being given back.
    Releasing,
}

/// A lease to give back.
pub(super) struct Release {
    pub lease: LeaseRef,
    /// After this long the authority has expired it by itself.
    pub worth_ms: u64,
    /// Who wants to know, if anybody does.
    pub done: Option<oneshot::Sender<Result<bool, lease::Error>>>,
}

/// Why a key cannot be asked for right now.
pub(super) enum Busy {
    /// The keeper stopped.
    Stopping,
    /// It is being given back: wait a moment.
    Releasing,
    /// This very keeper has it, or is asking for it.
    Here(Refusal),
}

#[derive(Default)]
pub(super) struct Registry {
    stages: HashMap<Key, Stage>,
    releases: Vec<Release>,
    pub stopping: bool,
}

impl Registry {
    /// Puts all keys into [`Stage::Asked`], or none.
    pub fn ask(&mut self, keys: &[Key], holder: &Holder) -> Result<(), Busy> {
        if self.stopping {
            return Err(Busy::Stopping);
        }
        for key in keys {
            let token = match self.stages.get(key) {
                None => continue,
                Some(Stage::Releasing) => return Err(Busy::Releasing),
                Some(Stage::Asked) => Token::ZERO,
                Some(Stage::Held(holding)) => holding.token(),
            };
            return Err(Busy::Here(self.here(key, token, holder)));
        }
        for key in keys {
            self.stages.insert(key.clone(), Stage::Asked);
        }
        Ok(())
    }

    /// The refusal that says: this very holder has it.
    pub fn here(&self, key: &Key, token: Token, holder: &Holder) -> Refusal {
        let labels = self
            .find(key, token)
            .map_or_else(Labels::default, |holding| holding.lease().labels);
        Refusal {
            key: key.clone(),
            cause: Cause::Held {
                holder: holder.clone(),
                token,
                left_ms: 0,
                labels,
            },
        }
    }

    /// The acquire for these keys is over; what it did not get is free again.
    pub fn asked(&mut self, keys: &[Key]) {
        for key in keys {
            if matches!(self.stages.get(key), Some(Stage::Asked)) {
                self.stages.remove(key);
            }
        }
    }

    /// An older holding of the key, under another token, is over: this grant says so.
    pub fn hold(&mut self, key: Key, holding: Arc<Holding>) {
        if let Some(Stage::Held(older)) = self.stages.insert(key, Stage::Held(holding)) {
            older.end(Loss::Stolen);
        }
    }

    /// All that is held, in no order.
    pub fn held(&self) -> impl Iterator<Item = &Arc<Holding>> {
        self.stages.values().filter_map(|stage| match stage {
            Stage::Held(holding) => Some(holding),
            Stage::Asked | Stage::Releasing => None,
        })
    }

    /// The holding of a key, if it is held under this token.
    pub fn find(&self, key: &Key, token: Token) -> Option<&Arc<Holding>> {
        match self.stages.get(key) {
            Some(Stage::Held(holding)) if holding.token() == token => Some(holding),
            _ => None,
        }
    }

    /// Whether anything is known about the key.
    pub fn is_busy(&self, key: &Key) -> bool {
        self.stages.contains_key(key)
    }

    /// Forgets a holding that is over. A newer one of the same key stays.
    pub fn forget(&mut self, holding: &Arc<Holding>) {
        let key = holding.reference().key;
        if let Some(Stage::Held(held)) = self.stages.get(&key)
            && Arc::ptr_eq(held, holding)
        {
            self.stages.remove(&key);
        }
    }

    /// Ends a holding and queues its release, unless there is nothing to give back: the authority
    /// ended it itself, or a newer holding of the key would suffer. Returns whether it was queued.
    pub fn give_back(
        &mut self,
        holding: &Arc<Holding>,
        done: Option<oneshot::Sender<Result<bool, lease::Error>>>,
    ) -> bool {
        let lost = holding.lost();
        holding.end(Loss::Released);
        self.forget(holding);
        let lease = holding.lease();
        // Past its own deadline the lease may still live at the authority, for instance when only the
        // answers of renewals were lost.
        let maybe_live = matches!(lost, None | Some(Loss::Deadline));
        if !maybe_live || self.is_busy(&lease.key) {
            return false;
        }
        self.stages.insert(lease.key.clone(), Stage::Releasing);
        self.releases.push(Release {
            worth_ms: lease.ttl.millis() + lease.on_outage.withheld_millis(),
            lease: LeaseRef::from(&lease),
            done,
        });
        true
    }

    /// Queues the release of a lease that never became a holding.
    pub fn give_back_orphan(&mut self, lease: &lease::Lease) {
        if self.is_busy(&lease.key) && !matches!(self.stages.get(&lease.key), Some(Stage::Asked)) {
            return;
        }
        self.stages.insert(lease.key.clone(), Stage::Releasing);
        self.releases.push(Release {
            worth_ms: lease.ttl.millis() + lease.on_outage.withheld_millis(),
            lease: LeaseRef::from(lease),
            done: None,
        });
    }

    pub fn next_release(&mut self) -> Option<Release> {
        self.releases.pop()
    }

    pub fn released(&mut self, key: &Key) {
        if matches!(self.stages.get(key), Some(Stage::Releasing)) {
            self.stages.remove(key);
        }
    }

    pub fn is_releasing(&self) -> bool {
        self.stages
            .values()
            .any(|stage| matches!(stage, Stage::Releasing))
    }
}
