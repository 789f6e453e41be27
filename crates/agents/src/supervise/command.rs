//! A program to be supervised, before it is started.

use std::{
    ffi::{OsStr, OsString},
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
    process::Stdio,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use lease::BootMillis;
use nix::{
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    unistd::pipe2,
};
use tokio::net::unix::pipe;

use super::{
    Child, Error,
    guardian::{Deadline, ORPHAN_GRACE_MS, Settings},
    job, lifeline,
};

/// Descriptors that are to be inherited are open to every program that is started meanwhile, so
/// guardians are started one at a time.
static SPAWNING: Mutex<()> = Mutex::new(());

/// The binary that becomes the guardian: one that calls [`super::entry`] in its `main`.
#[derive(Clone, Debug)]
pub struct Launcher(OsString);

impl Launcher {
    /// This very binary, also when its file was replaced meanwhile.
    pub fn this_binary() -> Self {
        Self("/proc/self/exe".into())
    }

    /// Another binary.
    pub fn at(path: impl Into<OsString>) -> Self {
        Self(path.into())
    }
}

/// What a program reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// Nothing.
    Nothing,
    /// What the supervisor would read; the terminal too, if the supervisor has it.
    Inherited,
}

/// Where a program writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// To the supervisor, line by line: [`Child::line`].
    Lines,
    /// Standard output to the supervisor as it is ([`Child::take_stdout`]), standard error line by line.
    Bytes,
    /// Where the supervisor writes.
    Inherited,
}

/// A program to be supervised.
#[derive(Clone, Debug)]
pub struct Command {
    program: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    withheld: Vec<OsString>,
    directory: Option<PathBuf>,
    input: Input,
    output: Output,
    deadline: Deadline,
    orphan_grace_ms: u64,
}

impl Command {
    /// A program by its path, or by its name when it is in `PATH`. It reads nothing, and its output
    /// is given to the supervisor.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: vec![program.into()],
            environment: Vec::new(),
            withheld: Vec::new(),
            directory: None,
            input: Input::Nothing,
            output: Output::Lines,
            deadline: Deadline::NEVER,
            orphan_grace_ms: ORPHAN_GRACE_MS,
        }
    }

    /// Adds arguments.
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.program.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let pair = (name.as_ref().to_owned(), value.as_ref().to_owned());
        self.environment.push(pair);
        self
    }

    /// Keeps a variable of this process from it: a credential that is not its own.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.withheld.push(name.as_ref().to_owned());
        self
    }

    /// Sets its working folder.
    pub fn current_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Says what it reads.
    pub fn input(mut self, input: Input) -> Self {
        self.input = input;
        self
    }

    /// Says where it writes.
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Gives it a deadline from the start: see [`Child::deadline`].
    pub fn deadline(mut self, ask_at: BootMillis, kill_at: BootMillis) -> Self {
        self.deadline = Deadline {
            ask_at_ms: ask_at.get(),
            kill_at_ms: kill_at.get(),
        };
        self
    }

    /// Sets how long the tree may take to end after this process vanished, if the deadline is later:
    /// five seconds by default, and killed immediately with none.
    pub fn orphan_grace(mut self, grace: Duration) -> Self {
        self.orphan_grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// Starts it under a guardian.
    ///
    /// A program that cannot be found or run ends with code 127 or 126, as under a shell.
    pub fn spawn(self, launcher: &Launcher) -> Result<Child, Error> {
        let foreground = self.input == Input::Inherited && job::has_terminal();
        let (orders_read, orders_write) =
            pipe2(OFlag::O_CLOEXEC).map_err(Error::os("make a pipe"))?;
        let (reports_read, reports_write) =
            pipe2(OFlag::O_CLOEXEC).map_err(Error::os("make a pipe"))?;
        let connections = lifeline::for_guardian().map_err(Error::os("share connections"))?;
        let settings = Settings {
            orders: orders_read.as_raw_fd(),
            reports: reports_write.as_raw_fd(),
            connections: connections.as_raw_fd(),
            foreground,
            deadline: self.deadline,
            orphan_grace_ms: self.orphan_grace_ms,
        };
        let mut command = tokio::process::Command::new(&launcher.0);
        command
            .arg0("leasehold-guardian")
            .args(settings.arguments())
            .arg("--")
            .args(&self.program)
            .envs(self.environment)
            // A group of its own: neither Ctrl-C nor a pause of our group reaches the guardian.
            .process_group(0);
        for name in &self.withheld {
            command.env_remove(name);
        }
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        if self.input == Input::Nothing {
            command.stdin(Stdio::null());
        }
        if self.output != Output::Inherited {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let guardian = {
            let _one_at_a_time = SPAWNING.lock().unwrap_or_else(PoisonError::into_inner);
            let inherited = [orders_read, reports_write, connections];
            for descriptor in &inherited {
                inherit(descriptor)?;
            }
            command.spawn().map_err(Error::io("start the guardian"))?
        };
        let orders = pipe::Sender::from_owned_fd(orders_write).map_err(Error::io("use a pipe"))?;
        let reports =
            pipe::Receiver::from_owned_fd(reports_read).map_err(Error::io("use a pipe"))?;
        Ok(Child::new(guardian, orders, reports, self.output))
    }
}

fn inherit(descriptor: &OwnedFd) -> Result<(), Error> {
    fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty()))
        .map(drop)
        .map_err(Error::os("prepare a pipe"))
}
