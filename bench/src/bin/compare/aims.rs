//! What the numbers must show, and whether they do.

use comfy_table::Table;

use crate::{
    results::{Results, markdown_table},
    work::w3,
};

/// An aim, and what became of it.
pub struct Judged {
    work: &'static str,
    aim: String,
    measured: String,
    /// What the machine itself allows, as far as it was measured in the same run.
    limit: String,
    verdict: &'static str,
}

/// What no program could do better on this machine, from what was measured beside it.
#[derive(Clone, Copy)]
enum Limit {
    /// Unknown.
    None,
    /// The same round trips on the same connections, with nothing behind them.
    Echo,
    /// The same bodies through the bare stack, and then two syncs, which each client has to wait for.
    StackAndSyncs,
    /// As above, with the bare echo instead of the stack.
    EchoAndSyncs,
    /// Every key is held for a while, and a sync lies between one holder and the next.
    HeldAndSync,
}

const MISSED: &str = "MISSED";
const RATE: &str = "operations_per_second";
const PEER_DURABLE: &str = "Redis, AOF always";
const HTTP: &str = "Leasehold HTTP, durable";
const STREAM: &str = "Leasehold stream, durable";
const SHARED: &str = "Leasehold stream shared, durable";
const ECHO: &str = "loopback echo";
const BARE: &str = "bare HTTP+JSON";
const CLIENTS: [&str; 4] = ["1 clients", "16 clients", "64 clients", "256 clients"];

struct Judge<'a> {
    results: &'a Results,
    judged: Vec<Judged>,
}

/// Holds the numbers against every aim.
pub fn judge(results: &Results) -> Vec<Judged> {
    let mut judge = Judge {
        results,
        judged: Vec::new(),
    };
    judge.cycles();
    judge.renewals();
    judge.fairness();
    judge.memory();
    judge.expiries();
    judge.deaths();
    judge.fleet();
    judge.growth();
    // A work that was left out is not mentioned.
    judge
        .judged
        .retain(|judged| !results.settings(judged.work).is_empty());
    judge.judged
}

/// The aims as a table.
pub fn table(aims: &[Judged]) -> Table {
    let mut table = markdown_table();
    table.set_header(["work", "aim", "measured", "the machine's limit", ""]);
    for aim in aims {
        table.add_row([aim.work, &aim.aim, &aim.measured, &aim.limit, aim.verdict]);
    }
    table
}

