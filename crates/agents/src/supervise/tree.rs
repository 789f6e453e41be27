//! The processes below this one, found by their parents and ended.

use std::{collections::BTreeMap, fs};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Makes this process the foster parent of every descendant that loses its own, so that none can
/// hide behind `setsid` and a double fork.
pub fn become_subreaper() -> std::io::Result<()> {
    nix::sys::prctl::set_child_subreaper(true).map_err(Into::into)
}

/// Kills everything below this process. Complete when this process is a subreaper
/// ([`become_subreaper`]) and the call is repeated until it returns 0.
pub fn kill_descendants() -> usize {
    signal_descendants(Signal::SIGKILL)
}

/// Sends a signal to everything below this process that still runs, and returns to how many.
pub(super) fn signal_descendants(signal: Signal) -> usize {
    let living = descendants(std::process::id());
    for pid in &living {
        // Gone meanwhile is what we want; not allowed (another user's program) shows in the count.
        let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
    }
    living.len()
}

/// Everything below `root` that has not ended, parents before children.
fn descendants(root: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<(u32, bool)>> = BTreeMap::new();
    for (pid, stat) in processes() {
        children
            .entry(stat.parent)
            .or_default()
            .push((pid, stat.ended));
    }
    let mut found = vec![(root, false)];
    let mut next = 0;
    while let Some((pid, _)) = found.get(next).copied() {
        found.extend(children.remove(&pid).unwrap_or_default());
        next += 1;
    }
    found
        .into_iter()
        .skip(1)
        .filter(|(_, ended)| !ended)
        .map(|(pid, _)| pid)
        .collect()
}

struct Stat {
    parent: u32,
    ended: bool,
}

fn processes() -> Vec<(u32, Stat)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, parse_stat(&text)?))
        })
        .collect()
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The name, in parentheses, may hold anything, also spaces and parentheses.
    let (_, after_name) = text.rsplit_once(") ")?;
    let mut fields = after_name.split(' ');
    let ended = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    Some(Stat { parent, ended })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_does_not_confuse_the_walk() {
        let stat = parse_stat("12 (a) S 1 (b c) R 77 12 12 0 -1").unwrap();
        assert_eq!((stat.parent, stat.ended), (77, false));
        assert!(parse_stat("12 (x) Z 7 1").unwrap().ended);
        assert!(parse_stat("garbage").is_none());
    }
}
