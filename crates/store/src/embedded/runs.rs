//! Runs of keys, each in order, read as one.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
    mem,
    sync::Arc,
};

use lease::{
    Key,
    order::{self, Beginning},
};

/// Keys in order, each once.
pub(super) type Run = Arc<Vec<Key>>;

/// The keys of many runs in order, each once.
#[derive(Default)]
pub(super) struct Merge {
    runs: Vec<Run>,
    /// The next key of each run behind its beginning, which run, and its place there.
    next: BinaryHeap<Reverse<(Beginning, Key, usize, usize)>>,
}

impl Merge {
    /// Takes in what a run has behind a key.
    pub fn add(&mut self, run: Run, after: &str) {
        let place = run.partition_point(|key| key.as_str() <= after);
        if let Some(key) = run.get(place).cloned() {
            let next = (order::beginning(&key), key, self.runs.len(), place);
            self.next.push(Reverse(next));
            self.runs.push(run);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.next.is_empty()
    }
}

impl Iterator for Merge {
    type Item = Key;

    fn next(&mut self) -> Option<Key> {
        let mut found: Option<Key> = None;
        while let Some(mut top) = self.next.peek_mut() {
            let Reverse((beginning, key, which, place)) = &mut *top;
            if found.as_ref().is_some_and(|found| found != key) {
                break;
            }
            *place += 1;
            found = Some(match self.runs[*which].get(*place) {
                Some(behind) => {
                    *beginning = order::beginning(behind);
                    mem::replace(key, behind.clone())
                }
                None => PeekMut::pop(top).0.1,
            });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ids: &[u32]) -> Run {
        let key = |id| Key::new("job", &format!("a-long-name-{id}")).unwrap();
        Arc::new(ids.iter().map(key).collect())
    }

    #[test]
    fn each_key_comes_once_and_in_order_from_behind_where_its_run_begins() {
        let mut merge = Merge::default();
        merge.add(run(&[1, 3, 5, 7]), "");
        merge.add(run(&[2, 3, 7]), "job:a-long-name-2");
        merge.add(run(&[1, 2]), "job:a-long-name-2");
        merge.add(run(&[]), "");
        assert!(!merge.is_empty());
        assert_eq!(merge.by_ref().collect::<Vec<_>>(), *run(&[1, 3, 5, 7]));
        assert!(merge.is_empty());
    }
}
