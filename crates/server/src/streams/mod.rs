//! What stays open: event streams and holder streams.

mod holder;
mod hub;
mod operations;
mod sse;

pub(crate) use holder::{Peer, max_message_bytes, serve};
pub(crate) use hub::Hub;
pub(crate) use sse::{Format, events};
