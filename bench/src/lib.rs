//! Measurements and the drivers that make them.

pub mod rounds;
