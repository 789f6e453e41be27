//! What a manager costs while nothing happens.

use std::time::Duration;

use anyhow::Result;
use leasehold_bench::{cpu_ms, usage::Processes};
use leasehold_blackbox::stage::Stage;
use serde_json::json;

use crate::{Length, report::table};

const CAMERAS: usize = 64;
/// What a start leaves to do is over by then.
const SETTLE: Duration = Duration::from_secs(10);

/// The usual ttl and intervals, and workers that hardly publish.
pub async fn measure(length: Length) -> Result<()> {
    let stage = Stage::start(CAMERAS).await;
    let changes = json!({"lease_ttl_seconds": 60, "lease_retry_interval_seconds": 10,
        "worker": {"environment": {"TICK": "5"}, "health_interval_seconds": 5}});
    let manager = stage.manager("m1", changes).await;
    stage.holds("m1", CAMERAS).await;
    manager.ready().await;
    tokio::time::sleep(SETTLE).await;
    let pid = manager.child.pid();
    // Its children are the guardians of its workers.
    let with_guardians = Processes::with_children(pid);
    let span = Duration::from_secs(length.pick(30, 300));
    let before = (cpu_ms(pid)?, with_guardians.cpu_seconds()?);
    tokio::time::sleep(span).await;
    let own = (cpu_ms(pid)? - before.0) / span.as_secs_f64() / 10.0;
    let all = (with_guardians.cpu_seconds()? - before.1) / span.as_secs_f64() * 100.0;
    let memory = with_guardians.resident_bytes()? / 1_024 / 1_024;
    let mut table = table(&["cameras", "manager", "with its guardians", "memory of both"]);
    table.add_row([
        CAMERAS.to_string(),
        format!("{own:.2} % of a core"),
        format!("{all:.2} % of a core"),
        format!("{memory} MiB"),
    ]);
    println!(
        "\none manager with idle cameras, over {} s\n\n{table}",
        span.as_secs()
    );
    Ok(())
}
