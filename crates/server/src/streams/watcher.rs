//! One watch as its caller may see it.

use std::task::Poll;

use futures_util::{FutureExt as _, StreamExt as _};
use lease::{Notice, Watch, Watching};
use leasehold_api::authority::Frame;
use tokio::task::coop::unconstrained;

use super::text::Said;
use crate::{App, Reject, auth::Caller, registry::secrets};

/// One watch as its caller may see it.
pub(super) struct Watcher {
    watch: Watch,
    app: App,
    caller: Caller,
    ended: bool,
}

impl Watcher {
    pub async fn open(app: &App, caller: Caller, mut watching: Watching) -> Result<Self, Reject> {
        // A record has no tenant, so a caller that is bound to one sees none.
        watching.tenant = caller.tenant_of(watching.tenant)?;
        let watch = app.authority().watch(watching).await?;
        Ok(Self {
            watch,
            app: app.clone(),
            caller,
            ended: false,
        })
    }

    /// What comes next, without what this caller may not see. After a problem or a goodbye nothing does.
    pub async fn next(&mut self) -> Option<Said> {
        if self.ended {
            return None;
        }
        let notice = tokio::select! {
            // The token is looked at when nothing comes, or when it is another task's turn.
            biased;
            notice = self.watch.next() => notice,
            () = self.app.closing().cancelled() => None,
        };
        Some(match notice {
            Some(Ok(notice)) => Ok(self.visible(notice).into()),
            Some(Err(error)) => {
                self.ended = true;
                tracing::info!(%error, "a watch ended");
                // The store's own words stay in the log.
                Err(Box::new(Reject::from(error).into_problem()))
            }
            None => {
                self.ended = true;
                Ok(Frame::Goodbye)
            }
        })
    }

    /// What is here already, for whoever takes no more than a piece.
    pub fn ready(&mut self) -> Poll<Option<Said>> {
        at_once(self.next())
    }

    fn visible(&self, notice: Notice) -> Notice {
        let admin = self.caller.is_agent();
        match notice {
            // What servers note for themselves is nobody else's.
            Notice::Event(event) if event.key.is_private() => Notice::Progress(event.revision),
            Notice::Snapshot(mut snapshot) => {
                if !admin {
                    // Records may hold what only an administrator should read.
                    snapshot.records.clear();
                }
                let records = std::mem::take(&mut snapshot.records).into_iter();
                snapshot.records = records
                    .filter_map(|record| secrets::shown(&self.caller, record))
                    .collect();
                Notice::Snapshot(snapshot)
            }
            notice => notice,
        }
    }
}

/// What a future says without waiting. The task's budget, which is smaller than a piece, is not asked: it would look
/// as if there were nothing more.
fn at_once<T>(future: impl Future<Output = T>) -> Poll<T> {
    match unconstrained(future).now_or_never() {
        Some(said) => Poll::Ready(said),
        None => Poll::Pending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_that_is_here_is_taken_whatever_the_tasks_budget_is() {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(1_000);
        for number in 0..1_000 {
            sender.try_send(number).unwrap();
        }
        for number in 0..1_000 {
            assert_eq!(at_once(receiver.recv()), Poll::Ready(Some(number)));
        }
        assert_eq!(at_once(receiver.recv()), Poll::Pending);
    }
}
