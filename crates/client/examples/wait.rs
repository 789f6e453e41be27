//! Waits in the queue of a key, and works as long as it is owned.
//!
//! `LEASEHOLD_CREDENTIAL=… cargo run -p leasehold-client --example wait`

use std::time::Duration;

use leasehold_client::{Acquire, Keeper, Ttl};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("LEASEHOLD_URL").unwrap_or("http://127.0.0.1:8740".into());
    let credential = std::env::var("LEASEHOLD_CREDENTIAL")?;
    run(&url, &credential).await
}

pub(crate) async fn run(url: &str, credential: &str) -> Result<(), Box<dyn std::error::Error>> {
    let keeper = Keeper::connect(url, credential, "worker-8").await?;
    let request = Acquire {
        wait_ms: 60_000,
        ..keeper.request("job:report".parse()?, Ttl::from_secs(30)?)
    };
    for guard in keeper.acquire(request).await? {
        let mut steps = 0;
        // The keeper renews in the background. Ownership is a comparison with the holder's own
        // deadline, so it is cheap to ask before each step.
        while guard.is_owned() && steps < 3 {
            steps += 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        println!("{steps} steps under token {}", guard.token());
        guard.release().await?;
    }
    Ok(keeper.stop().await?)
}
