//! The coordinator: many instances in one process, on every home of the state.

mod fleet;
mod rules;
mod scale;
mod stopping;
