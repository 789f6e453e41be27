//! How evenly targets are split over nodes, and how many move when a node joins or leaves: the
//! split that Leasehold uses beside plain FNV-1a rendezvous, ring hashing and jump hashing.
//!
//! Prints Markdown tables and, with `--plot FILE`, writes a chart. The same arguments give the same
//! figures on every machine: names come from a counter, nothing is timed.

mod plot;
mod schemes;

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use lease::rendezvous::finalise;
use plot::{Chart, Series};
use schemes::Scheme;

/// Every figure is the mean (or the worst) over this many different fleets.
const FLEETS: u64 = 5;
const TARGETS: [usize; 9] = [1, 3, 9, 30, 100, 300, 1_000, 3_000, 10_000];

/// Balance and movement of ways to split targets over nodes.
#[derive(Parser)]
struct Arguments {
    /// Print every combination of 2 to 20 nodes and 1 to 10,000 targets, not a selection.
    #[arg(long)]
    full: bool,
    /// Write a chart to this file, as SVG.
    #[arg(long)]
    plot: Option<PathBuf>,
}

/// What was measured for one scheme, number of nodes and number of targets.
#[derive(Clone, Copy, Default, Debug)]
struct Measured {
    /// The busiest node's targets over the mean: 1.0 is perfect. The worst fleet.
    busiest: f64,
    /// The busiest node's targets minus the idlest one's. The worst fleet.
    spread: usize,
    /// The share of targets that moved when a node joined.
    join: f64,
    /// The share of targets that moved when a node left, over every node that could leave.
    leave: f64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let nodes: Vec<usize> = if arguments.full || arguments.plot.is_some() {
        (2..=20).collect()
    } else {
        vec![2, 3, 5, 10, 20]
    };
    let targets: &[usize] = if arguments.full || arguments.plot.is_some() {
        &TARGETS
    } else {
        &[9, 100, 1_000, 10_000]
    };
    let mut rows = Vec::new();
    for &node_count in &nodes {
        for &target_count in targets {
            let measured = Scheme::ALL.map(|scheme| measure(scheme, node_count, target_count));
            rows.push((node_count, target_count, measured));
        }
    }
    let shown = |nodes: usize, targets: usize| {
        arguments.full
            || ([2, 3, 5, 10, 20].contains(&nodes) && [9, 100, 1_000, 10_000].contains(&targets))
    };
    print_table(
        "Busiest node, as a multiple of the mean (most minus least)",
        &rows,
        &shown,
        |it, _| format!("{:.2} ({})", it.busiest, it.spread),
        |_, _| None,
    );
    print_table(
        "Share of targets that move when a node joins",
        &rows,
        &shown,
        |it, _| format!("{:.1} %", it.join * 100.0),
        |nodes, _| Some(format!("{:.1} %", 100.0 / (nodes + 1) as f64)),
    );
    print_table(
        "Share of targets that move when a node leaves",
        &rows,
        &shown,
        |it, _| format!("{:.1} %", it.leave * 100.0),
        |nodes, _| Some(format!("{:.1} %", 100.0 / nodes as f64)),
    );
    if let Some(path) = &arguments.plot {
        std::fs::write(path, draw(&rows)).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

type Row = (usize, usize, [Measured; 5]);

fn print_table(
    title: &str,
    rows: &[Row],
    shown: &impl Fn(usize, usize) -> bool,
    cell: impl Fn(&Measured, usize) -> String,
    bound: impl Fn(usize, usize) -> Option<String>,
) {
    println!("### {title}\n");
    print!("| nodes | targets |");
    for scheme in Scheme::ALL {
        print!(" {} |", scheme.name());
    }
    let bounded = bound(1, 1).is_some();
    println!("{}", if bounded { " least possible |" } else { "" });
    println!("|{}", "--:|".repeat(7 + usize::from(bounded)));
    for (nodes, targets, measured) in rows {
        if !shown(*nodes, *targets) {
            continue;
        }
        print!("| {nodes} | {targets} |");
        for it in measured {
            print!(" {} |", cell(it, *targets));
        }
        println!(
            "{}",
            bound(*nodes, *targets).map_or_else(String::new, |bound| format!(" {bound} |"))
        );
    }
    println!();
}

fn measure(scheme: Scheme, node_count: usize, target_count: usize) -> Measured {
    let mut total = Measured::default();
    for fleet in 0..FLEETS {
        let mut nodes = node_names(fleet, node_count + 1);
        let targets = target_names(fleet, target_count);
        let larger = scheme.split(&nodes, &targets);
        let newcomer = nodes.pop().unwrap_or_default();
        let before = scheme.split(&nodes, &targets);
        let mut load = vec![0_usize; node_count];
        for &node in &before {
            load[node] += 1;
        }
        let most = load.iter().copied().max().unwrap_or_default();
        let least = load.iter().copied().min().unwrap_or_default();
        let mean = target_count as f64 / node_count as f64;
        total.busiest = total.busiest.max(most as f64 / mean);
        total.spread = total.spread.max(most - least);
        let with_newcomer: Vec<&String> = nodes.iter().chain([&newcomer]).collect();
        let moved = |after: &[usize], names: &[&String]| {
            let moves = before
                .iter()
                .zip(after)
                .filter(|(before, after)| nodes[**before] != *names[**after])
                .count();
            moves as f64 / target_count as f64
        };
        total.join += moved(&larger, &with_newcomer) / FLEETS as f64;
        let mut leave = 0.0;
        for gone in 0..node_count {
            let rest: Vec<String> = nodes
                .iter()
                .enumerate()
                .filter(|(node, _)| *node != gone)
                .map(|(_, name)| name.clone())
                .collect();
            let after = scheme.split(&rest, &targets);
            leave += moved(&after, &rest.iter().collect::<Vec<_>>());
        }
        total.leave += leave / node_count as f64 / FLEETS as f64;
    }
    total
}

/// Instance ids as they really look: hostname, boot time, random suffix.
fn node_names(fleet: u64, count: usize) -> Vec<String> {
    (0..count as u64)
        .map(|node| {
            let random = finalise(fleet * 1_000 + node + 1);
            let booted = 1_736_598_400_000_000_000 + random % 86_400_000_000_000;
            format!("api-{node}-{booted}-{:08x}", random >> 32)
        })
        .collect()
}

/// Half of the fleets number their targets, half use random ids.
fn target_names(fleet: u64, count: usize) -> Vec<String> {
    (1..=count as u64)
        .map(|target| {
            if fleet.is_multiple_of(2) {
                format!("session-{target}")
            } else {
                format!("{:016x}", finalise(fleet << 32 | target))
            }
        })
        .collect()
}

fn draw(rows: &[Row]) -> String {
    let line = |place: usize, pick: &dyn Fn(&Row) -> Option<(f64, f64)>| Series {
        name: Scheme::ALL[place].name().to_owned(),
        points: rows.iter().filter_map(pick).collect(),
        dashed: false,
    };
    let balance = (0..5).map(|place| {
        line(place, &|(nodes, targets, measured)| {
            (*nodes == 10).then(|| (*targets as f64, measured[place].busiest))
        })
    });
    let movement = (0..5).map(|place| {
        line(place, &|(nodes, targets, measured)| {
            (*targets == 1_000).then(|| (*nodes as f64, measured[place].leave * 100.0))
        })
    });
    let least = Series {
        name: "least possible".to_owned(),
        points: (2..=20)
            .map(|n| (f64::from(n), 100.0 / f64::from(n)))
            .collect(),
        dashed: true,
    };
    plot::side_by_side(&[
        Chart {
            title: "Busiest of 10 nodes, as a multiple of the mean".to_owned(),
            x_label: "targets".to_owned(),
            x_ticks: vec![10.0, 100.0, 1_000.0, 10_000.0],
            log_x: true,
            y_label: "times the mean".to_owned(),
            y_ticks: vec![1.0, 2.0, 3.0, 4.0, 5.0],
            series: balance
                .map(|mut series| {
                    series.points.retain(|(targets, _)| *targets >= 10.0);
                    series
                })
                .collect(),
        },
        Chart {
            title: "Of 1,000 targets, moved when one node leaves".to_owned(),
            x_label: "nodes before".to_owned(),
            x_ticks: vec![2.0, 5.0, 10.0, 15.0, 20.0],
            log_x: false,
            y_label: "% of the targets".to_owned(),
            y_ticks: vec![0.0, 20.0, 40.0, 60.0],
            series: movement.chain([least]).collect(),
        },
    ])
}
