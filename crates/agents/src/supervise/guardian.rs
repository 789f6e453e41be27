//! The process between the supervisor and the program: it holds the deadline and owns the tree.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal, killpg},
        time::TimeSpec,
        timer::{Expiration, TimerSetTimeFlags},
        timerfd::{ClockId, TimerFd, TimerFlags},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    time::clock_gettime,
    unistd::Pid,
};

use super::{
    Cause, End, Exit, GUARDIAN, LAUNCH,
    cgroup::{self, Cgroup},
    launch, lifeline,
    protocol::{Order, Report},
    tree,
};

/// How long what a program left behind may take to end after it.
const LEFTOVER_GRACE_MS: u64 = 1_000;
/// How long a tree may take to end after its supervisor vanished, if the deadline is later and nothing
/// else was said.
pub(super) const ORPHAN_GRACE_MS: u64 = 5_000;
/// Between two passes of killing: a process that forked during the last pass is found in the next.
const KILL_PASS_MS: u64 = 5;
/// Messages between the guardian's threads: each thread waits for its own to be taken.
const INPUTS: usize = 16;
/// What the guardian leaves with when it could not even begin.
const FAILED: u8 = 125;

/// What a guardian must know before the program starts, as it travels in its arguments.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// The inherited descriptor of the pipe with [`Order`]s.
    pub(super) orders: i32,
    /// The inherited descriptor of the pipe for [`Report`]s.
    pub(super) reports: i32,
    /// The inherited descriptor of the socket with the supervisor's connections.
    pub(super) connections: i32,
    /// Whether the program gets the terminal.
    pub(super) foreground: bool,
    /// The first deadline, so that the program never runs without one.
    pub(super) deadline: Deadline,
    /// How long the tree may take to end after the supervisor vanished.
    pub(super) orphan_grace_ms: u64,
}

/// When the tree is asked to end and when it is killed; `u64::MAX` is never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deadline {
    pub(super) ask_at_ms: u64,
    pub(super) kill_at_ms: u64,
}

impl Deadline {
    pub(super) const NEVER: Self = Self {
        ask_at_ms: u64::MAX,
        kill_at_ms: u64::MAX,
    };
}

impl Settings {
    pub(super) fn arguments(&self) -> [OsString; 8] {
        [
            GUARDIAN.into(),
            self.orders.to_string().into(),
            self.reports.to_string().into(),
            self.connections.to_string().into(),
            if self.foreground { "fg" } else { "bg" }.into(),
            self.deadline.ask_at_ms.to_string().into(),
            self.deadline.kill_at_ms.to_string().into(),
            self.orphan_grace_ms.to_string().into(),
        ]
    }

    fn parse(words: &[OsString]) -> Option<Self> {
        let words: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
        let [orders, reports, connections, place, ask, kill, orphan] = words?.try_into().ok()?;
        Some(Self {
            orders: orders.parse().ok()?,
            reports: reports.parse().ok()?,
            connections: connections.parse().ok()?,
            foreground: place == "fg",
            deadline: Deadline {
                ask_at_ms: ask.parse().ok()?,
                kill_at_ms: kill.parse().ok()?,
            },
            orphan_grace_ms: orphan.parse().ok()?,
        })
    }
}

/// What wakes the guardian.
#[derive(Clone, Copy)]
enum Input {
    Order(Order),
    SupervisorGone,
    Stopped(i32),
    Ended(End),
    NothingLeft,
    Tick,
}

pub(super) fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let words: Vec<OsString> = arguments.by_ref().take(7).collect();
    let Some(settings) = Settings::parse(&words) else {
        eprintln!("leasehold: this command is for leasehold's own use");
        return ExitCode::from(FAILED);
    };
    let program: Vec<OsString> = arguments.skip(1).collect();
    let Ok(mut reports) = adopt(settings.reports, OpenOptions::new().write(true)) else {
        return ExitCode::from(FAILED);
    };
    match Guardian::start(&settings, &program, &mut reports) {
        Ok(exit) => {
            let _ = reports.write_all(Report::Ended(exit).to_line().as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let failed = Report::Failed(error.to_string());
            let _ = reports.write_all(failed.to_line().as_bytes());
            ExitCode::from(FAILED)
        }
    }
}

/// Takes an inherited pipe for our own: the program must not have it, or the pipe would not close
/// with the supervisor.
fn adopt(descriptor: i32, options: &mut OpenOptions) -> std::io::Result<File> {
    let file = options.open(format!("/proc/self/fd/{descriptor}"))?;
    nix::unistd::close(descriptor)?;
    Ok(file)
}

