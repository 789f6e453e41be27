//! How long things take and how they end, by their names: found again without making the labels anew, which cost more
//! than the counting.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
    time::Duration,
};

use prometheus_client::metrics::{counter::Counter, histogram::Histogram};

/// The figures of some names, each of which ends in one of a few ways.
pub(super) struct Timed<E> {
    // Written once for each name and end, of which there are few.
    known: RwLock<HashMap<Box<str>, Figures<E>>>,
}

struct Figures<E> {
    seconds: Histogram,
    ends: Vec<(E, Counter)>,
}

impl<E> Default for Timed<E> {
    fn default() -> Self {
        Self {
            known: RwLock::default(),
        }
    }
}

impl<E: Copy + PartialEq> Timed<E> {
    /// One of this name took so long and ended so. What is not known yet is made.
    pub fn note(
        &self,
        name: &str,
        end: E,
        took: Duration,
        seconds: impl FnOnce() -> Histogram,
        counter: impl FnOnce() -> Counter,
    ) {
        let took = took.as_secs_f64();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let found = known.get(name).and_then(|figures| {
            let (_, counter) = figures.ends.iter().find(|(it, _)| *it == end)?;
            Some((&figures.seconds, counter))
        });
        if let Some((seconds, counter)) = found {
            seconds.observe(took);
            counter.inc();
            return;
        }
        drop(known);
        let (seconds, counter) = (seconds(), counter());
        seconds.observe(took);
        counter.inc();
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let figures = known.entry(name.into()).or_insert_with(|| Figures {
            seconds,
            ends: Vec::new(),
        });
        if figures.ends.iter().all(|(it, _)| *it != end) {
            figures.ends.push((end, counter));
        }
    }
}
