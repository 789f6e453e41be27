//! Owns a key, works while it does, and gives it back.
//!
//! `LEASEHOLD_CREDENTIAL=… cargo run -p leasehold-client --example own`

use leasehold_client::{Keeper, Token, Ttl};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("LEASEHOLD_URL").unwrap_or("http://127.0.0.1:8740".into());
    let credential = std::env::var("LEASEHOLD_CREDENTIAL")?;
    run(&url, &credential).await
}

// Ten lines: README.md shows them.
pub(crate) async fn run(url: &str, credential: &str) -> Result<(), Box<dyn std::error::Error>> {
    let keeper = Keeper::connect(url, credential, "worker-7").await?;
    let guard = keeper
        .acquire_one("job:report".parse()?, Ttl::from_secs(30)?)
        .await?;
    tokio::select! {
        () = work(guard.token()) => println!("done"),
        lost = guard.lost() => eprintln!("stopped: {lost}"),
    }
    guard.release().await?;
    Ok(keeper.stop().await?)
}

/// Sends the token along with every effect, so that a receiver can reject a stale holder.
async fn work(token: Token) {
    println!("working under token {token}");
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
}
