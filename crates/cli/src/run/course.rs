//! From the start of the program to its end: renewals become deadlines, signals are passed on, and a
//! loss stops everything.

use std::{process::ExitCode, time::Duration};

use leasehold_agents::supervise::{self, Cause, Child, End, Job, Progress};
use leasehold_client::{Guard, Loss};
use nix::sys::signal::Signal;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::{Plan, Signals, signals};
use crate::exit::{Exit, Failure, Outcome};

/// How long a guardian may take to report the end of a tree that it was asked to kill.
const REPORT_LIMIT: Duration = Duration::from_secs(5);
/// Passes over what a lost guardian left behind; each finds what was forked during the last.
const KILL_PASSES: usize = 200;

/// How long a job may take to stop after it was asked to. One that has not stopped by then has no shell that
/// could continue it.
const SUSPEND_LIMIT: Duration = Duration::from_millis(500);
/// How long a program has after its terminal hung up, and again after SIGTERM.
const HANG_UP_GRACE: Duration = Duration::from_secs(2);

/// How it was over.
enum Over {
    /// The program ended.
    Ended(supervise::Exit),
    /// The lease was lost, and the program was stopped.
    Lost(Loss, Option<supervise::Exit>),
    /// The terminal hung up, and the program was stopped.
    HungUp(Option<supervise::Exit>),
}

/// Sees the program through.
pub async fn run(
    child: Result<Child, Failure>,
    mut job: Job,
    guard: &Guard,
    plan: Plan,
    signals: &mut Signals,
) -> Outcome {
    let mut child = child?;
    let over = see_through(&mut child, &mut job, guard, plan, signals).await;
    let exit = match &over {
        Over::Ended(exit) => Some(*exit),
        Over::Lost(_, exit) | Over::HungUp(exit) => *exit,
    };
    job.end(&child, exit);
    finish(over)
}

async fn see_through(
    child: &mut Child,
    job: &mut Job,
    guard: &Guard,
    plan: Plan,
    signals: &mut Signals,
) -> Over {
    let lost = guard.lost();
    tokio::pin!(lost);
    let mut reported = guard.stops_at();
    let mut look = interval(plan.look_every());
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut resume_at = None;
    let is_bound_to_terminal = !signals.ignores_hang_up;
    let mut stops = signals::Stops::listen();
    loop {
        tokio::select! {
            biased;
            progress = child.progress() => match progress {
                Progress::Ended(exit) => return Over::Ended(exit),
                Progress::Stopped(signal) => {
                    job.suspend(child, signal);
                    resume_at = Some(Instant::now() + SUSPEND_LIMIT);
                }
            },
            lost = &mut lost => return stop(child, lost).await,
            signal = signals.next() => {
                if signal == Signal::SIGCONT as i32 {
                    resume_at = None;
                    job.resume(child);
                } else {
                    // A guardian that takes no orders is about to be noticed below.
                    let _ = child.signal(signal);
                }
            }
            () = stops.next() => job.stop(child),
            () = sleep_until(resume_at.unwrap_or_else(Instant::now)), if resume_at.is_some() => {
                resume_at = None;
                job.resume(child);
            }
            _ = look.tick() => {
                if is_bound_to_terminal && job.is_hung_up() {
                    return hang_up(child).await;
                }
                // A shell that brings a running job to the front sends it no signal.
                if resume_at.is_none() {
                    job.bring_to_front(child);
                }
                let stops_at = guard.stops_at();
                if stops_at != reported {
                    reported = stops_at;
                    let (ask_at, kill_at) = plan.moments(stops_at);
                    if child.deadline(ask_at, kill_at).is_err() {
                        return stop(child, Loss::Deadline).await;
                    }
                    tracing::debug!(stops_at_boot_ms = stops_at.get(), "renewed");
                }
            }
        }
    }
}

/// The lease is gone, and somebody else may have the key already: no time for politeness.
async fn stop(child: &mut Child, lost: Loss) -> Over {
    Over::Lost(lost, end(child, Duration::ZERO).await)
}

/// The terminal is gone, and with it whoever wanted the program to run: it hears so, and is ended if it goes on.
async fn hang_up(child: &mut Child) -> Over {
    let hung_up = child.signal(Signal::SIGHUP as i32);
    if hung_up.is_ok()
        && let Ok(exit) = timeout(HANG_UP_GRACE, child.wait()).await
    {
        return Over::HungUp(Some(exit));
    }
    Over::HungUp(end(child, HANG_UP_GRACE).await)
}

/// Ends the program, by hand when its guardian does not.
async fn end(child: &mut Child, grace: Duration) -> Option<supervise::Exit> {
    let ordered = child.stop(grace);
    if ordered.is_ok()
        && let Ok(exit) = timeout(grace + REPORT_LIMIT, child.wait()).await
    {
        return Some(exit);
    }
    child.kill_by_hand();
    end_orphans();
    None
}

fn finish(over: Over) -> Outcome {
    let exit = match over {
        Over::Ended(exit) => exit,
        Over::Lost(lost, _) => return Err(lease_lost(&lost)),
        Over::HungUp(_) => {
            let hung_up = End::Signal(Signal::SIGHUP as i32);
            return Ok(ExitCode::from(hung_up.shell_code()));
        }
    };
    match exit.cause {
        Cause::Own => Ok(ExitCode::from(exit.end.shell_code())),
        Cause::GuardianLost => {
            end_orphans();
            let message = "the guardian ended, and the program was killed with it";
            Err(Failure::new(Exit::Supervision, message))
        }
        Cause::Deadline | Cause::Stopped | Cause::Orphaned => Err(lease_lost(&Loss::Deadline)),
    }
}

fn lease_lost(lost: &Loss) -> Failure {
    Failure::new(
        Exit::Lost,
        format!("the lease was lost, and the program was stopped: {lost}"),
    )
}

/// What a guardian that was killed could not end any more.
fn end_orphans() {
    for _ in 0..KILL_PASSES {
        if supervise::kill_descendants() == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
