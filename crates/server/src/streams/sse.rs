//! Changes as server-sent events. A watcher resumes from a revision; when that is gone it is told so
//! and gets a snapshot (L20).

use std::{convert::Infallible, time::Duration};

use axum::response::sse::{Event as Sse, KeepAlive};
use futures_util::{Stream, StreamExt as _, stream};
use lease::{Notice, Revision, Watch, Watching};
use leasehold_api::{
    Event, Lease, Problem, Snapshot,
    authority::{Fault, FaultKind, Frame},
};

use crate::{
    App, Reject,
    auth::{Area, Caller, Level},
    metrics::Open,
    registry::secrets,
};

/// In which form changes are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// The contract's: for people and programs of any kind.
    Public,
    /// The kernel's own: for another process's authority.
    Kernel,
}

/// One watch as its caller may see it.
pub(super) struct Watcher {
    watch: Watch,
    app: App,
    caller: Caller,
    ended: bool,
    _open: Open,
}

/// An open stream of the changes that are wanted, and that this caller may see.
pub(crate) async fn events(
    app: &App,
    caller: Caller,
    watching: Watching,
    format: Format,
) -> Result<axum::response::Sse<impl Stream<Item = Result<Sse, Infallible>> + use<>>, Reject> {
    let watcher = Watcher::open(app, caller, watching).await?;
    let heartbeat = app.parts().limits.stream_heartbeat();
    // The first words go out at once, so that the reader knows that nothing is missed from here on.
    let opening = match format {
        Format::Public => Sse::default().comment("open"),
        Format::Kernel => message(&Frame::Open, None, None),
    };
    let changes = stream::unfold(watcher, move |mut watcher| async move {
        let notice = watcher.next().await?;
        Some((written(format, notice), watcher))
    });
    let messages = stream::once(async { opening }).chain(changes).map(Ok);
    Ok(axum::response::Sse::new(messages).keep_alive(keep_alive(heartbeat)))
}

fn keep_alive(interval: Duration) -> KeepAlive {
    KeepAlive::new().interval(interval).text("alive")
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
            _open: app.metrics().watcher(),
        })
    }

    /// What comes next, without what this caller may not see. After a problem or a goodbye nothing does.
    pub async fn next(&mut self) -> Option<Result<Frame, Box<Problem>>> {
        if self.ended {
            return None;
        }
        let notice = tokio::select! {
            () = self.app.closing().cancelled() => None,
            notice = self.watch.next() => notice,
        };
        Some(match notice {
            Some(Ok(notice)) => Ok(self.visible(notice).into()),
            Some(Err(error)) => {
                self.ended = true;
                tracing::warn!(%error, "a watch ended");
                // The store's own words stay in the log.
                Err(Box::new(Reject::from(error).into_problem()))
            }
            None => {
                self.ended = true;
                Ok(Frame::Goodbye)
            }
        })
    }

    fn visible(&self, notice: Notice) -> Notice {
        let admin = self.caller.tenant.is_none() && self.caller.may(Area::Leases, Level::Admin);
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

fn written(format: Format, notice: Result<Frame, Box<Problem>>) -> Sse {
    match format {
        Format::Public => public(notice),
        Format::Kernel => {
            let frame = notice.unwrap_or_else(|problem| Frame::Failed(fault(*problem)));
            let id = match &frame {
                Frame::Event(event) => Some(event.revision),
                Frame::Snapshot(snapshot) => Some(snapshot.revision),
                Frame::Progress(revision) => Some(*revision),
                Frame::Open | Frame::Failed(_) | Frame::Goodbye => None,
            };
            message(&frame, None, id)
        }
    }
}

/// A store's failure has a fault of its own.
fn fault(problem: Problem) -> Fault {
    problem.fault.unwrap_or(Fault {
        kind: FaultKind::Unknown,
        field: None,
        text: problem.detail,
    })
}

fn public(notice: Result<Frame, Box<Problem>>) -> Sse {
    match notice {
        Ok(Frame::Event(event)) => message(
            &Event::from(&event),
            Some(event.kind.as_str()),
            Some(event.revision),
        ),
        // A reader notes the id of an event without data and shows nothing.
        Ok(Frame::Progress(revision)) => {
            Sse::default().id(revision.to_string()).comment("progress")
        }
        Ok(Frame::Snapshot(snapshot)) => message(
            &Snapshot {
                revision: snapshot.revision.get(),
                at: snapshot.at.into(),
                leases: snapshot.leases.iter().map(Lease::from).collect(),
            },
            Some("snapshot"),
            Some(snapshot.revision),
        ),
        Ok(Frame::Open) => Sse::default().comment("open"),
        Ok(Frame::Failed(fault)) => message(&fault, Some("failed"), None),
        Ok(Frame::Goodbye) => Sse::default().event("goodbye").data("{}"),
        Err(problem) => message(&problem, Some("failed"), None),
    }
}

fn message(data: &impl serde::Serialize, name: Option<&'static str>, id: Option<Revision>) -> Sse {
    // JSON has no line breaks outside of strings, and there they are escaped.
    let text = serde_json::to_string(data).unwrap_or_default();
    let mut message = Sse::default().data(text);
    if let Some(name) = name {
        message = message.event(name);
    }
    if let Some(id) = id {
        message = message.id(id.to_string());
    }
    message
}
