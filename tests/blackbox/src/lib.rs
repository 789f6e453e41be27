//! What tests with real processes and real services share; the tests live in `tests/`, and measurements of
//! the same things in `bench`.

pub mod cli_support;
pub mod sink;
pub mod stage;
pub mod target;
