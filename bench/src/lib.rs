//! Measurements and the drivers that make them.

pub mod rounds;

/// The one of the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
