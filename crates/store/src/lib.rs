//! The authorities: one trait of the kernel, three homes for its state.
