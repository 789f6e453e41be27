//! The reference page `docs/metrics.md`, made from what each component counts.

use std::fmt::Write as _;

use leasehold_agents::{camera, manager, orchestrator, poller::program};
use leasehold_api::exposition::{Described, describe};
use prometheus_client::{encoding::text::encode, registry::Registry};

const INTRODUCTION: &str = "\
# Metrics

`leasehold serve` serves them at `/metrics` of its address, `leasehold poll` at `poll.metrics_listen`, `leasehold worker` at
`sessions.worker_listen`, `leasehold manager` at `metrics_listen` of its file, and its camera workers on the ports after that. The format is the text format of
Prometheus, or OpenMetrics if `Accept` asks for it. Every process also has the figures in the last table.

Ready to use: alert rules (`deploy/prometheus/leasehold.rules.yml`), a Grafana dashboard (`deploy/grafana/leasehold.json`). Counters and histograms count from the
start of the process; a metric with labels appears with its first sample.

This page is made by `leasehold config metrics`; a test fails if it differs.
";

/// What the components of this program count: a heading, and the metrics.
pub fn components() -> Vec<(&'static str, Vec<Described>)> {
    let process = describe(&orchestrator::Metrics::example())
        .into_iter()
        .filter(is_process)
        .collect();
    let own = |text: String| -> Vec<Described> {
        let all = describe(&text).into_iter();
        all.filter(|it| !is_process(it)).collect()
    };
    vec![
        (
            "`leasehold serve`",
            own(leasehold_server::metrics::Metrics::example() + &store()),
        ),
        (
            "Sessions: `leasehold serve` and `leasehold worker`",
            own(orchestrator::Metrics::example()),
        ),
        ("`leasehold poll`", own(program::metrics_example())),
        ("`leasehold manager`", own(manager::metrics_example())),
        ("`leasehold camera-worker`", own(camera::metrics_example())),
        ("Every process", process),
    ]
}

/// What stores count.
fn store() -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    leasehold_store::register_metrics(&mut registry);
    // Writing into a text cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

fn is_process(metric: &Described) -> bool {
    metric.name.starts_with("process_") || metric.name == "leasehold_build_info"
}

/// The whole page.
pub fn reference() -> String {
    let mut page = INTRODUCTION.to_owned();
    for (heading, metrics) in components() {
        let _ = write!(
            page,
            "\n## {heading}\n\n| metric | type | labels | what it is |\n|---|---|---|---|\n"
        );
        for it in metrics {
            let labels: Vec<String> = it.labels.iter().map(|it| format!("`{it}`")).collect();
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} |",
                it.name,
                it.kind,
                labels.join(", "),
                it.help
            );
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        io::Write as _,
        process::{Command, Output, Stdio},
    };

    use leasehold_api::exposition;

    use super::*;

    fn root(path: &str) -> String {
        format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn the_reference_page_is_the_one_in_the_documents() {
        let file = root("docs/metrics.md");
        if std::env::var_os("LEASEHOLD_TEST_UPDATE").is_some() {
            std::fs::write(&file, reference()).unwrap();
        }
        let found = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            found == reference(),
            "docs/metrics.md differs: `leasehold config metrics > docs/metrics.md`"
        );
    }

    fn promtool(arguments: &[&str], input: &str) -> Output {
        let mut tool = Command::new("promtool")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("promtool is there: scripts/setup test");
        let mut pipe = tool.stdin.take().expect("piped");
        pipe.write_all(input.as_bytes()).unwrap();
        drop(pipe);
        tool.wait_with_output().unwrap()
    }

    #[test]
    fn promtool_finds_nothing_wrong_with_the_metrics() {
        for (name, openmetrics) in [
            ("serve", leasehold_server::metrics::Metrics::example()),
            ("store", store()),
            ("worker", orchestrator::Metrics::example()),
            ("poll", program::metrics_example()),
            ("manager", manager::metrics_example()),
            ("camera-worker", camera::metrics_example()),
        ] {
            let (_, text) = exposition::answer(None, openmetrics);
            let checked = promtool(&["check", "metrics"], &text);
            let said = String::from_utf8_lossy(&checked.stderr).into_owned();
            // Names that the contract of managers prescribes, though they are no counters.
            let wrong: Vec<&str> = said
                .lines()
                .filter(|line| {
                    ![
                        "streams_desired_total",
                        "active_leases_total",
                        "streams_pending_total",
                    ]
                    .iter()
                    .any(|known| line.starts_with(known))
                })
                .collect();
            assert_eq!(wrong, Vec::<&str>::new(), "{name}");
            assert!(
                name == "manager" || checked.status.success(),
                "{name}: {said}"
            );
        }
    }

    #[test]
    fn promtool_finds_nothing_wrong_with_the_rules() {
        let rules = root("deploy/prometheus/leasehold.rules.yml");
        let checked = promtool(&["check", "rules", &rules], "");
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{said}");
    }

    /// Words of a query that look like our metrics.
    fn names_in(text: &str) -> BTreeSet<String> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let known = [
            "leasehold_",
            "process_",
            "v3_",
            "xg2g_",
            "streams_",
            "runner_",
            "active_leases",
        ];
        text.split(|c: char| !is_word(c))
            .filter(|word| known.iter().any(|prefix| word.starts_with(prefix)))
            .map(|word| {
                let parts = ["_bucket", "_sum", "_count"];
                let base = parts.iter().find_map(|part| word.strip_suffix(part));
                base.unwrap_or(word).to_owned()
            })
            .collect()
    }

    #[test]
    fn rules_and_dashboard_name_only_metrics_that_are_there() {
        let there: BTreeSet<String> = components()
            .into_iter()
            .flat_map(|(_, metrics)| metrics)
            .map(|metric| metric.name)
            .collect();
        let dashboard = std::fs::read_to_string(root("deploy/grafana/leasehold.json")).unwrap();
        let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
        let mut queries = Vec::new();
        for panel in dashboard["panels"].as_array().expect("panels") {
            for target in panel["targets"].as_array().into_iter().flatten() {
                queries.push(target["expr"].as_str().expect("a query").to_owned());
            }
        }
        let rules = std::fs::read_to_string(root("deploy/prometheus/leasehold.rules.yml")).unwrap();
        let expressions = rules
            .lines()
            .filter_map(|line| line.trim().strip_prefix("expr: "));
        queries.extend(expressions.map(str::to_owned));
        assert!(queries.len() > 20, "{}", queries.len());
        for query in queries {
            let named = names_in(&query);
            assert!(!named.is_empty(), "{query} names no metric of ours");
            for name in named {
                assert!(there.contains(&name), "{name} is not there: {query}");
            }
        }
    }
}
