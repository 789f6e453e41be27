//! From the start of the program to its end: renewals become deadlines, signals are passed on, and a
//! loss stops everything.

use std::{process::ExitCode, time::Duration};

use leasehold_agents::supervise::{self, Cause, Child};
use leasehold_client::{Guard, Lost};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{Plan, Signals};
use crate::exit::{Exit, Failure, Outcome};

/// How long a guardian may take to report the end of a tree that it was told to kill.
const REPORT_LIMIT: Duration = Duration::from_secs(5);
/// Passes over what a lost guardian left behind; each finds what was forked during the last.
const KILL_PASSES: usize = 200;

/// Sees the program through.
pub async fn run(
    child: Result<Child, Failure>,
    guard: &Guard,
    plan: Plan,
    signals: &mut Signals,
) -> Outcome {
    let mut child = child?;
    let lost = guard.lost();
    tokio::pin!(lost);
    let mut told = guard.stops_at();
    let mut look = interval(plan.look_every());
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            exit = child.wait() => return finish(exit, None),
            lost = &mut lost => return stop(&mut child, lost).await,
            signal = signals.next() => {
                // A guardian that takes no orders is about to be noticed below.
                let _ = child.signal(signal);
            }
            _ = look.tick() => {
                let stops_at = guard.stops_at();
                if stops_at != told {
                    told = stops_at;
                    let (ask_at, kill_at) = plan.moments(stops_at);
                    if child.deadline(ask_at, kill_at).is_err() {
                        return stop(&mut child, Lost::Deadline).await;
                    }
                    tracing::debug!(stops_at_boot_ms = stops_at.get(), "renewed");
                }
            }
        }
    }
}

/// The lease is gone, and somebody else may have the key already: no time for politeness.
async fn stop(child: &mut Child, lost: Lost) -> Outcome {
    let ordered = child.stop(Duration::ZERO);
    if ordered.is_ok()
        && let Ok(exit) = timeout(REPORT_LIMIT, child.wait()).await
    {
        return finish(exit, Some(lost));
    }
    child.kill_by_hand();
    end_orphans();
    Err(lease_lost(&lost))
}

fn finish(exit: supervise::Exit, lost: Option<Lost>) -> Outcome {
    match (exit.cause, lost) {
        (Cause::Own, None) => Ok(ExitCode::from(exit.end.shell_code())),
        (Cause::GuardianLost, None) => {
            end_orphans();
            let message = "the guardian ended, and the program was killed with it";
            Err(Failure::new(Exit::Supervision, message))
        }
        (_, Some(lost)) => Err(lease_lost(&lost)),
        (Cause::Deadline | Cause::Stopped | Cause::Orphaned, None) => {
            Err(lease_lost(&Lost::Deadline))
        }
    }
}

fn lease_lost(lost: &Lost) -> Failure {
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
