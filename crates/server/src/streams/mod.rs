//! What stays open: event streams and holder streams.

mod holder;
mod hub;
mod operations;
mod rooms;
mod sse;
mod text;
mod watcher;

pub(crate) use holder::{Peer, max_message_bytes, serve};
pub(crate) use hub::Hub;
pub(crate) use rooms::Rooms;
pub(crate) use sse::events;
pub(crate) use text::Format;
