//! What workers published, with the token of each message: the proof of who worked on a camera, and when.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use serde_json::Value;

/// One line that a worker wrote.
#[derive(Clone, Debug)]
pub struct Line(pub Value);

impl Line {
    /// When it was written, in milliseconds on the clock of deadlines.
    pub fn at(&self) -> u64 {
        self.0["at"].as_u64().expect("every line has its time")
    }

    /// The camera that was processed; a worker's other lines are about none.
    pub fn camera(&self) -> Option<&str> {
        self.0["camera"].as_str()
    }

    /// The fencing token that it was published under.
    pub fn token(&self) -> u64 {
        self.0["token"].as_u64().unwrap_or(0)
    }

    /// The worker's name.
    pub fn worker(&self) -> &str {
        self.0["worker"].as_str().unwrap_or_default()
    }

    /// The worker's process.
    pub fn pid(&self) -> i32 {
        let pid = self.0["pid"].as_i64().expect("every line has its process");
        i32::try_from(pid).expect("a process id")
    }
}

/// The file that workers append to, read on from where it was read last.
#[derive(Debug)]
pub(super) struct Published {
    pub file: PathBuf,
    // Locked for one look, never over an await.
    read: Mutex<(u64, Vec<Line>)>,
}

impl Published {
    pub fn new(file: PathBuf) -> Self {
        Self {
            file,
            read: Mutex::default(),
        }
    }

    /// Every line so far, in the order of their arrival.
    pub fn with<T>(&self, look: impl FnOnce(&[Line]) -> T) -> T {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let (offset, lines) = &mut *read;
        if let Ok(mut file) = File::open(&self.file) {
            let mut text = String::new();
            file.seek(SeekFrom::Start(*offset)).expect("a file");
            file.read_to_string(&mut text).expect("a text");
            // What a worker is still writing is read the next time.
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            *offset += whole as u64;
            let fresh = text[..whole].lines();
            lines.extend(fresh.filter_map(|line| serde_json::from_str(line).ok().map(Line)));
        }
        look(lines)
    }
}

/// The lines about cameras, in the order of their times.
fn in_time(lines: &[Line]) -> Vec<&Line> {
    let mut sorted: Vec<&Line> = lines.iter().filter(|it| it.camera().is_some()).collect();
    sorted.sort_by_key(|it| it.at());
    sorted
}

/// What contradicts that each camera was processed by one worker at a time: a token that came back, or
/// two processes that published under the same token at the same time.
pub fn contradictions(lines: &[Line]) -> Vec<String> {
    let mut newest: BTreeMap<&str, &Line> = BTreeMap::new();
    let mut gone: BTreeSet<(String, i32)> = BTreeSet::new();
    let mut found = Vec::new();
    for line in in_time(lines) {
        let camera = line.camera().unwrap_or_default();
        if let Some(before) = newest.get(camera) {
            if line.token() < before.token() {
                found.push(format!("stale: {line:?} after {before:?}"));
            }
            if line.pid() != before.pid() {
                gone.insert((camera.to_owned(), before.pid()));
            }
        }
        if gone.contains(&(camera.to_owned(), line.pid())) {
            found.push(format!(
                "published again after another worker did: {line:?}"
            ));
        }
        newest.insert(camera, line);
    }
    found
}

/// How many lines were published under an older token than one of the same camera before.
pub fn stale(lines: &[Line]) -> usize {
    let mut newest = BTreeMap::new();
    let mut stale = 0;
    for line in in_time(lines) {
        let newest = newest.entry(line.camera()).or_insert(0);
        stale += usize::from(line.token() < *newest);
        *newest = line.token().max(*newest);
    }
    stale
}

/// When a process published something of a camera under one token first, and when last.
#[derive(Clone, Copy)]
struct Tenure {
    token: u64,
    pid: i32,
    from: u64,
    to: u64,
}

impl Tenure {
    fn crosses(&self, other: &Self) -> bool {
        self.pid != other.pid && self.from < other.to && other.from < self.to
    }
}

