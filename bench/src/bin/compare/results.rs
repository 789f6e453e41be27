//! What was measured: rows of named numbers, printed, drawn and judged without knowing the work.

use std::{collections::BTreeMap, fmt::Write as _};

use anyhow::Result;
use comfy_table::{CellAlignment, Table};
use leasehold_bench::rounds::Figures;
use serde_json::json;

use crate::{aims, work};

/// A number that a row may have: its name in the raw numbers, its title, and how it is shown.
type Column = (&'static str, &'static str, fn(f64) -> String);

const COLUMNS: [Column; 19] = [
    ("operations_per_second", "ops/s, best", whole),
    ("spread", "spread", percent),
    ("p50_us", "p50 µs", whole),
    ("p99_us", "p99 µs", whole),
    ("p999_us", "p99.9 µs", whole),
    ("late_p50_ms", "late p50 ms", tenth),
    ("late_p99_ms", "late p99 ms", tenth),
    ("late_max_ms", "latest ms", tenth),
    ("unseen", "not seen", whole),
    ("p50_ms", "p50 ms", tenth),
    ("max_ms", "slowest ms", tenth),
    ("bytes_per_lease", "bytes/lease", whole),
    ("slowest_share", "slowest client's share", percent),
    ("worst_p99_to_mean", "worst p99 wait / mean", tenth),
    ("server_cpu_per_100k", "server CPU s/100k", hundredth),
    ("server_cores", "server cores", hundredth),
    ("driver_cores", "driver cores", hundredth),
    ("bytes_per_holder", "bytes/s per holder", whole),
    ("resident_bytes", "RSS MB", megabytes),
];

fn whole(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn tenth(value: f64) -> String {
    format!("{value:.1}")
}

fn hundredth(value: f64) -> String {
    format!("{value:.2}")
}

fn percent(value: f64) -> String {
    format!("{:.0} %", value * 100.0)
}

fn megabytes(value: f64) -> String {
    format!("{:.0}", value / 1e6)
}

/// What one side did in one setting of a work.
pub struct Row {
    pub work: &'static str,
    pub setting: String,
    pub side: String,
    pub numbers: BTreeMap<&'static str, f64>,
    /// The main number of each round.
    pub rounds: Vec<f64>,
}

/// Everything that was measured.
#[derive(Default)]
pub struct Results {
    pub rows: Vec<Row>,
}

impl Results {
    pub fn add(
        &mut self,
        work: &'static str,
        setting: &str,
        side: &str,
        numbers: impl IntoIterator<Item = (&'static str, f64)>,
    ) {
        self.rows.push(Row {
            work,
            setting: setting.to_owned(),
            side: side.to_owned(),
            numbers: numbers.into_iter().collect(),
            rounds: Vec::new(),
        });
    }

    /// Adds the sides of a comparison.
    pub fn add_figures(&mut self, work: &'static str, setting: &str, figures: &[Figures]) {
        for side in figures {
            let quantile = |quantile| side.latency.value_at_quantile(quantile) as f64;
            let mut numbers = BTreeMap::from([
                ("operations_per_second", side.best()),
                ("spread", side.spread()),
                ("p50_us", quantile(0.5)),
                ("p99_us", quantile(0.99)),
                ("p999_us", quantile(0.999)),
                ("server_cpu_per_100k", side.cpu_per_100k()),
                ("server_cores", side.server_cpu / side.seconds),
                ("resident_bytes", side.resident as f64),
            ]);
            if let Some(driver) = side.driver_cpu {
                numbers.insert("driver_cores", driver / side.seconds);
            }
            self.rows.push(Row {
                work,
                setting: setting.to_owned(),
                side: side.name.clone(),
                numbers,
                rounds: side.rates.clone(),
            });
        }
    }

    /// One number.
    pub fn number(&self, work: &str, setting: &str, side: &str, name: &str) -> Option<f64> {
        let row = self
            .rows
            .iter()
            .find(|row| row.work == work && row.setting == setting && row.side == side)?;
        row.numbers.get(name).copied()
    }

    /// The settings of a work, in the order they were measured.
    pub fn settings(&self, work: &str) -> Vec<&str> {
        let mut settings: Vec<&str> = Vec::new();
        for row in self.rows.iter().filter(|row| row.work == work) {
            if !settings.contains(&row.setting.as_str()) {
                settings.push(&row.setting);
            }
        }
        settings
    }

    /// The rows of one setting of a work.
    pub fn of<'a>(&'a self, work: &'a str, setting: &'a str) -> impl Iterator<Item = &'a Row> {
        self.rows
            .iter()
            .filter(move |row| row.work == work && row.setting == setting)
    }

    /// Everything, for programs.
    pub fn json(&self) -> Result<String> {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                json!({"work": row.work, "setting": row.setting, "side": row.side,
                    "numbers": row.numbers, "rounds": row.rounds})
            })
            .collect();
        Ok(serde_json::to_string_pretty(&rows)?)
    }

    /// Everything, for people in front of a terminal.
    pub fn tables(&self) -> String {
        let mut out = String::new();
        for (work, setting) in self.sections() {
            let _ = write!(out, "\n{work} {}: {setting}\n", work::title(work));
            let _ = writeln!(out, "{}", self.table(work, setting));
        }
        out
    }

    /// Everything, for the documentation.
    pub fn markdown(&self, aims: &[aims::Judged]) -> String {
        let mut out = format!("{}\n", aims::table(aims));
        let mut last = "";
        for (work, setting) in self.sections() {
            if work != last {
                let _ = write!(out, "\n### {work}: {}\n", work::title(work));
                last = work;
            }
            let _ = write!(out, "\n{setting}\n\n{}\n", self.table(work, setting));
        }
        out
    }

    fn sections(&self) -> Vec<(&'static str, &str)> {
        work::ALL
            .into_iter()
            .flat_map(|work| {
                self.settings(work)
                    .into_iter()
                    .map(move |setting| (work, setting))
            })
            .collect()
    }

    fn table(&self, work: &str, setting: &str) -> Table {
        let columns: Vec<_> = COLUMNS
            .iter()
            .filter(|(name, ..)| {
                self.of(work, setting)
                    .any(|row| row.numbers.contains_key(name))
            })
            .collect();
        let mut table = markdown_table();
        let titles = columns.iter().map(|(_, title, _)| *title);
        table.set_header(std::iter::once("side").chain(titles));
        for place in 1..=columns.len() {
            if let Some(column) = table.column_mut(place) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for row in self.of(work, setting) {
            let numbers = columns.iter().map(|(name, _, show)| {
                row.numbers
                    .get(name)
                    .map_or_else(String::new, |value| show(*value))
            });
            table.add_row(std::iter::once(row.side.clone()).chain(numbers));
        }
        table
    }
}

/// An empty table that is Markdown too.
pub fn markdown_table() -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::ASCII_MARKDOWN);
    table
}
