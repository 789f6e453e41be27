//! A small line chart as SVG, written by hand.

use std::fmt::Write as _;

const COLOURS: [&str; 6] = [
    "#1b7f5c", "#4c8fd6", "#c0392b", "#b8860b", "#7d5ba6", "#888888",
];
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
const LEGEND: f64 = 50.0;

/// One line: a name and its points.
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Drawn dashed: a bound, not a measurement.
    pub dashed: bool,
}

/// One chart.
pub struct Chart {
    pub title: String,
    pub x_label: String,
    pub x_ticks: Vec<f64>,
    /// Whether equal steps on the horizontal axis are equal factors.
    pub log_x: bool,
    pub y_label: String,
    pub y_ticks: Vec<f64>,
    pub series: Vec<Series>,
}

impl Chart {
    fn x(&self, value: f64) -> f64 {
        let scale = |v: f64| if self.log_x { v.ln() } else { v };
        let (first, last) = ends(&self.x_ticks);
        (scale(value) - scale(first)) / (scale(last) - scale(first)) * WIDTH
    }

    fn y(&self, value: f64) -> f64 {
        let (first, last) = ends(&self.y_ticks);
        HEIGHT - (value.clamp(first, last) - first) / (last - first) * HEIGHT
    }

    fn draw(&self, out: &mut String, left: f64) {
        let (bottom, right) = (TOP + HEIGHT, left + WIDTH);
        let _ = writeln!(
            out,
            r#"<text x="{left}" y="{}" class="title">{}</text>"#,
            TOP - 16.0,
            self.title
        );
        for &tick in &self.y_ticks {
            let y = TOP + self.y(tick);
            let _ = writeln!(
                out,
                r#"<path d="M{left} {y:.1}H{right}" class="grid"/><text x="{}" y="{:.1}" text-anchor="end">{tick}</text>"#,
                left - 8.0,
                y + 4.0
            );
        }
        for &tick in &self.x_ticks {
            let x = left + self.x(tick);
            let _ = writeln!(
                out,
                r#"<path d="M{x:.1} {bottom}v5" class="axis"/><text x="{x:.1}" y="{}" text-anchor="middle">{tick}</text>"#,
                bottom + 20.0
            );
        }
        let _ = writeln!(
            out,
            r#"<path d="M{left} {bottom}H{right}" class="axis"/><text x="{}" y="{}" text-anchor="middle">{}</text>"#,
            left + WIDTH / 2.0,
            bottom + 38.0,
            self.x_label
        );
        let (x, y) = (left - 44.0, TOP + HEIGHT / 2.0);
        let _ = writeln!(
            out,
            r#"<text x="{x}" y="{y}" text-anchor="middle" transform="rotate(-90 {x} {y})">{}</text>"#,
            self.y_label
        );
        for (series, colour) in self.series.iter().zip(COLOURS) {
            let mut path = String::new();
            for (place, &(x, y)) in series.points.iter().enumerate() {
                let step = if place == 0 { 'M' } else { 'L' };
                let _ = write!(path, "{step}{:.1} {:.1}", left + self.x(x), TOP + self.y(y));
            }
            let dashes = if series.dashed {
                r#" stroke-dasharray="5 4""#
            } else {
                ""
            };
            let _ = writeln!(
                out,
                r#"<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>"#
            );
        }
    }
}

fn ends(ticks: &[f64]) -> (f64, f64) {
    let first = ticks.first().copied().unwrap_or(0.0);
    let last = ticks.last().copied().unwrap_or(1.0);
    (first, last)
}

/// Two charts side by side, with one legend: their series must be in the same order.
pub fn side_by_side(charts: &[Chart; 2]) -> String {
    let width = 2.0 * (LEFT + WIDTH) + 40.0;
    let height = TOP + HEIGHT + LEGEND + 50.0;
    let mut out = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<style>text{{font:12px system-ui,sans-serif;fill:#333}}.title{{font-weight:600;font-size:14px}}.grid{{stroke:#ddd;fill:none}}.axis{{stroke:#333;fill:none}}</style>
<rect width="100%" height="100%" fill="#fff"/>
"##
    );
    for (place, chart) in charts.iter().enumerate() {
        chart.draw(&mut out, LEFT + place as f64 * (LEFT + WIDTH + 20.0));
    }
    let legend = charts
        .iter()
        .map(|chart| &chart.series)
        .max_by_key(|series| series.len());
    for (place, (series, colour)) in legend.into_iter().flatten().zip(COLOURS).enumerate() {
        let x = LEFT + place as f64 * 168.0;
        let y = height - 16.0;
        let _ = writeln!(
            out,
            r#"<path d="M{x} {}h18" stroke="{colour}" stroke-width="3"/><text x="{}" y="{y}">{}</text>"#,
            y - 4.0,
            x + 24.0,
            series.name
        );
    }
    out.push_str("</svg>\n");
    out
}
