//! The server over HTTP: every route, streams, tokens, limits and the outbox.

#[macro_use]
mod support;

mod auth;
mod control_plane_client;
mod credentials;
mod credentials_shared;
mod dba;
mod documents;
mod failures;
mod frame;
mod kernel;
mod leases;
mod limits;
mod outbox;
mod overview;
mod pictures;
mod planted;
mod proven_death;
mod registry;
mod reserved;
mod resting;
mod secrets;
mod sessions;
mod spec;
mod stream_operations;
mod streams;
mod targets;
mod tenants;