/// The cameras that two processes worked on at the same time: one published something between two messages
/// that another published under one token.
pub fn overlaps(lines: &[Line]) -> BTreeSet<String> {
    let mut tenures: BTreeMap<&str, Vec<Tenure>> = BTreeMap::new();
    for line in in_time(lines) {
        let (token, pid, at) = (line.token(), line.pid(), line.at());
        let of_camera = tenures
            .entry(line.camera().unwrap_or_default())
            .or_default();
        let known = of_camera
            .iter_mut()
            .find(|it| (it.token, it.pid) == (token, pid));
        match known {
            Some(tenure) => tenure.to = at,
            None => of_camera.push(Tenure {
                token,
                pid,
                from: at,
                to: at,
            }),
        }
    }
    let crossed = |all: &Vec<Tenure>| {
        all.iter()
            .any(|it| all.iter().any(|other| it.crosses(other)))
    };
    let found = tenures.iter().filter(|(_, all)| crossed(all));
    found.map(|(camera, _)| (*camera).to_owned()).collect()
}

/// The longest pause of each camera, in milliseconds.
pub fn longest_gaps(by_camera: &BTreeMap<String, Vec<Line>>) -> Vec<u64> {
    let longest = by_camera.values().map(|lines| {
        let gaps = lines.windows(2);
        let gaps = gaps.map(|pair| pair[1].at().saturating_sub(pair[0].at()));
        gaps.max().unwrap_or(u64::MAX)
    });
    longest.collect()
}

/// The longest pause of any camera, in milliseconds.
pub fn longest_gap(by_camera: &BTreeMap<String, Vec<Line>>) -> u64 {
    let longest = longest_gaps(by_camera).into_iter().max();
    longest.unwrap_or(u64::MAX)
}

/// The last line of one worker process and the first of the next, for every change of a camera's worker.
pub fn changes(by_camera: &BTreeMap<String, Vec<Line>>) -> Vec<[&Line; 2]> {
    let pairs = by_camera.values().flat_map(|lines| lines.windows(2));
    pairs
        .filter(|pair| pair[0].pid() != pair[1].pid())
        .map(|pair| [&pair[0], &pair[1]])
        .collect()
}

/// The gap of each camera that changed its worker process, sorted.
pub fn gaps(by_camera: &BTreeMap<String, Vec<Line>>) -> Vec<u64> {
    let changes = changes(by_camera);
    let gaps = changes.iter().map(|[last, first]| first.at() - last.at());
    let mut gaps: Vec<u64> = gaps.collect();
    gaps.sort_unstable();
    gaps
}

/// Whether every change of a camera's worker process came with a larger token.
pub fn tokens_grow(by_camera: &BTreeMap<String, Vec<Line>>) -> bool {
    let changes = changes(by_camera);
    changes
        .iter()
        .all(|[last, first]| first.token() > last.token())
}

/// What so many of a hundred of these sorted values do not exceed.
pub fn percentile(sorted: &[u64], per_cent: usize) -> u64 {
    let place = (sorted.len() * per_cent).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(at: u64, pid: i32, token: u64) -> Line {
        Line(json!({"at": at, "pid": pid, "camera": "c", "token": token}))
    }

    #[test]
    fn two_processes_at_the_same_time_overlap_and_one_after_the_other_do_not() {
        let after = [
            line(1, 7, 1),
            line(5, 7, 1),
            line(6, 8, 2),
            line(9, 8, 2),
            line(10, 7, 3),
        ];
        assert!(overlaps(&after).is_empty());
        assert_eq!(stale(&after), 0);
        let both = [line(1, 7, 1), line(4, 8, 2), line(5, 7, 1), line(9, 8, 2)];
        assert_eq!(overlaps(&both).len(), 1);
        assert_eq!(stale(&both), 1);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<u64> = (1..=20).collect();
        assert_eq!(percentile(&values, 50), 10);
        assert_eq!(percentile(&values, 95), 19);
        assert_eq!(percentile(&values, 100), 20);
        assert_eq!(percentile(&[], 50), u64::MAX);
    }
}
