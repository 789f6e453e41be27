//! A server that is polled, as a process of its own: for networks that a test itself is not in.

use std::{net::SocketAddr, time::Duration};

use leasehold_blackbox::target::{Behaviour, Target};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let address: SocketAddr = std::env::args()
        .nth(1)
        .and_then(|address| address.parse().ok())
        .expect("the address to listen on");
    let behaviour = Behaviour {
        think: Duration::from_millis(5),
        print: true,
        ..Behaviour::default()
    };
    let target = Target::listen(address, behaviour).await;
    println!("listening on {}", target.address());
    std::future::pending::<()>().await;
}
