//! Measurements and the drivers that make them.
