//! The server over HTTP: every route, streams, tokens, limits and the outbox.

#[macro_use]
mod support;

mod auth;
mod control_plane_client;
mod documents;
mod failures;
mod frame;
mod kernel;
mod leases;
mod outbox;
mod overview;
mod registry;
mod sessions;
mod spec;
mod streams;
mod tenants;
