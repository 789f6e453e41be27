//! A supervised program, seen from the supervisor.

use std::{io, time::Duration};

use lease::BootMillis;
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::unix::pipe,
    process::ChildStdout,
    sync::{mpsc, watch},
};

use super::{
    Cause, End, Exit, Output, cgroup,
    output::{self, LINES_WAITING, Line, Stream},
    protocol::{Order, Report},
};

/// Why a program could not be started or ordered about.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {what}: {source}")]
    Os {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The guardian could not launch the program.
    #[error("the guardian could not launch the program: {0}")]
    Launch(String),
    /// The guardian does not take orders: it ended, or it hangs.
    #[error("the guardian takes no orders")]
    Guardian,
}

impl Error {
    pub(super) fn os(what: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Os {
            what,
            source: errno.into(),
        }
    }

    pub(super) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Os { what, source }
    }
}

/// What is known about the program.
#[derive(Clone, Debug, Default)]
struct Known {
    pid: Option<u32>,
    failed: Option<String>,
    exit: Option<Exit>,
    /// How often it was reported to have stopped, and by which signal last.
    stops: (u64, i32),
}

/// What happened to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// A signal stopped it (Ctrl-Z); [`Child::signal`] with SIGCONT continues it.
    Stopped(i32),
    /// It and everything it started ended.
    Ended(Exit),
}

/// A program that runs under its guardian. Dropping it closes the guardian's pipe, and the guardian
/// then stops the whole tree.
#[derive(Debug)]
pub struct Child {
    guardian: u32,
    orders: pipe::Sender,
    known: watch::Receiver<Known>,
    lines: mpsc::Receiver<Line>,
    stdout: Option<ChildStdout>,
    stops_seen: u64,
}

impl Child {
    pub(super) fn new(
        mut guardian: tokio::process::Child,
        orders: pipe::Sender,
        reports: pipe::Receiver,
        output: Output,
    ) -> Self {
        let (known, seen) = watch::channel(Known::default());
        let (lines, received) = mpsc::channel(LINES_WAITING);
        let mut stdout = guardian.stdout.take();
        if output == Output::Lines
            && let Some(stdout) = stdout.take()
        {
            tokio::spawn(output::read(stdout, Stream::Out, lines.clone()));
        }
        if let Some(stderr) = guardian.stderr.take() {
            tokio::spawn(output::read(stderr, Stream::Err, lines));
        }
        let pid = guardian.id().unwrap_or_default();
        tokio::spawn(follow(guardian, reports, known));
        Self {
            guardian: pid,
            orders,
            known: seen,
            lines: received,
            stdout,
            stops_seen: 0,
        }
    }

    /// The process id of the guardian.
    pub fn guardian_pid(&self) -> u32 {
        self.guardian
    }

    /// The process id of the program, once it was launched.
    pub fn pid(&self) -> Option<u32> {
        self.known.borrow().pid
    }

    /// Waits until the program was launched, and gives its process id. It may have ended since.
    pub async fn started(&mut self) -> Result<u32, Error> {
        let known = self
            .known
            .wait_for(|known| known.pid.is_some() || known.failed.is_some() || known.exit.is_some())
            .await
            .map_err(|_| Error::Guardian)?;
        match (known.pid, &known.failed) {
            (Some(pid), _) => Ok(pid),
            (None, Some(why)) => Err(Error::Launch(why.clone())),
            (None, None) => Err(Error::Guardian),
        }
    }

    /// Waits for the end of the program and of everything it started.
    pub async fn wait(&mut self) -> Exit {
        let exit = match self.known.wait_for(|known| known.exit.is_some()).await {
            Ok(known) => known.exit,
            Err(_) => None,
        };
        exit.unwrap_or(LOST)
    }

