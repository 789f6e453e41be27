//! Metrics as text, in the format that the caller asks for: OpenMetrics, or the older text format of
//! Prometheus.

use std::fmt::Write as _;

/// The media type of OpenMetrics.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The media type of the text format of Prometheus.
pub const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Registers metrics, the fields of a value, each with its name, its help and perhaps its unit, in the order
/// that they are written in: `register_metrics!(registry, it; polls: "polls", "Polls made";)`.
#[macro_export]
macro_rules! register_metrics {
    (@one $registry:expr, $metric:expr, $name:literal, $help:literal) => {
        $registry.register($name, $help, $metric)
    };
    (@one $registry:expr, $metric:expr, $name:literal, $help:literal, $unit:ident) => {
        $registry.register_with_unit(
            $name,
            $help,
            ::prometheus_client::registry::Unit::$unit,
            $metric,
        )
    };
    ($registry:expr, $of:ident; $($field:ident: $name:literal, $help:literal $(, $unit:ident)?;)+) => {
        $($crate::register_metrics!(@one $registry, $of.$field.clone(), $name, $help $(, $unit)?);)+
    };
}

/// Metrics for a caller with this `Accept`: the media type, and the text. `openmetrics` is what was counted,
/// as OpenMetrics.
pub fn answer(accept: Option<&str>, openmetrics: String) -> (&'static str, String) {
    if accept.is_some_and(|accept| accept.contains("application/openmetrics-text")) {
        (OPENMETRICS, openmetrics)
    } else {
        (PROMETHEUS, prometheus(&openmetrics))
    }
}

/// OpenMetrics in the text format of Prometheus: counters are described under the name of their sample, and
/// there are no units and no end mark.
fn prometheus(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut help = "";
    for line in openmetrics.lines() {
        if let Some(about) = line.strip_prefix("# HELP ") {
            help = about;
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|about| about.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                _ => ("", kind),
            };
            let about = help.strip_prefix(name).unwrap_or_default();
            let _ = writeln!(text, "# HELP {name}{suffix}{about}");
            let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// One metric, as it is described.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Described {
    /// The name of its samples, without the suffixes of a histogram.
    pub name: String,
    /// `counter`, `gauge`, `histogram` or `info`.
    pub kind: String,
    /// What it is.
    pub help: String,
    /// The labels of its samples.
    pub labels: Vec<String>,
}

/// The metrics of a text in OpenMetrics. Labels are those of the samples in it.
pub fn describe(openmetrics: &str) -> Vec<Described> {
    let mut all: Vec<Described> = Vec::new();
    for line in prometheus(openmetrics).lines() {
        if let Some((name, help)) = line
            .strip_prefix("# HELP ")
            .and_then(|about| about.split_once(' '))
        {
            all.push(Described {
                name: name.to_owned(),
                kind: String::new(),
                help: help.trim_end_matches('.').to_owned(),
                labels: Vec::new(),
            });
        } else if let (Some(about), Some(last)) = (line.strip_prefix("# TYPE "), all.last_mut()) {
            about
                .rsplit(' ')
                .next()
                .unwrap_or_default()
                .clone_into(&mut last.kind);
        } else if let (Some((_, labels)), Some(last)) = (line.split_once('{'), all.last_mut()) {
            for label in labels.split("\",").filter_map(|it| it.split_once("=\"")) {
                let label = label.0.trim_start_matches(',').to_owned();
                if label != "le" && !label.contains('}') && !last.labels.contains(&label) {
                    last.labels.push(label);
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP requests By status.\n# TYPE requests counter\nrequests_total{route=\"/\",status=\"200\"} 3\n# HELP took_seconds How long.\n# TYPE took_seconds histogram\n# UNIT took_seconds seconds\ntook_seconds_sum 1.0\ntook_seconds_count 1\ntook_seconds_bucket{le=\"+Inf\"} 1\n# HELP build What.\n# TYPE build info\nbuild_info{version=\"1\"} 1\n# EOF\n";

    #[test]
    fn whoever_asks_for_openmetrics_gets_it_and_others_the_text_format() {
        let accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        assert_eq!(
            answer(Some(accept), TEXT.into()),
            (OPENMETRICS, TEXT.into())
        );
        let (media, text) = answer(Some("*/*"), TEXT.into());
        assert_eq!(media, PROMETHEUS);
        assert_eq!(
            text,
            "# HELP requests_total By status.\n# TYPE requests_total counter\nrequests_total{route=\"/\",status=\"200\"} 3\n# HELP took_seconds How long.\n# TYPE took_seconds histogram\ntook_seconds_sum 1.0\ntook_seconds_count 1\ntook_seconds_bucket{le=\"+Inf\"} 1\n# HELP build_info What.\n# TYPE build_info gauge\nbuild_info{version=\"1\"} 1\n"
        );
    }

    #[test]
    fn metrics_are_described_with_their_labels() {
        let all = describe(TEXT);
        let names: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["requests_total", "took_seconds", "build_info"]);
        assert_eq!(all[0].labels, ["route", "status"]);
        assert_eq!(
            (all[1].kind.as_str(), all[1].labels.len()),
            ("histogram", 0)
        );
    }
}
