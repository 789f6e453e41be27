//! What stays open: event streams and holder streams.

mod holder;
mod hub;
mod sse;

pub(crate) use holder::{Peer, serve};
pub(crate) use hub::Hub;
pub(crate) use sse::{Format, events};