    /// Waits for its end, or for a signal that stops it.
    pub async fn progress(&mut self) -> Progress {
        let seen = self.stops_seen;
        let happened = |known: &Known| known.exit.is_some() || known.stops.0 > seen;
        let Ok(known) = self.known.wait_for(happened).await else {
            return Progress::Ended(LOST);
        };
        if let Some(exit) = known.exit {
            return Progress::Ended(exit);
        }
        let (stops, signal) = known.stops;
        drop(known);
        self.stops_seen = stops;
        Progress::Stopped(signal)
    }

    /// The next line that it printed; `None` when both its streams have ended or are inherited.
    pub async fn line(&mut self) -> Option<Line> {
        self.lines.recv().await
    }

    /// What it writes to standard output, as it is: once, and only with [`Output::Bytes`]. Read it to
    /// its end, or the program blocks.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.stdout.take()
    }

    /// What it prints from now on, apart from the child, so that one task can read while another waits.
    /// [`Child::line`] has nothing more after this.
    pub fn take_lines(&mut self) -> Lines {
        let (_, nothing) = mpsc::channel(1);
        Lines(std::mem::replace(&mut self.lines, nothing))
    }

    /// Sets the moments at which the tree is asked to end (SIGTERM) and killed (SIGKILL), whatever
    /// becomes of this process. Without effect once the tree is being stopped.
    pub fn deadline(&self, ask_at: BootMillis, kill_at: BootMillis) -> Result<(), Error> {
        self.order(Order::Deadline {
            ask_at_ms: ask_at.get(),
            kill_at_ms: kill_at.get(),
        })
    }

    /// Passes a signal on to the program's process group.
    pub fn signal(&self, signal: i32) -> Result<(), Error> {
        self.order(Order::Signal(signal))
    }

    /// Asks the whole tree to end, and kills it after `grace`; with no grace it is killed immediately.
    pub fn stop(&self, grace: Duration) -> Result<(), Error> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.order(Order::Stop { grace_ms })
    }

    /// For a guardian that does not do its duty: kills it and the program's process group from here.
    pub fn kill_by_hand(&self) {
        let to_pid = |pid: u32| Pid::from_raw(pid.cast_signed());
        if let Some(pid) = self.known.borrow().pid {
            let _ = killpg(to_pid(pid), Signal::SIGKILL);
        }
        if self.guardian != 0 {
            let _ = kill(to_pid(self.guardian), Signal::SIGKILL);
        }
    }

    /// A pipe that is full counts as a guardian that hangs: an order must never wait.
    fn order(&self, order: Order) -> Result<(), Error> {
        let line = order.to_line();
        match self.orders.try_write(line.as_bytes()) {
            Ok(written) if written == line.len() => Ok(()),
            Ok(_) | Err(_) => Err(Error::Guardian),
        }
    }
}

/// The lines of a program: see [`Child::take_lines`].
#[derive(Debug)]
pub struct Lines(mpsc::Receiver<Line>);

impl Lines {
    /// The next line; `None` when both streams have ended.
    pub async fn next(&mut self) -> Option<Line> {
        self.0.recv().await
    }
}

/// All that can be said when the guardian vanished: the kernel killed the program with it.
const LOST: Exit = Exit {
    end: End::Signal(9),
    cause: Cause::GuardianLost,
};

/// Reads the guardian's reports to their end, and reaps it.
async fn follow(
    mut guardian: tokio::process::Child,
    reports: pipe::Receiver,
    known: watch::Sender<Known>,
) {
    let mut lines = BufReader::new(reports).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        known.send_modify(|known| match Report::parse(&line) {
            Some(Report::Started(pid)) => known.pid = Some(pid),
            Some(Report::Failed(why)) => known.failed = Some(why),
            Some(Report::Stopped(signal)) => known.stops = (known.stops.0 + 1, signal),
            Some(Report::Ended(exit)) => known.exit = Some(exit),
            None => {}
        });
    }
    let _ = guardian.wait().await;
    known.send_modify(|known| {
        if known.exit.is_none() {
            if let Some(pid) = known.pid {
                let _ = killpg(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
            }
            cgroup::end_orphans();
            known.exit = Some(LOST);
        }
    });
}
