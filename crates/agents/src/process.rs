//! What every process shows about itself: its version, its processor time, memory and open files.

use std::fs;

use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, EncodeMetric as _,
        text::{encode_eof, encode_registry},
    },
    metrics::{counter::ConstCounter, gauge::ConstGauge, info::Info},
    registry::Registry,
};

/// Linux counts processor time in hundredths of a second, whatever the processor.
const TICKS_PER_SECOND: f64 = 100.0;

/// Registers the figures of this process, under the names that Prometheus' own libraries use.
pub fn register(registry: &mut Registry) {
    let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("leasehold_build", "The version that runs", version);
    registry.register_collector(Box::new(Process));
}

/// Several registries and the figures of this process as one text.
pub(crate) fn text(registries: &[&Registry]) -> String {
    let mut own = Registry::default();
    register(&mut own);
    let mut text = String::new();
    for registry in registries.iter().copied().chain([&own]) {
        // Writing into a text cannot fail.
        let _ = encode_registry(&mut text, registry);
    }
    let _ = encode_eof(&mut text);
    text
}

/// Read from /proc whenever somebody asks.
#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The name of the program comes second, in parentheses, and may hold anything.
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .map_or("", |(_, rest)| rest)
            .split_whitespace()
            .collect();
        let field = |number: usize| {
            let text = fields.get(number - 3).copied().unwrap_or_default();
            text.parse::<f64>().unwrap_or_default()
        };
        let cpu = ConstCounter::new((field(14) + field(15)) / TICKS_PER_SECOND);
        let descriptor = encoder.encode_descriptor(
            "process_cpu_seconds",
            "Processor time used",
            None,
            cpu.metric_type(),
        )?;
        cpu.encode(descriptor)?;
        let started = number_after("/proc/stat", "btime") + field(22) / TICKS_PER_SECOND;
        let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Memory in use",
                number_after("/proc/self/status", "VmRSS:") * 1024.0,
            ),
            (
                "process_open_fds",
                "Open files and connections",
                open as f64,
            ),
            (
                "process_max_fds",
                "How many files and connections may be open",
                number_after("/proc/self/limits", "Max open files"),
            ),
            (
                "process_start_time_seconds",
                "When the process began, since 1970",
                started,
            ),
        ] {
            let gauge = ConstGauge::new(value);
            let descriptor = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(descriptor)?;
        }
        Ok(())
    }
}

/// The first number behind a word of a file of the kernel.
fn number_after(file: &str, word: &str) -> f64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(word));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory_files_and_a_beginning() {
        let text = text(&[]);
        for name in [
            "process_resident_memory_bytes ",
            "process_open_fds ",
            "process_max_fds ",
            "process_start_time_seconds ",
        ] {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let value: f64 = line.expect(name).parse().expect("a number");
            assert!(value > 0.0, "{name}{value}");
        }
        assert!(text.contains("leasehold_build_info{version="), "{text}");
        assert!(text.contains("process_cpu_seconds_total "), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
