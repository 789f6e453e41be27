//! Tests with real processes and real services; they live in `tests/`.

pub mod sink;
pub mod target;
