//! The routes of Leasehold: HTTP resources over an [`lease::Authority`], with authentication, problem
//! responses, streams, metrics and the specification of all of it.
//!
//! Routes translate and decide nothing: the rules live in the kernel.

mod along;
mod app;
pub mod auth;
mod body;
mod connections;
mod frame;
mod limits;
pub mod metrics;
mod observe;
mod openapi;
mod ops;
mod options;
mod outbox;
mod pictures;
mod problem;
mod query;
mod readers;
mod recent;
mod registry;
mod replicas;
pub mod routes;
mod sampler;
mod server;
mod shed;
mod streams;
mod tls;

pub use app::App;
pub use body::{Json, JsonBody};
pub use limits::Limits;
pub use openapi::openapi;
pub use options::{GuardOptions, Options, RunnerOptions, TlsOptions};
pub use outbox::EXCHANGE;
pub use problem::Reject;
pub use query::Query;
pub use routes::v3::SessionOptions;
pub use server::{Builder, Error, Server};
pub use tls::Certificate;
