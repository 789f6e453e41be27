//! The authorities: one trait of the kernel, three homes for its state.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
