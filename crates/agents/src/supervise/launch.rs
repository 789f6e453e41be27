//! The last step before the program: this process ties itself to its guardian and becomes the
//! program.

use std::{
    ffi::OsString,
    io::ErrorKind,
    os::unix::process::{CommandExt, parent_id},
    path::Path,
    process::{Command, ExitCode},
};

use nix::sys::signal::{SigSet, Signal};

use super::{cgroup, job};

/// As a shell: the program was not found.
const NOT_FOUND: u8 = 127;
/// As a shell: it was found and could not be run.
const NOT_RUN: u8 = 126;

/// What the guardian reports to the launcher.
pub(super) struct Settings<'a> {
    pub(super) cgroup: Option<&'a Path>,
    /// Whether the program gets the terminal.
    pub(super) foreground: bool,
    /// The guardian's socket with the supervisor's connections, which is not for the program.
    pub(super) connections: i32,
}

impl Settings<'_> {
    /// As arguments, before `--` and the program.
    pub(super) fn arguments(&self) -> [OsString; 4] {
        [
            std::process::id().to_string().into(),
            if self.foreground { "fg" } else { "bg" }.into(),
            self.cgroup.map_or_else(|| "-".into(), Into::into),
            self.connections.to_string().into(),
        ]
    }
}

pub(super) fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let header: Vec<OsString> = arguments.by_ref().take(4).collect();
    let [guardian, place, cgroup, connections] = header.as_slice() else {
        return ExitCode::from(NOT_RUN);
    };
    let mut arguments = arguments.skip_while(|argument| argument == "--");
    let Some(program) = arguments.next() else {
        return ExitCode::from(NOT_RUN);
    };
    // Inherited from the guardian, and closed before there is a program.
    let closed = connections
        .to_str()
        .and_then(|number| number.parse::<i32>().ok())
        .map(nix::unistd::close);
    if !matches!(closed, Some(Ok(()))) {
        return ExitCode::from(NOT_RUN);
    }
    if let Err(error) = prepare(guardian, place == "fg", cgroup) {
        eprintln!("leasehold: cannot tie the program to its guardian: {error}");
        return ExitCode::from(NOT_RUN);
    }
    let error = Command::new(&program).args(arguments).exec();
    eprintln!("leasehold: cannot run {}: {error}", program.display());
    ExitCode::from(if error.kind() == ErrorKind::NotFound {
        NOT_FOUND
    } else {
        NOT_RUN
    })
}

fn prepare(guardian: &OsString, foreground: bool, cgroup: &OsString) -> std::io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The guardian may have died before the kernel was asked to watch it.
    if *guardian != *parent_id().to_string() {
        return Err(std::io::Error::other("the guardian is gone"));
    }
    if cgroup != "-" {
        // Without it, the walk over the tree still finds everything.
        let _ = cgroup::join(Path::new(cgroup));
    }
    if foreground {
        job::take_terminal();
    }
    // The guardian blocks every signal, and that is inherited.
    SigSet::all().thread_unblock()?;
    Ok(())
}
