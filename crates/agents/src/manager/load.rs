//! How busy this host is: the share of its processor time that is in use, smoothed so that a short peak
//! does not show.

use std::fs;

/// Since the host started, in its own ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ticks {
    all: u64,
    idle: u64,
}

/// Looked at again and again.
#[derive(Default)]
pub(super) struct HostLoad {
    last: Option<Ticks>,
    /// From 0 to 1.
    smoothed: f64,
}

/// How many looks a change takes to show by two thirds.
const LOOKS: f64 = 40.0;

impl HostLoad {
    /// Looks again: how busy the host is, in thousandths.
    pub fn look(&mut self) -> Option<u32> {
        self.after(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn after(&mut self, stat: &str) -> Option<u32> {
        let now = ticks(stat)?;
        let before = self.last.replace(now)?;
        let all = now.all.saturating_sub(before.all);
        let idle = now.idle.saturating_sub(before.idle).min(all);
        if all > 0 {
            let busy = (all - idle) as f64 / all as f64;
            self.smoothed += (busy - self.smoothed) / LOOKS;
        }
        #[expect(clippy::cast_sign_loss, reason = "between 0 and 1")]
        let per_mille = (self.smoothed * 1000.0).round() as u32;
        Some(per_mille)
    }
}

/// The first line: user, nice, system, idle, iowait, irq, softirq, steal; what guests use is in user.
fn ticks(stat: &str) -> Option<Ticks> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .map_while(|field| field.parse().ok())
        .collect();
    let idle = fields.get(3)?.saturating_add(*fields.get(4)?);
    Some(Ticks {
        all: fields.iter().fold(0, |sum, it| sum.saturating_add(*it)),
        idle,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_peak_hardly_shows_and_a_long_one_does() {
        let mut load = HostLoad::default();
        let (mut busy, mut idle) = (1_000, 5_000);
        let mut look = |more_busy: u64, more_idle: u64, times: usize| {
            let mut last = None;
            for _ in 0..times {
                busy += more_busy;
                idle += more_idle;
                last = load.after(&format!("cpu  {busy} 0 0 {idle} 0 0 0 0 7 7\ncpu0 1 1\n"));
            }
            last
        };
        assert_eq!(look(0, 0, 1), None, "nothing to compare with");
        assert_eq!(look(0, 0, 1), Some(0), "no time has passed");
        assert!(look(100, 0, 4) < Some(100));
        assert!(look(100, 0, 200) > Some(950));
        let half = look(50, 50, 400).unwrap();
        assert!((490..=510).contains(&half), "{half}");
    }

    #[test]
    fn what_cannot_be_read_says_nothing() {
        let mut load = HostLoad::default();
        for text in ["", "cpu", "cpu  1 2", "cpu  a b c d e", "intr 1 2 3 4 5 6"] {
            assert_eq!(load.after(text), None, "{text:?}");
        }
        assert!(load.look().is_none() && load.look().is_some(), "this host");
    }
}
