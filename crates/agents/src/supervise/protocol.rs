//! What supervisor and guardian say to each other: one line of words each, so that it can be read
//! with `strace`, and no message is larger than what a pipe writes in one piece.

use super::{Cause, End, Exit};

/// From the supervisor to the guardian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// Ask the tree to end at the first moment and kill it at the second: milliseconds on
    /// `CLOCK_BOOTTIME`. Ignored once the tree is being stopped.
    Deadline {
        /// When to ask.
        ask_at_ms: u64,
        /// When to kill.
        kill_at_ms: u64,
    },
    /// Pass this signal on to the program's process group.
    Signal(i32),
    /// Ask the tree to end now, and kill it after so many milliseconds (0: immediately).
    Stop {
        /// How long it may take.
        grace_ms: u64,
    },
}

impl Order {
    pub(super) fn to_line(self) -> String {
        match self {
            Self::Deadline {
                ask_at_ms,
                kill_at_ms,
            } => format!("deadline {ask_at_ms} {kill_at_ms}\n"),
            Self::Signal(signal) => format!("signal {signal}\n"),
            Self::Stop { grace_ms } => format!("stop {grace_ms}\n"),
        }
    }

    pub(super) fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["deadline", ask, kill] => Some(Self::Deadline {
                ask_at_ms: ask.parse().ok()?,
                kill_at_ms: kill.parse().ok()?,
            }),
            ["signal", signal] => Some(Self::Signal(signal.parse().ok()?)),
            ["stop", grace] => Some(Self::Stop {
                grace_ms: grace.parse().ok()?,
            }),
            _ => None,
        }
    }
}

/// From the guardian to the supervisor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Report {
    /// The program runs under this process id.
    Started(u32),
    /// It could not even be launched, and why.
    Failed(String),
    /// This signal stopped it. Reported once until it is continued by an order.
    Stopped(i32),
    /// It ended, and nothing of its tree is left.
    Ended(Exit),
}

impl Report {
    pub(super) fn to_line(&self) -> String {
        match self {
            Self::Started(pid) => format!("started {pid}\n"),
            Self::Failed(why) => format!("failed {}\n", why.replace('\n', " ")),
            Self::Stopped(signal) => format!("stopped {signal}\n"),
            Self::Ended(Exit { end, cause }) => {
                let (how, number) = match end {
                    End::Code(code) => ("code", code),
                    End::Signal(signal) => ("signal", signal),
                };
                format!("ended {how} {number} {}\n", cause.as_str())
            }
        }
    }

    pub(super) fn parse(line: &str) -> Option<Self> {
        if let Some(why) = line.strip_prefix("failed ") {
            return Some(Self::Failed(why.trim_end().to_owned()));
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["started", pid] => Some(Self::Started(pid.parse().ok()?)),
            ["stopped", signal] => Some(Self::Stopped(signal.parse().ok()?)),
            ["ended", how, number, cause] => {
                let number = number.parse().ok()?;
                let end = match *how {
                    "code" => End::Code(number),
                    "signal" => End::Signal(number),
                    _ => return None,
                };
                let cause = Cause::parse(cause)?;
                Some(Self::Ended(Exit { end, cause }))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_reports_survive_the_pipe() {
        let orders = [
            Order::Deadline {
                ask_at_ms: 7,
                kill_at_ms: u64::MAX,
            },
            Order::Signal(15),
            Order::Stop { grace_ms: 0 },
        ];
        for order in orders {
            assert_eq!(Order::parse(&order.to_line()), Some(order));
        }
        let exit = |end, cause| Report::Ended(Exit { end, cause });
        let reports = [
            Report::Started(42),
            Report::Failed("no such file".into()),
            Report::Stopped(20),
            exit(End::Code(3), Cause::Own),
            exit(End::Signal(9), Cause::Deadline),
        ];
        for report in reports {
            assert_eq!(Report::parse(&report.to_line()), Some(report));
        }
        assert_eq!(Order::parse("deadline 5"), None);
        assert_eq!(Report::parse("ended code 0 because"), None);
    }
}
