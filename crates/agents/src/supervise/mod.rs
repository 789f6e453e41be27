//! Child processes that can be stopped for certain.
//!
//! Between this process and the program stands a *guardian*: a small process of its own, started
//! from the same binary, that owns the program's whole tree and knows until when it may run. The
//! supervising process only sends it orders through a pipe, so the program is stopped in time also
//! when the supervisor is paused, hung or killed:
//!
//! - the guardian is the tree's *subreaper*: a grandchild that called `setsid` and lost its parent
//!   becomes the guardian's child, and is found when the tree is ended. Where a cgroup can be made,
//!   the tree lives in one and is killed in one step;
//! - a deadline on `CLOCK_BOOTTIME` counts on while the machine sleeps;
//! - when the pipe closes, the supervisor is gone and the tree is stopped;
//! - a connection whose end would give the supervisor's keys to others is held by the guardian too
//!   ([`Guardians`]): it is closed only when nothing of the tree is left;
//! - when the guardian itself is killed, the kernel kills the program (`PR_SET_PDEATHSIG`). What the
//!   program started is killed with its cgroup, by the supervisor, or by the next guardian if the
//!   supervisor is gone too.
//!
//! Nothing is claimed about a guardian that is stopped (SIGSTOP) or gets no time, or, where no cgroup
//! can be made, about the descendants of a program whose guardian and supervisor were both killed: they
//! may outlive the lease. Only the fencing token keeps those out.
//!
//! A binary that supervises calls [`entry`] first thing in its `main`.

mod cgroup;
mod child;
mod command;
mod exit;
mod guardian;
mod job;
mod launch;
mod lifeline;
mod output;
mod protocol;
mod tree;

use std::{ffi::OsString, process::ExitCode};

pub use child::{Child, Error, Lines, Progress};
pub use command::{Command, Input, Launcher, Output};
pub use exit::{Cause, End, Exit};
pub use job::Job;
pub use lifeline::Guardians;
pub use output::{Line, Stream};
pub use tree::{become_subreaper, kill_descendants};

/// The first argument that makes this binary a guardian.
const GUARDIAN: &str = "__guardian";
/// The first argument that makes this binary prepare itself and become the program.
const LAUNCH: &str = "__launch";

/// Does what a supervisor started this binary for, if one did. `None` means that this is an
/// ordinary start.
///
/// ```no_run
/// # use std::process::ExitCode;
/// fn main() -> ExitCode {
///     if let Some(code) = leasehold_agents::supervise::entry(std::env::args_os()) {
///         return code;
///     }
///     ExitCode::SUCCESS // … the program's own work
/// }
/// ```
pub fn entry(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    match arguments.next()?.to_str()? {
        GUARDIAN => Some(guardian::main(arguments)),
        LAUNCH => Some(launch::main(arguments)),
        _ => None,
    }
}
