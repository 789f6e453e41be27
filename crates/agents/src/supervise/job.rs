//! Job control: a program that is started from a terminal behaves there as if its shell had started it.
//!
//! The program has a process group of its own, which the terminal listens to. So Ctrl-C and Ctrl-Z reach
//! the program and not its supervisor, and it is the supervisor that must bring the shell back when the
//! program stops, and the program to the front when the shell continues the job.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    sys::{
        signal::{SigSet, Signal, killpg, raise},
        termios::{SetArg, Termios, tcgetattr, tcsetattr},
    },
    unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp},
};

use super::{Cause, Child, End, Exit};

/// More scripts that start each other than anybody writes.
const ANCESTORS: usize = 64;

/// This process as a job of its shell: what its terminal is, who has it, and in which mode it was.
#[derive(Debug)]
pub struct Job {
    terminal: Option<File>,
    /// As the shell left it.
    modes: Option<Termios>,
    /// As the program left it when it stopped.
    program_modes: Option<Termios>,
    /// Whether somebody asked this process to stop, and the program has not stopped yet.
    asked: bool,
    /// Whether this process sends itself what it listens for.
    own: bool,
}

impl Job {
    /// Takes note of the terminal that controls this process, if there is one. Before the program is
    /// started.
    pub fn new() -> Self {
        let terminal = open().ok();
        let modes = terminal
            .as_ref()
            .filter(|terminal| is_ours(terminal))
            .and_then(|terminal| tcgetattr(terminal).ok());
        Self {
            terminal,
            modes,
            program_modes: None,
            asked: false,
            own: false,
        }
    }

    /// This process got SIGTSTP, which it listens for: the program is stopped, as Ctrl-Z on the terminal does, and
    /// [`Job::suspend`] follows when it has. Where nobody could continue this process, nothing happens.
    pub fn stop(&mut self, child: &Child) {
        if !std::mem::take(&mut self.own) && can_be_continued() {
            self.asked = true;
            let _ = child.signal(Signal::SIGTSTP as i32);
        }
    }

    /// The program stopped: the terminal goes back to the shell, and this process stops with its whole job, as
    /// the shell expects. Returns when it was continued, or immediately where nobody could continue it (the
    /// kernel stops no process whose shell is gone). Without a terminal nothing happens, unless this process was
    /// asked to stop.
    pub fn suspend(&mut self, child: &Child, signal: i32) {
        let asked = std::mem::take(&mut self.asked);
        match &self.terminal {
            Some(terminal) if belongs_to(terminal, child.pid()) => {
                self.program_modes = tcgetattr(terminal).ok();
                take_back(terminal, self.modes.as_ref());
            }
            None if !asked => return,
            _ => {}
        }
        let stop = match Signal::try_from(signal) {
            Ok(stop @ (Signal::SIGTTIN | Signal::SIGTTOU)) => stop,
            _ => Signal::SIGTSTP,
        };
        // Everything that was started with it: the rest of a pipeline, or the script that it is part of.
        self.own = stop == Signal::SIGTSTP;
        let _ = killpg(getpgrp(), stop);
        if self.own && can_be_continued() {
            let _ = raise(Signal::SIGSTOP);
        }
    }

    /// The job was continued: the program goes on, with the terminal if the shell gave it to this job.
    pub fn resume(&mut self, child: &Child) {
        self.bring_to_front(child);
        // A guardian that takes no orders is noticed by whoever waits for it.
        let _ = child.signal(Signal::SIGCONT as i32);
    }

    /// Passes the terminal on to the program if the shell gave it to this job. A program that runs is sent no
    /// signal for that: one that was stopped meanwhile would be continued behind its shell's back.
    pub fn bring_to_front(&mut self, child: &Child) {
        let (Some(terminal), Some(pid)) = (&self.terminal, child.pid()) else {
            return;
        };
        if !is_ours(terminal) {
            return;
        }
        self.modes = tcgetattr(terminal).ok();
        without_stopping(|| {
            if let Some(modes) = self.program_modes.take() {
                let _ = tcsetattr(terminal, SetArg::TCSANOW, &modes);
            }
            let _ = tcsetpgrp(terminal, to_pid(pid));
        });
    }

    /// Nothing of the program is left: takes the terminal back if the program had it. One that did not leave
    /// by itself had no time to put the terminal's modes back.
    pub fn end(&mut self, child: &Child, exit: Option<Exit>) {
        let Some(terminal) = &self.terminal else {
            return;
        };
        let left =
            exit.is_some_and(|exit| exit.cause == Cause::Own && matches!(exit.end, End::Code(_)));
        if belongs_to(terminal, child.pid()) {
            let modes = self.modes.as_ref().filter(|_| !left);
            take_back(terminal, modes);
        }
    }

    /// Whether the terminal is gone: its window was closed, or its connection broke.
    pub fn is_hung_up(&self) -> bool {
        let terminal = self.terminal.as_ref();
        terminal.is_some_and(|terminal| tcgetattr(terminal) == Err(Errno::EIO))
    }
}

impl Default for Job {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether this process is in the group that its terminal listens to.
pub(super) fn has_terminal() -> bool {
    open().is_ok_and(|terminal| is_ours(&terminal))
}

/// Lets the terminal listen to this process, which leads a group of its own.
pub(super) fn take_terminal() {
    if let Ok(terminal) = open() {
        without_stopping(|| {
            let _ = tcsetpgrp(&terminal, getpgrp());
        });
    }
}

fn open() -> std::io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags.bits())
        .open("/dev/tty")
}

/// Whether a shell, or whoever else started this job, is there to continue it: the kernel asks the same before
/// it stops a process.
fn can_be_continued() -> bool {
    let own = getpgrp().as_raw();
    let Some((mut parent, _, session)) = place("self") else {
        return false;
    };
    // Up through the scripts that this process is part of.
    for _ in 0..ANCESTORS {
        match place(&parent.to_string()) {
            Some((_, _, other)) if other != session => return false,
            Some((next, group, _)) if group == own => parent = next,
            Some(_) => return true,
            None => return false,
        }
    }
    false
}

/// Parent, group and session of a process.
fn place(process: &str) -> Option<(i32, i32, i32)> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut numbers = fields.split(' ').skip(1).map_while(|it| it.parse().ok());
    Some((numbers.next()?, numbers.next()?, numbers.next()?))
}

fn to_pid(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed())
}

fn is_ours(terminal: &File) -> bool {
    tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp())
}

/// Whether the terminal listens to the program, or to a group of its tree that is gone.
fn belongs_to(terminal: &File, program: Option<u32>) -> bool {
    tcgetpgrp(terminal).is_ok_and(|group| {
        group != getpgrp()
            && (program.map(to_pid) == Some(group) || killpg(group, None) == Err(Errno::ESRCH))
    })
}

fn take_back(terminal: &File, modes: Option<&Termios>) {
    without_stopping(|| {
        let _ = tcsetpgrp(terminal, getpgrp());
        if let Some(modes) = modes {
            let _ = tcsetattr(terminal, SetArg::TCSANOW, modes);
        }
    });
}

/// A process in the background is stopped for changing the terminal, unless it blocks that signal.
fn without_stopping(action: impl FnOnce()) {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGTTOU);
    if mask.thread_block().is_ok() {
        action();
        let _ = mask.thread_unblock();
    }
}
