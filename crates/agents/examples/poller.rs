//! The coordinator inside one's own program: start as many copies as you like.
//!
//! `cargo run -p leasehold-agents --example poller -- embedded:/tmp/poller`, or the URL of a Redis.

use std::{sync::Arc, time::Duration};

use leasehold_agents::poller::{Coordinator, Options, Target, Targets};
use leasehold_clock::System;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or("memory:".into())
        .parse()?;
    let store =
        leasehold_store::open(&url, leasehold_store::Options::default(), Arc::new(System)).await?;
    let targets = Targets::Fixed(
        (1..=9)
            .map(|n| Target::new(format!("session-{n}")))
            .collect(),
    );
    let coordinator = Coordinator::start(
        store.authority(),
        Arc::new(System),
        targets,
        Options::default(),
    )
    .await?;

    let poll = async {
        loop {
            for target in coordinator.owned() {
                // The permit for one poll: ownership is checked now, and kept until the permit is dropped.
                if let Some(permit) = coordinator.permit(&target) {
                    println!(
                        "polling {target} under token {}, for at most {:?}",
                        permit.token(),
                        permit.left()
                    );
                }
            }
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
    };
    tokio::select! {
        () = poll => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    coordinator.stop().await?; // polls end, then leases are released, then presence is withdrawn
    Ok(store.close().await?)
}
