//! The authorities: one trait of the kernel, three backends for its state.
//!
//! [`open`] makes one from a URL.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod embedded;
mod leading;
mod live;
pub mod migrate;
mod open;
mod page;
pub mod postgres;
pub mod redis;
mod timing;

pub use lease::engine::RenewalEvents;
pub use open::{Kept, OpenError, Options, Store, StoreUrl, UrlError, open};
pub use timing::register_metrics;
