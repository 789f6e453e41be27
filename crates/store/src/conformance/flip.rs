//! Planted bugs: a piece of a script or of a statement replaced by a wrong one, to show that the tests
//! notice. Stores take one as an option that only exists with the suite.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// One planted bug.
#[derive(Clone, Debug)]
pub struct Flip {
    from: &'static str,
    to: &'static str,
    found: Arc<AtomicBool>,
}

impl Flip {
    /// Replaces every `from` by `to`.
    pub fn new(from: &'static str, to: &'static str) -> Self {
        Self {
            from,
            to,
            found: Arc::default(),
        }
    }

    /// The text with the bug in it.
    pub fn plant(&self, text: &str) -> String {
        if text.contains(self.from) {
            self.found.store(true, Ordering::Relaxed);
        }
        text.replace(self.from, self.to)
    }

    /// Whether any text had the place: otherwise the bug was never planted.
    pub fn was_planted(&self) -> bool {
        self.found.load(Ordering::Relaxed)
    }
}

impl PartialEq for Flip {
    fn eq(&self, other: &Self) -> bool {
        (self.from, self.to) == (other.from, other.to)
    }
}

impl Eq for Flip {}
