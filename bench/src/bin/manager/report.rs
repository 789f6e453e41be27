//! Tables, and what lines of workers prove about owners.

use std::convert::Infallible;

use anyhow::Result;
use comfy_table::{Table, presets::ASCII_MARKDOWN};
use http::{Request, Response, StatusCode};
use leasehold_blackbox::stage::{Line, overlaps, percentile};
use leasehold_fences::{FENCE_HEADER, FenceLayer, KEY_HEADER, Marks};
use tower::{Layer as _, ServiceExt as _, service_fn};

/// What the published lines of a scenario prove.
pub struct Proof {
    /// Cameras that two processes worked on at the same time.
    pub overlaps: usize,
    /// Messages that came after one under a newer token of their camera.
    pub stale: usize,
    /// Those of them that a receiver with a fence accepted.
    pub accepted: usize,
}

impl Proof {
    /// Sends every message, in the order of arrival, through the fence of a receiver.
    pub async fn of(lines: &[Line]) -> Result<Self> {
        let fence = FenceLayer::new(Marks::default()).layer(service_fn(
            async |_: Request<()>| -> Result<Response<String>, Infallible> {
                Ok(Response::new(String::new()))
            },
        ));
        let mut newest = std::collections::HashMap::new();
        let (mut stale, mut accepted) = (0, 0);
        for line in lines {
            let Some(camera) = line.camera() else {
                continue;
            };
            let newest = newest.entry(camera).or_insert(0);
            let is_stale = line.token() < *newest;
            *newest = line.token().max(*newest);
            let request = Request::builder()
                .header(FENCE_HEADER, line.token())
                .header(KEY_HEADER, format!("camera:{camera}"))
                .body(())?;
            let answer = fence.clone().oneshot(request).await?;
            stale += usize::from(is_stale);
            accepted += usize::from(is_stale && answer.status() == StatusCode::OK);
        }
        Ok(Self {
            overlaps: overlaps(lines).len(),
            stale,
            accepted,
        })
    }
}

pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(header);
    table
}

/// How long cameras were without a worker.
pub struct Times {
    table: Table,
}

impl Times {
    pub fn new() -> Self {
        let header = [
            "from the event to the next message of the camera",
            "p50",
            "p95",
            "slowest",
            "samples",
            "two owners",
            "stale accepted",
            "aim, p95",
        ];
        Self {
            table: table(&header),
        }
    }

    /// A row of milliseconds.
    pub fn add(&mut self, what: &str, mut samples: Vec<u64>, aim_ms: Option<u64>, proof: &Proof) {
        samples.sort_unstable();
        let shown = |per_cent| format!("{} ms", percentile(&samples, per_cent));
        let p95 = percentile(&samples, 95);
        let aim = aim_ms.map(|aim| {
            let verdict = if p95 <= aim { "met" } else { "MISSED" };
            format!("{aim} ms: {verdict}")
        });
        eprintln!("{what}: {samples:?}");
        self.table.add_row([
            what.to_owned(),
            shown(50),
            shown(95),
            shown(100),
            samples.len().to_string(),
            proof.overlaps.to_string(),
            proof.accepted.to_string(),
            aim.unwrap_or_default(),
        ]);
    }

    pub fn print(&self) {
        if !self.table.is_empty() {
            println!("\n{}", self.table);
        }
    }
}