impl Judge<'_> {
    fn add(&mut self, work: &'static str, aim: String, measured: Option<(String, bool)>) {
        let (measured, verdict) = match measured {
            Some((measured, true)) => (measured, "met"),
            Some((measured, false)) => (measured, MISSED),
            None => (String::new(), "not measured"),
        };
        self.judged.push(Judged {
            work,
            aim,
            measured,
            limit: String::new(),
            verdict,
        });
    }

    fn rate(&self, work: &str, setting: &str, side: &str) -> Option<f64> {
        self.results.number(work, setting, side, RATE)
    }

    /// The rate that the machine allows in a setting, and what of it sets that limit.
    fn limit(&self, limit: Limit, setting: &str) -> Option<(f64, &'static str)> {
        let two_syncs = || {
            let p50 = self
                .results
                .number("W1", CLIENTS[0], "fdatasync", "p50_us")?;
            Some(p50 / 1e6)
        };
        // The time of a cycle without a disk, and then that of two syncs, which those who wait share.
        let synced = |bare: &str| {
            let clients: f64 = setting.split(' ').next()?.parse().ok()?;
            Some(clients / (clients / self.rate("W1", setting, bare)? + two_syncs()?))
        };
        match limit {
            Limit::None => None,
            Limit::Echo => Some((self.rate("W1", setting, ECHO)?, "an echo")),
            Limit::EchoAndSyncs => Some((synced(ECHO)?, "an echo and two syncs")),
            Limit::StackAndSyncs => Some((synced(BARE)?, "the bare stack and two syncs")),
            Limit::HeldAndSync => {
                let passed_on = w3::HELD.as_secs_f64() + two_syncs()? / 2.0;
                Some((w3::KEYS as f64 / passed_on, "the time held and a sync"))
            }
        }
    }

    /// How many times a peer's rate ours is, in the setting where it is least.
    fn ratio(
        &mut self,
        work: &'static str,
        settings: &[&str],
        (ours, limit): (&str, Limit),
        peer: &str,
        least: f64,
    ) {
        let worst = settings
            .iter()
            .filter_map(|setting| {
                let ratio = self.rate(work, setting, ours)? / self.rate(work, setting, peer)?;
                Some((ratio, *setting))
            })
            .min_by(|one, other| one.0.total_cmp(&other.0));
        let limit = worst.and_then(|(_, setting)| {
            let (rate, what) = self.limit(limit, setting)?;
            Some((rate / self.rate(work, setting, peer)?, what))
        });
        let measured = worst.map(|(ratio, setting)| {
            let at = if settings.len() > 1 {
                format!(" ({setting})")
            } else {
                String::new()
            };
            (format!("{ratio:.2} x{at}"), ratio >= least)
        });
        let span = match settings {
            [one] => (*one).to_owned(),
            [first, .., last] => format!("{first} to {last}"),
            [] => String::new(),
        };
        let aim = format!("{ours}, {span}: at least {least} x {peer}");
        self.add(work, aim, measured);
        if let (Some(judged), Some((limit, what))) = (self.judged.last_mut(), limit) {
            judged.limit = format!("{limit:.2} x ({what})");
            if judged.verdict == MISSED && limit < least {
                judged.verdict = "out of reach";
            }
        }
    }

    /// A number that must not be larger than this.
    fn most(
        &mut self,
        work: &'static str,
        setting: &str,
        side: &str,
        number: &str,
        most: f64,
        unit: &str,
    ) {
        let measured = self.results.number(work, setting, side, number);
        let measured = measured.map(|value| (format!("{value:.1} {unit}"), value <= most));
        let aim = format!("{side}, {setting}: at most {most} {unit}");
        self.add(work, aim, measured);
    }

    fn cycles(&mut self) {
        let most = &CLIENTS[3..];
        // With a connection for each client, and with one for all of them.
        for stream in [(STREAM, Limit::EchoAndSyncs), (SHARED, Limit::None)] {
            self.ratio("W1", most, stream, PEER_DURABLE, 2.0);
            self.ratio("W1", most, stream, "etcd", 20.0);
            self.ratio("W1", most, stream, "PostgreSQL", 6.0);
        }
        let many = &CLIENTS[1..];
        let http = (HTTP, Limit::StackAndSyncs);
        self.ratio("W1", many, http, PEER_DURABLE, 0.6);
        self.ratio("W1", many, http, "etcd", 6.0);
        self.ratio("W1", many, http, BARE, 0.7);
        for side in [HTTP, STREAM, "Leasehold in process, durable"] {
            let p50 = |side| self.results.number("W1", CLIENTS[0], side, "p50_us");
            let measured = (|| {
                let trips = if side.contains("in process") {
                    0.0
                } else {
                    p50(ECHO)?
                };
                let limit = p50("fdatasync")? + trips;
                let ratio = p50(side)? / limit;
                Some((format!("{ratio:.2} x ({limit:.0} µs)"), ratio <= 1.5))
            })();
            let limit = "two syncs and two round trips";
            self.add(
                "W1",
                format!("{side}, one client: p50 of a cycle at most 1.5 x {limit}"),
                measured,
            );
        }
        for stream in [
            ("Leasehold stream, in memory", Limit::Echo),
            ("Leasehold stream shared, in memory", Limit::None),
        ] {
            self.ratio("W1", most, stream, "Redis, no AOF", 1.5);
        }
        for (ours, peer) in [
            ("Leasehold in process, on PostgreSQL", "PostgreSQL by hand"),
            ("Leasehold in process, on Redis", "Redis by hand"),
        ] {
            self.ratio("W1", &CLIENTS, (ours, Limit::None), peer, 0.8);
        }
    }

    fn renewals(&mut self) {
        for setting in ["100000 leases", "10000 leases"] {
            let peers: Vec<_> = self
                .results
                .of("W2", setting)
                .filter(|row| !row.side.starts_with("Leasehold"))
                .filter_map(|row| Some((row.side.clone(), *row.numbers.get(RATE)?)))
                .collect();
            let best = peers.iter().max_by(|one, other| one.1.total_cmp(&other.1));
            let best = best.map_or_else(|| "the best peer".into(), |(side, _)| side.clone());
            for ours in ["Leasehold stream, one holder", "Leasehold HTTP, one holder"] {
                let ours = (ours, Limit::None);
                self.ratio("W2", &[setting], ours, &best, 20.0);
                self.ratio("W2", &[setting], ours, "etcd, keep-alive streams", 100.0);
            }
        }
    }

    fn fairness(&mut self) {
        let setting = "64 clients, 10 keys";
        for peer in ["PostgreSQL advisory lock", "Redis, polling"] {
            for ours in ["Leasehold stream, waiting", "Leasehold HTTP, waiting"] {
                self.ratio("W3", &[setting], (ours, Limit::HeldAndSync), peer, 1.4);
            }
        }
        for ours in ["Leasehold stream, waiting", "Leasehold HTTP, waiting"] {
            let number = "worst_p99_to_mean";
            self.most("W3", setting, ours, number, 3.0, "x the mean wait");
        }
    }

    fn memory(&mut self) {
        for setting in ["100000 leases", "1000000 leases"] {
            self.most(
                "W4",
                setting,
                "Leasehold",
                "bytes_per_lease",
                250.0,
                "bytes",
            );
        }
    }

    fn expiries(&mut self) {
        for setting in ["nothing else live", "1000000 others live"] {
            self.most("W5", setting, "Leasehold", "late_p99_ms", 20.0, "ms");
        }
    }

    fn deaths(&mut self) {
        let side = "Leasehold, stream (linger 250 ms)";
        self.most("W6", "ttl 5 s", side, "max_ms", 260.0, "ms");
        self.most(
            "W6",
            "ttl 5 s",
            "Leasehold, no stream",
            "max_ms",
            5_100.0,
            "ms",
        );
    }

    fn fleet(&mut self) {
        let setting = "100,000 leases kept";
        for side in ["Leasehold, streams", "Leasehold, plain HTTP"] {
            self.most("W7", setting, side, "server_cores", 0.1, "cores");
        }
    }

    fn growth(&mut self) {
        for (work, side, number) in [
            ("W8", "Leasehold HTTP, durable", "p50_us"),
            ("W8", "Leasehold HTTP, durable", "server_cpu_per_100k"),
            ("W9", "Leasehold, streams", "server_cpu_per_100k"),
            ("W9", "Leasehold, streams", "bytes_per_holder"),
        ] {
            let values: Vec<f64> = self
                .results
                .rows
                .iter()
                .filter(|row| row.work == work && row.side == side)
                // The kernel counts in steps of 10 ms: less than this is mostly rounding.
                .filter(|row| {
                    let cores = row.numbers.get("server_cores");
                    !number.contains("cpu") || cores.is_some_and(|cores| *cores >= 0.005)
                })
                .filter_map(|row| row.numbers.get(number).copied())
                .collect();
            // From any size to any larger one: what falls with the size does not grow, and is shown beside.
            let from_each = |change: fn(f64, f64) -> f64| {
                let later = |at: usize| values[at..].iter().map(move |&value| (at, value));
                (0..values.len())
                    .flat_map(later)
                    .map(|(at, value)| change(values[at], value))
                    .fold(1.0, f64::max)
            };
            let measured = (values.len() > 1).then(|| {
                let grows = from_each(|from, to| to / from);
                let falls = from_each(|from, to| from / to);
                (format!("{grows:.2} x (falls {falls:.2} x)"), grows <= 2.0)
            });
            self.add(
                work,
                format!("{side}: {number} grows at most 2 x"),
                measured,
            );
        }
    }
}
