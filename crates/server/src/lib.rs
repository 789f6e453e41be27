//! The doors of Leasehold: HTTP resources over an [`lease::Authority`], with authentication, problem
//! responses, streams, metrics and the specification of all of it.
//!
//! Doors translate and decide nothing: the rules live in the kernel.

mod app;
pub mod auth;
mod body;
mod connections;
pub mod doors;
mod frame;
mod limits;
pub mod metrics;
mod observe;
mod openapi;
mod ops;
mod options;
mod outbox;
mod pictures;
mod place;
mod problem;
mod query;
mod readers;
mod recent;
mod registry;
mod replicas;
mod sampler;
mod server;
mod shed;
mod streams;
mod tls;

pub use app::App;
pub use body::{Json, JsonBody};
pub use doors::v3::SessionOptions;
pub use limits::Limits;
pub use openapi::openapi;
pub use options::{GuardOptions, Options, RunnerOptions, TlsOptions};
pub use outbox::EXCHANGE;
pub use problem::Reject;
pub use query::Query;
pub use server::{Builder, Error, Server};
pub use tls::Certificate;
