//! Another command for a slot's worker: the process of the new one prepares, the old one drops everything,
//! and only then the new one publishes.

use std::time::Duration;

use lease::BootMillis;

use super::{
    super::process::{Ending, Shard, same},
    Desired, Slot,
    calls::{TERMINATE_GRACE, check, end, post},
};
use crate::supervise::Exit;

/// How far the change to another command is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Swap {
    /// The new process starts and prepares without publishing.
    Preparing,
    /// The old one is asked to drop everything.
    Stopping,
    /// The new one is asked to publish.
    Publishing,
}

impl Swap {
    const fn name(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Stopping => "stopping",
            Self::Publishing => "publishing",
        }
    }
}

impl Slot {
    pub(super) fn begin_swap(&mut self, wanted: Shard, desired: &Desired) {
        match self.launch(wanted, false, desired) {
            Ok(green) => {
                tracing::info!(worker = green.id, "worker with the new command preparing");
                self.green = Some((green, Swap::Preparing));
            }
            Err(error) => {
                tracing::error!(%error, "worker with the new command not started; the old one goes on");
                self.refused = Some(desired.command.clone());
            }
        }
    }

    /// Sees to the process of the new command. At any moment only one of the two may publish.
    pub(super) fn tend_green(&mut self, now: BootMillis, wanted: &Shard, desired: &Desired) {
        let Some((green, swap)) = &mut self.green else {
            return;
        };
        green.order_deadline(now, desired.timing);
        green.write_fences(&self.context);
        check(&self.context, &self.notes, green, now, true);
        let grace = green.command.start_grace_seconds.millis();
        let outdated = *swap == Swap::Preparing
            && (!same(&green.running, wanted) || green.command != desired.command);
        if desired.stop.is_some()
            || outdated
            || (*swap == Swap::Preparing && self.process.is_none())
        {
            end(green, Ending::Replaced, Duration::ZERO);
            return;
        }
        match *swap {
            Swap::Preparing if green.ready => {
                *swap = Swap::Stopping;
                tracing::info!(worker = green.id, "worker with the new command is ready");
            }
            Swap::Preparing => {
                if now.since(green.started_at) > grace && green.ending.is_none() {
                    tracing::warn!(
                        worker = green.id,
                        "worker with the new command did not become ready; the old one goes on"
                    );
                    self.refused = Some(green.command.clone());
                    end(green, Ending::Unhealthy, Duration::ZERO);
                }
            }
            Swap::Stopping => match &mut self.process {
                Some(blue) if !blue.running.is_empty() => {
                    if blue.pending.is_none() && now >= blue.retry_at {
                        if blue.takes_changes {
                            self.generation += 1;
                            let generation = self.generation;
                            let nothing = Shard::new();
                            post(
                                &self.context,
                                &self.notes,
                                blue,
                                self.index,
                                generation,
                                nothing,
                                desired.timing,
                            );
                        } else if blue.ending.is_none() {
                            end(blue, Ending::Replaced, TERMINATE_GRACE);
                        }
                    }
                }
                _ => *swap = Swap::Publishing,
            },
            Swap::Publishing if green.publish => self.finish_swap(),
            Swap::Publishing if !green.takes_changes => {
                // It cannot be asked to publish: it is started again as any other.
                end(green, Ending::Replaced, Duration::ZERO);
            }
            Swap::Publishing => {
                if green.pending.is_none() && now >= green.retry_at {
                    self.generation += 1;
                    let generation = self.generation;
                    post(
                        &self.context,
                        &self.notes,
                        green,
                        self.index,
                        generation,
                        wanted.clone(),
                        desired.timing,
                    );
                }
            }
        }
    }

    fn finish_swap(&mut self) {
        let Some((green, _)) = self.green.take() else {
            return;
        };
        tracing::info!(worker = green.id, "worker with the new command took over");
        self.refused = None;
        self.breaker.reset();
        if let Some(mut blue) = self.process.replace(green) {
            end(&mut blue, Ending::Replaced, TERMINATE_GRACE);
            // It runs nothing any more; its guardian ends it in any case.
            tokio::spawn(async move {
                blue.child.wait().await;
            });
        }
    }

    pub(super) fn green_ended(&mut self, exit: Exit) {
        let Some((green, swap)) = self.green.take() else {
            return;
        };
        tracing::warn!(
            worker = green.id,
            end = %exit.end,
            step = swap.name(),
            "worker with the new command ended before it took over"
        );
        if green.ending.is_none() {
            self.refused = Some(green.command.clone());
        }
    }
}
