//! A process of this program that holds a lock as its peer's users do, until it is killed.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Result;
use lease::{Key, Ttl};
use leasehold_client::{Client, Keeper, Options, Remote, keeper, new_holder};
use leasehold_clock::System;
use leasehold_testkit::{Child, Program};

use super::{
    SOON, etcd,
    leasehold_http::TOKEN,
    lock::{Advisory, Etcd, Lock as _, Redis},
    postgres::Postgres,
};

/// The ttl of what it holds.
pub const TTL_SECONDS: u64 = 5;
/// How often it renews where nothing does that for it.
const RENEW: Duration = Duration::from_millis(1_666);

/// Where it holds a lock, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    Redis,
    Etcd,
    Advisory,
    Http,
    Stream,
}

/// Starts a holder and waits until it holds the lock of this number.
pub async fn start(way: Way, address: SocketAddr, number: usize) -> Result<Child> {
    let way = match way {
        Way::Redis => "redis",
        Way::Etcd => "etcd",
        Way::Advisory => "advisory",
        Way::Http => "http",
        Way::Stream => "stream",
    };
    let mut child = Program::new(std::env::current_exe()?)
        .args(["--hold", way, "--listen", &address.to_string()])
        .args(["--number", &number.to_string()])
        .spawn();
    child.wait_for_line("holding", SOON).await;
    Ok(child)
}

/// The name of a lock.
pub fn key(number: usize) -> String {
    format!("key-{number}")
}

/// Holds it for ever.
pub fn hold(way: Way, address: SocketAddr, number: usize) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match way {
            Way::Redis => {
                let mut lock = Redis::open(address, &key(number), "first").await?;
                lock.attempt(TTL_SECONDS * 1000).await?;
                println!("holding");
                loop {
                    tokio::time::sleep(RENEW).await;
                    lock.keep(TTL_SECONDS * 1000).await?;
                }
            }
            Way::Etcd => {
                let client = etcd::Client::open(address).await?;
                let mut lock = Etcd::open(client, &key(number), TTL_SECONDS).await?;
                let mut keep_alive = lock.keep_alive().await?;
                lock.lock().await?;
                println!("holding");
                loop {
                    tokio::time::sleep(RENEW).await;
                    keep_alive.keep().await?;
                }
            }
            Way::Advisory => {
                let client = Postgres::connect_to(address).await?;
                let mut lock = Advisory::open(client, i64::try_from(number)?).await?;
                lock.lock().await?;
                println!("holding");
                std::future::pending().await
            }
            Way::Http | Way::Stream => {
                let options = Options::new(format!("http://{address}")).token(TOKEN);
                let remote = Arc::new(Remote::connect(Client::new(options)?).await?);
                let settings = keeper::Options {
                    stream: way == Way::Stream,
                    ..keeper::Options::default()
                };
                let holder = new_holder("first")?;
                let keeper = Keeper::start(remote, holder, Arc::new(System), settings);
                let key = Key::new("lock", &key(number))?;
                let mut request = keeper.request(key, Ttl::from_secs(TTL_SECONDS)?);
                request.release_on_death = true;
                let _guards = keeper.acquire(request).await?;
                // The stream may still be on its way up.
                tokio::time::sleep(Duration::from_millis(500)).await;
                println!("holding");
                std::future::pending().await
            }
        }
    })
}
