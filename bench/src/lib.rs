//! Measurements and the drivers that make them.

pub mod rounds;
pub mod usage;

use anyhow::Context as _;

/// The processor time that a process has used, in ms.
///
/// # Errors
///
/// When there is no such process.
pub fn cpu_ms(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").context("a process")?;
    let mut times = fields.split(' ').skip(11);
    let (user, system) = (times.next(), times.next());
    let user: f64 = user.context("a time")?.parse()?;
    let ticks = user + system.context("a time")?.parse::<f64>()?;
    // A tick is a hundredth of a second on every Linux.
    Ok(ticks * 10.0)
}

/// The one of the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
