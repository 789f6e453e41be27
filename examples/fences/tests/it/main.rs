//! Fences at receivers: the middleware, the stores and a paused owner.

mod docs;
mod layer;
mod paused_owner_services;
mod paused_owner_stores;
mod support;
