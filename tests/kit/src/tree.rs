//! Signals to a process and everything below it.
//!
//! A process group is not enough: PostgreSQL gives each of its processes a session of its own.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::janitor;

/// Longer than the kernel takes to end a process that holds a lot of memory.
const GONE_TIMEOUT: Duration = Duration::from_secs(5);

/// Stops, resumes or kills a whole tree. Processes that are gone already are no error.
///
/// After a kill all of them are gone (or wait to be reaped) when this returns: their ports are
/// free and their files closed.
pub(crate) fn signal(root: u32, signal: Signal) {
    if signal == Signal::SIGCONT {
        // From the leaves up, so that a parent does not wake to children that look dead.
        for pid in collect(root).into_iter().rev() {
            send(pid, signal);
        }
        return;
    }
    // Parents first are frozen, so that they start nothing while the tree is walked; repeated
    // until the walk finds nobody new.
    let mut frozen = Vec::new();
    loop {
        let new: Vec<u32> = collect(root)
            .into_iter()
            .filter(|pid| !frozen.contains(pid))
            .collect();
        if new.is_empty() {
            break;
        }
        for pid in &new {
            send(*pid, Signal::SIGSTOP);
        }
        frozen.extend(new);
    }
    if signal != Signal::SIGSTOP {
        for pid in &frozen {
            send(*pid, signal);
            send(*pid, Signal::SIGCONT);
        }
    }
    if signal == Signal::SIGKILL {
        wait_until_gone(&frozen);
    }
}

fn wait_until_gone(pids: &[u32]) {
    let step = Duration::from_millis(2);
    let mut waited = Duration::ZERO;
    while waited < GONE_TIMEOUT && pids.iter().any(|pid| is_alive(*pid)) {
        thread::sleep(step);
        waited += step;
    }
}

fn is_alive(pid: u32) -> bool {
    let Some((state, _)) = stat(pid) else {
        return false;
    };
    // A process that was killed and not yet reaped holds nothing any more, unless other threads of
    // it are still on their way out.
    let is_dead = matches!(state.as_str(), "Z" | "X");
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    !is_dead || threads() > 1
}

/// One signal to one process.
pub(crate) fn send(pid: u32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
}

/// Kills every process that carries `mark` in its environment, wherever it is by now.
pub(crate) fn kill_marked(mark: &str) {
    // The end of the value belongs to the pattern: 1.2 must not match 1.23.
    let pattern = format!("{}={mark}\0", janitor::MARK).into_bytes();
    // Again, because one of them may have started another while the list was read.
    for _ in 0..3 {
        let mut found = Vec::new();
        for (pid, _) in processes() {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            if environment
                .windows(pattern.len())
                .any(|window| window == pattern)
            {
                send(pid, Signal::SIGKILL);
                found.push(pid);
            }
        }
        if found.is_empty() {
            return;
        }
        wait_until_gone(&found);
    }
}

/// `root` and its descendants, parents before children.
fn collect(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (pid, parent) in processes() {
        children.entry(parent).or_default().push(pid);
    }
    let mut found = vec![root];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        found.extend(children.remove(&pid).unwrap_or_default());
        next += 1;
    }
    found
}

/// Every process of the machine with its parent.
fn processes() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let (_, parent) = stat(pid)?;
            Some((pid, parent))
        })
        .collect()
}

/// A process's state and parent.
fn stat(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything, also spaces and parentheses.
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split(' ');
    let state = fields.next()?.to_owned();
    let parent = fields.next()?.parse().ok()?;
    Some((state, parent))
}