/// How far the end of the tree is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
enum Phase {
    Running,
    Asked,
    Killing,
}

struct Guardian {
    program: Pid,
    cgroup: Option<Cgroup>,
    timer: Arc<TimerFd>,
    deadline: Deadline,
    orphan_grace_ms: u64,
    phase: Phase,
    cause: Cause,
    end: Option<End>,
    /// It was reported that the program stopped. Not reported again before an order continued it: the pipe
    /// must never be full, since a guardian that waits would miss the deadline.
    is_stop_reported: bool,
}

impl Guardian {
    /// Starts the program and stays until nothing of it is left.
    fn start(
        settings: &Settings,
        program: &[OsString],
        reports: &mut File,
    ) -> std::io::Result<Exit> {
        tree::become_subreaper()?;
        // Nothing but SIGKILL ends a guardian before its tree; the threads inherit this, the
        // program does not.
        SigSet::all().thread_block()?;
        let orders = adopt(settings.orders, OpenOptions::new().read(true))?;
        let timer = Arc::new(TimerFd::new(
            ClockId::CLOCK_BOOTTIME,
            TimerFlags::TFD_CLOEXEC,
        )?);
        cgroup::end_orphans();
        let cgroup = Cgroup::create();
        let launch = launch::Settings {
            cgroup: cgroup.as_ref().map(Cgroup::path),
            foreground: settings.foreground,
            connections: settings.connections,
        };
        // From this thread, which lives as long as the guardian: the parent-death signal is bound
        // to the thread.
        let child = Command::new("/proc/self/exe")
            .arg0("leasehold-launch")
            .arg(LAUNCH)
            .args(launch.arguments())
            .arg("--")
            .args(program)
            .process_group(0)
            .spawn()?;
        let _ = reports.write_all(Report::Started(child.id()).to_line().as_bytes());
        let mut guardian = Self {
            program: Pid::from_raw(child.id().cast_signed()),
            cgroup,
            timer: Arc::clone(&timer),
            deadline: settings.deadline,
            orphan_grace_ms: settings.orphan_grace_ms,
            phase: Phase::Running,
            cause: Cause::Own,
            end: None,
            is_stop_reported: false,
        };
        let (inputs, received) = sync_channel(INPUTS);
        let (timed, program) = (inputs.clone(), guardian.program);
        let ordered = inputs.clone();
        let connections = settings.connections;
        thread::Builder::new().spawn(move || lifeline::keep(connections))?;
        thread::Builder::new().spawn(move || read_orders(orders, &ordered))?;
        thread::Builder::new().spawn(move || tick(&timer, &timed))?;
        thread::Builder::new().spawn(move || reap(program, &inputs))?;
        guardian.arm();
        while let Ok(input) = received.recv() {
            if let Input::Stopped(signal) = input
                && !std::mem::replace(&mut guardian.is_stop_reported, true)
            {
                let _ = reports.write_all(Report::Stopped(signal).to_line().as_bytes());
            }
            if let Some(exit) = guardian.step(input) {
                return Ok(exit);
            }
        }
        Err(std::io::Error::other("the guardian's threads ended"))
    }

    fn step(&mut self, input: Input) -> Option<Exit> {
        match input {
            Input::Order(Order::Deadline {
                ask_at_ms,
                kill_at_ms,
            }) => {
                // A program that was asked to end is not called back.
                if self.phase == Phase::Running {
                    self.deadline = Deadline {
                        ask_at_ms,
                        kill_at_ms,
                    };
                }
            }
            Input::Order(Order::Signal(number)) => {
                if let Ok(signal) = Signal::try_from(number) {
                    let _ = killpg(self.program, signal);
                    let ends = matches!(signal, Signal::SIGHUP | Signal::SIGTERM);
                    if ends {
                        // One that is stopped would not hear it.
                        let _ = killpg(self.program, Signal::SIGCONT);
                    }
                    if ends || signal == Signal::SIGCONT {
                        self.is_stop_reported = false;
                    }
                }
            }
            Input::Order(Order::Stop { grace_ms }) => self.stop(Cause::Stopped, grace_ms),
            Input::SupervisorGone => self.stop(Cause::Orphaned, self.orphan_grace_ms),
            Input::Ended(end) => {
                self.end = Some(end);
                self.stop(Cause::Own, LEFTOVER_GRACE_MS);
            }
            Input::NothingLeft => {
                return Some(Exit {
                    end: self.end.unwrap_or(End::Signal(Signal::SIGKILL as i32)),
                    cause: self.cause,
                });
            }
            Input::Stopped(_) | Input::Tick => {}
        }
        let now = now_ms();
        if self.phase == Phase::Running && now >= self.deadline.ask_at_ms {
            self.cause = Cause::Deadline;
            self.ask();
        }
        if now >= self.deadline.kill_at_ms {
            if self.phase == Phase::Running {
                self.cause = Cause::Deadline;
            }
            self.kill();
        }
        self.arm();
        None
    }

