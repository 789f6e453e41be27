//! Processor time and memory of processes, as the kernel counts them.

use anyhow::Context as _;

/// The kernel's unit of processor time in `/proc`, fixed by its interface on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// The processes of one server.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    first: Vec<u32>,
    children: bool,
}

impl Processes {
    /// A server that is one process.
    pub fn one(pid: u32) -> Self {
        Self {
            first: vec![pid],
            children: false,
        }
    }

    /// A server that has a process per connection.
    pub fn with_children(pid: u32) -> Self {
        Self {
            first: vec![pid],
            children: true,
        }
    }

    /// This process.
    pub fn this() -> Self {
        Self::one(std::process::id())
    }

    /// Both servers together.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.first.extend(&other.first);
        self.children |= other.children;
        self
    }

    /// Whether this process is among them.
    pub fn has_this(&self) -> bool {
        self.first.contains(&std::process::id())
    }

    fn all(&self) -> Vec<u32> {
        let mut all = self.first.clone();
        if self.children {
            // The kernel's own list of children leaves some out when it is long.
            let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
            let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            all.extend(pids.filter(|pid| parent(*pid).is_some_and(|it| self.first.contains(&it))));
        }
        all
    }

    /// Processor seconds so far, of children that have ended too.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let mut sum = 0.0;
        for pid in self.all() {
            // A child may have ended meanwhile.
            sum += cpu_seconds(pid).or_else(|error| {
                if self.first.contains(&pid) {
                    Err(error)
                } else {
                    Ok(0.0)
                }
            })?;
        }
        Ok(sum)
    }

    /// Resident memory in bytes. What several processes share counts once.
    pub fn resident_bytes(&self) -> anyhow::Result<u64> {
        let all = self.all();
        let shared = all.len() > 1;
        let mut sum = 0;
        for pid in all {
            sum += if shared {
                field(&format!("/proc/{pid}/smaps_rollup"), "Pss:").unwrap_or(0)
            } else {
                field(&format!("/proc/{pid}/status"), "VmRSS:")?
            };
        }
        Ok(sum)
    }
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(1)?.parse().ok()
}

fn field(path: &str, name: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(path)?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .with_context(|| format!("no {name} in {path}"))?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kilobytes * 1024)
}

fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, after_name) = stat.rsplit_once(") ").context("an odd /proc/PID/stat")?;
    // Own and ended children's user and system time are fields 14 to 17; the name was the second.
    let ticks = after_name
        .split(' ')
        .skip(11)
        .take(4)
        .map(|ticks| ticks.parse::<f64>().unwrap_or_default())
        .sum::<f64>();
    Ok(ticks / TICKS_PER_SECOND)
}
