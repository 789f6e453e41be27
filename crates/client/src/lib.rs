//! The client: what a holder needs to own work and to know until when.
//!
//! A [`Keeper`] is the holder's side. It asks an authority for keys, renews everything it holds in
//! one call, and gives a [`Guard`] per lease. The authority may live in this process, or be a server
//! ([`Remote`]); the keeper does not care.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use leasehold_client::{Keeper, keeper, new_holder};
//! # use leasehold_store::embedded::{Embedded, Options};
//! use leasehold_client::{Ttl, clock};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = Arc::new(clock::System);
//! // Over HTTP: `Keeper::connect("https://leases.example:8740", "…", "worker-7").await?`
//! # let authority = Embedded::memory(Options::default(), clock.clone())?;
//! let keeper = Keeper::start(Arc::new(authority), new_holder("worker-7")?, clock, keeper::Options::default());
//!
//! let guard = keeper.acquire_one("camera:front-door".parse()?, Ttl::from_secs(30)?).await?;
//! let work = async {
//!     let mut frames = 0;
//!     while frames < 3 && guard.is_owned() {
//!         frames += 1; // … and send guard.token() along with every effect
//!         tokio::time::sleep(Duration::from_millis(1)).await;
//!     }
//! };
//! tokio::select! {
//!     () = work => println!("done"),
//!     lost = guard.lost() => eprintln!("stopped: {lost}"),
//! }
//! guard.release().await?; // dropping it would do the same in the background
//! keeper.stop().await?;
//! # Ok(())
//! # }
//! ```
//!
//! What the keeper promises: ownership is a comparison with a deadline that counts from before the
//! request was sent (L10); a failed renewal is not a loss (L11), a definite answer is one immediately
//! (L7, L13); a hung call delays neither the deadline nor the next attempt; and whatever is let go of,
//! in whichever way, is given back.
//!
//! [`Client`] has the control plane's calls as methods, for programs that manage leases rather than
//! hold them.

mod client;
pub mod control_plane;
mod convert;
mod credentials;
pub mod documents;
mod error;
mod follower;
pub mod keeper;
mod leadership;
mod leases;
pub mod pages;
mod peers;
mod presence;
mod registry;
mod remote;
pub mod sessions;
mod sites;
mod sse;
pub mod stream;
mod tls;
mod transport;
mod wait;
mod watch;
mod words;

/// The clocks that deadlines are counted on, one that tests move by hand, and the back-off.
pub use leasehold_clock as clock;

pub use client::{Client, Options};
pub use control_plane::{ControlPlaneClient, Outcome, RunnerClient};
pub use error::Error;
pub use follower::{Change, Follower};
pub use keeper::{Guard, Keeper, State};
pub use leadership::Leadership;
pub use leases::{EventFilter, LeaseFilter};
pub use peers::{PeerList, answer_peers};
pub use presence::{Announced, Presence};
pub use registry::{DeploymentOrder, RunnerFilter, RunnerOrder};
pub use remote::Remote;
pub use stream::HolderStream;
pub use tls::Trust;

// What a program that owns things needs of the kernel, so that one crate is enough to depend on.
pub use lease::{
    Acquire, Authority, Grace, Holder, HolderName, Incarnation, Invalid, Key, Labels, Lease, Loss,
    OnOutage, Refusal, Token, Ttl, Want,
};

/// The examples of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

/// A holder with this stable name and an incarnation for this process start.
pub fn new_holder(name: &str) -> Result<lease::Holder, lease::Invalid> {
    Ok(lease::Holder {
        name: lease::HolderName::new(name)?,
        incarnation: new_incarnation(),
    })
}

/// An incarnation for this process start: random, so that two processes with one configured name
/// never count as the same holder.
pub fn new_incarnation() -> lease::Incarnation {
    let text = uuid::Uuid::new_v4().simple().to_string();
    lease::Incarnation::new(text).expect("32 hexadecimal digits are an incarnation")
}