    /// Begins the end, unless it has begun, and never lets it end later than it would have.
    fn stop(&mut self, cause: Cause, grace_ms: u64) {
        let kill_at_ms = now_ms().saturating_add(grace_ms);
        self.deadline.kill_at_ms = self.deadline.kill_at_ms.min(kill_at_ms);
        if self.phase == Phase::Running {
            self.cause = cause;
            if grace_ms > 0 {
                self.ask();
            }
        }
    }

    fn ask(&mut self) {
        self.phase = Phase::Asked;
        tree::signal_descendants(Signal::SIGTERM);
        // One that is paused would not hear it.
        tree::signal_descendants(Signal::SIGCONT);
    }

    /// The quickest first: the group, then the cgroup, then the walk that misses nobody.
    fn kill(&mut self) {
        self.phase = Phase::Killing;
        if self.end.is_none() {
            let _ = killpg(self.program, Signal::SIGKILL);
        }
        if let Some(cgroup) = &self.cgroup {
            let _ = cgroup.kill();
        }
        tree::kill_descendants();
    }

    /// Sets the timer to the next moment that matters.
    fn arm(&self) {
        let at_ms = match self.phase {
            Phase::Running => self.deadline.ask_at_ms.min(self.deadline.kill_at_ms),
            Phase::Asked => self.deadline.kill_at_ms,
            Phase::Killing => now_ms() + KILL_PASS_MS,
        };
        let set = if at_ms == u64::MAX {
            self.timer.unset()
        } else {
            // Zero would disarm the timer.
            let at = TimeSpec::from_duration(Duration::from_millis(at_ms.max(1)));
            let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME;
            self.timer.set(Expiration::OneShot(at), flags)
        };
        // The kernel accepts every time that fits; a guardian without a timer must not go on.
        if set.is_err() {
            std::process::abort();
        }
    }
}

fn now_ms() -> u64 {
    clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .map(Duration::from)
        .map_or(u64::MAX, |now| {
            u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
        })
}

fn read_orders(orders: File, inputs: &SyncSender<Input>) {
    for line in BufReader::new(orders).lines() {
        let Ok(line) = line else { break };
        if let Some(order) = Order::parse(&line)
            && inputs.send(Input::Order(order)).is_err()
        {
            return;
        }
    }
    let _ = inputs.send(Input::SupervisorGone);
}

fn tick(timer: &TimerFd, inputs: &SyncSender<Input>) {
    loop {
        match timer.wait() {
            Ok(()) | Err(Errno::EINTR) => {}
            Err(_) => return,
        }
        if inputs.send(Input::Tick).is_err() {
            return;
        }
    }
}

/// Reaps the program and everything that became the guardian's child. When there is no child left,
/// nothing of the tree is.
fn reap(program: Pid, inputs: &SyncSender<Input>) {
    loop {
        let input = match waitpid(None, Some(WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Stopped(pid, signal)) if pid == program => Input::Stopped(signal as i32),
            Ok(WaitStatus::Exited(pid, code)) if pid == program => Input::Ended(End::Code(code)),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == program => {
                Input::Ended(End::Signal(signal as i32))
            }
            Err(Errno::ECHILD) => Input::NothingLeft,
            Ok(_) | Err(_) => continue,
        };
        let is_last = matches!(input, Input::NothingLeft);
        if inputs.send(input).is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_command_line() {
        let settings = Settings {
            orders: 5,
            reports: 6,
            connections: 9,
            foreground: true,
            deadline: Deadline {
                ask_at_ms: 7,
                kill_at_ms: u64::MAX,
            },
            orphan_grace_ms: 8,
        };
        let words = settings.arguments();
        assert_eq!(Settings::parse(&words[1..]), Some(settings));
        assert_eq!(Settings::parse(&words[2..]), None);
    }
}
