//! Who this process is: a name that is made once per process and never used again.

use std::fmt;

use lease::{Clock, Holder, Invalid};

/// Leaves room for the time and the suffix in a holder's name of 255 bytes.
const HOSTNAME_BYTES: usize = 200;

/// `{hostname}-{unix nanoseconds at start}-{8 hex digits}`. A restarted process gets another one, so
/// it can never renew what its predecessor held.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct InstanceId {
    text: String,
    suffix_at: usize,
}

impl InstanceId {
    /// A new id for this process, on this machine, at this moment.
    pub fn generate(clock: &dyn Clock) -> Self {
        let hostname = nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok())
            .unwrap_or_default();
        Self::of(&hostname, clock)
    }

    fn of(hostname: &str, clock: &dyn Clock) -> Self {
        // What is not plain in a hostname would not be plain in a Redis key or a metric either.
        let mut host: String = hostname
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || c == '.' {
                    c
                } else {
                    '-'
                }
            })
            .take(HOSTNAME_BYTES)
            .collect();
        if host.is_empty() {
            host.push_str("unnamed");
        }
        let nanos = clock.unix_nanos();
        let suffix = rand::random::<u32>();
        let front = format!("{host}-{nanos}-");
        Self {
            suffix_at: front.len(),
            text: format!("{front}{suffix:08x}"),
        }
    }

    /// The id itself.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The holder of everything this instance owns. Since the id is new on every start, the
    /// incarnation need only repeat what makes it so.
    pub(super) fn holder(&self) -> Result<Holder, Invalid> {
        Holder::new(&self.text, &self.text[self.suffix_at..])
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lease::UnixMillis;
    use leasehold_clock::Manual;

    #[test]
    fn an_id_tells_host_start_and_a_suffix_and_is_never_made_twice() {
        let clock = Manual::new(UnixMillis::new(1_736_598_400_000));
        let id = InstanceId::of("api-7fd8c9", &clock);
        let rest = id.as_str().strip_prefix("api-7fd8c9-1736598400000000000-");
        let suffix = rest.expect("host and nanoseconds");
        assert_eq!(suffix.len(), 8);
        assert!(suffix.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(id, InstanceId::of("api-7fd8c9", &clock));
        assert_eq!(id.holder().unwrap().name.as_str(), id.as_str());
    }

    #[test]
    fn ids_made_in_the_same_millisecond_tell_their_own_nanoseconds() {
        let clock = leasehold_clock::System;
        let ids: Vec<String> = (0..100)
            .map(|_| InstanceId::of("host", &clock).as_str().to_owned())
            .collect();
        let nanos = |id: &String| id.split('-').nth(1).unwrap().parse::<u128>().unwrap();
        assert!(ids.is_sorted_by_key(nanos), "{ids:?}");
        assert!(ids.iter().any(|id| nanos(id) % 1_000_000 != 0), "{ids:?}");
    }

    #[test]
    fn a_strange_hostname_still_gives_a_valid_holder() {
        let clock = Manual::new(UnixMillis::new(1));
        for hostname in ["", "wüst er host", &"x".repeat(300), "a\nb"] {
            InstanceId::of(hostname, &clock).holder().unwrap();
        }
    }
}
