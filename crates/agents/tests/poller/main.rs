//! The coordinator: many instances in one process, on every home of the state.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod fleet;
mod rules;
mod scale;
mod stopping;
