//! Plots as SVG, written by hand, and as PNG where `rsvg-convert` is installed.

use std::{fmt::Write as _, path::Path, process::Command};

use anyhow::Result;

use crate::{results::Results, work};

/// The number that is drawn for each work, its name, and whether less is better.
const DRAWN: [(&str, &str, &str); 9] = [
    ("W1", "operations_per_second", "cycles per second"),
    ("W2", "operations_per_second", "renewals per second"),
    ("W3", "operations_per_second", "cycles per second"),
    ("W4", "bytes_per_lease", "bytes per lease"),
    ("W5", "late_p99_ms", "99th percentile, ms late"),
    ("W6", "max_ms", "slowest, ms"),
    ("W7", "server_cores", "cores of the server"),
    ("W8", "p50_us", "median of a cycle, µs"),
    (
        "W9",
        "server_cpu_per_100k",
        "server CPU s per 100,000 renewals",
    ),
];

const LABEL: f64 = 260.0;
const BARS: f64 = 520.0;
const VALUE: f64 = 90.0;
const LINE: f64 = 20.0;
const TOP: f64 = 56.0;

/// Draws every work that was measured.
pub fn write_all(results: &Results, out: &Path) -> Result<()> {
    for (work, number, unit) in DRAWN {
        if results.settings(work).is_empty() {
            continue;
        }
        let svg = out.join(format!("{}.svg", work.to_lowercase()));
        std::fs::write(&svg, bars(results, work, number, unit))?;
        let png = svg.with_extension("png");
        let drawn = Command::new("rsvg-convert")
            .args(["--zoom", "2", "--output"])
            .args([&png, &svg])
            .status();
        if !drawn.is_ok_and(|status| status.success()) {
            eprintln!(
                "no {}: rsvg-convert is missing (librsvg2-bin)",
                png.display()
            );
        }
    }
    Ok(())
}

fn colour(side: &str) -> &'static str {
    match side {
        side if side.starts_with("Leasehold") => "#1b7f5c",
        side if side.starts_with("Redis") => "#c0392b",
        side if side.starts_with("etcd") => "#4c8fd6",
        side if side.starts_with("PostgreSQL") => "#7d5ba6",
        _ => "#999999",
    }
}

/// Bars on a logarithmic scale, one group per setting; a line through each shows its rounds.
fn bars(results: &Results, work: &str, number: &str, unit: &str) -> String {
    let values: Vec<f64> = results
        .rows
        .iter()
        .filter(|row| row.work == work)
        .filter_map(|row| row.numbers.get(number).copied())
        .filter(|value| *value > 0.0)
        .collect();
    let decade = |value: f64| value.log10();
    let first = decade(values.iter().copied().fold(f64::MAX, f64::min)).floor();
    let last = decade(values.iter().copied().fold(f64::MIN, f64::max)).ceil();
    let (first, last) = if values.is_empty() {
        (0.0, 1.0)
    } else {
        (first, last.max(first + 1.0))
    };
    let x = |value: f64| {
        let place = (decade(value.max(1e-9)) - first) / (last - first);
        LABEL + place.clamp(0.0, 1.0) * BARS
    };
    let mut body = String::new();
    let mut y = TOP;
    for setting in results.settings(work) {
        y += LINE;
        let _ = writeln!(
            body,
            r#"<text x="12" y="{y}" class="group">{setting}</text>"#
        );
        for row in results.of(work, setting) {
            let Some(&value) = row.numbers.get(number) else {
                continue;
            };
            y += LINE;
            let (middle, right) = (y - 5.0, x(value));
            let _ = writeln!(
                body,
                r#"<text x="{}" y="{y}" text-anchor="end">{}</text><rect x="{LABEL}" y="{}" width="{:.1}" height="12" fill="{}"/><text x="{:.1}" y="{y}">{}</text>"#,
                LABEL - 8.0,
                escape(&row.side),
                y - 11.0,
                (right - LABEL).max(1.0),
                colour(&row.side),
                right + 6.0,
                short(value)
            );
            if number == "operations_per_second"
                && let Some(least) = row.rounds.iter().copied().reduce(f64::min)
            {
                let left = x(least);
                let _ = writeln!(
                    body,
                    r##"<path d="M{left:.1} {middle}H{right:.1}M{left:.1} {}v6" stroke="#222" fill="none"/>"##,
                    middle - 3.0
                );
            }
        }
        y += LINE / 2.0;
    }
    let (width, height) = (LABEL + BARS + VALUE, y + 40.0);
    let mut grid = String::new();
    let mut power = first;
    while power <= last {
        let at = x(10_f64.powf(power));
        let _ = writeln!(
            grid,
            r#"<path d="M{at:.1} {TOP}V{:.1}" class="grid"/><text x="{at:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            height - 30.0,
            height - 14.0,
            short(10_f64.powf(power))
        );
        power += 1.0;
    }
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<style>text{{font:12px system-ui,sans-serif;fill:#333}}.title{{font-weight:600;font-size:15px}}.group{{font-weight:600}}.grid{{stroke:#ddd;fill:none}}</style>
<rect width="100%" height="100%" fill="#fff"/>
<text x="12" y="24" class="title">{work}: {}</text><text x="12" y="44">{unit}, logarithmic</text>
{grid}{body}</svg>
"##,
        work::title(work)
    )
}

fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.1} M", value / 1e6),
        value if value >= 1e4 => format!("{:.0} k", value / 1e3),
        value if value >= 1e3 => format!("{:.1} k", value / 1e3),
        value if value >= 10.0 => format!("{value:.0}"),
        value if value >= 0.1 => format!("{value:.2}"),
        value => format!("{value:.4}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
