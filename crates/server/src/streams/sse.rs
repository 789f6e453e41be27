//! Changes as server-sent events. A watcher resumes from a revision; when that is gone it is told so
//! and gets a snapshot (L20).

use std::{convert::Infallible, time::Duration};

use axum::response::sse::{Event as Sse, KeepAlive};
use futures_util::{Stream, StreamExt as _, stream};
use lease::{Notice, Revision, Watch, Watching};
use leasehold_api::{
    Event, Lease, Snapshot,
    authority::{Fault, Frame},
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

struct Watcher {
    watch: Watch,
    app: App,
    caller: Caller,
    format: Format,
    ended: bool,
    _open: Open,
}

/// An open stream of the changes that are wanted, and that this caller may see.
pub(crate) async fn events(
    app: &App,
    caller: Caller,
    mut watching: Watching,
    format: Format,
) -> Result<axum::response::Sse<impl Stream<Item = Result<Sse, Infallible>> + use<>>, Reject> {
    // A record has no tenant, so a caller that is bound to one sees none.
    watching.tenant = caller.tenant_of(watching.tenant)?;
    let watch = app.authority().watch(watching).await?;
    let heartbeat = app.parts().limits.stream_heartbeat();
    let watcher = Watcher {
        watch,
        app: app.clone(),
        caller,
        format,
        ended: false,
        _open: app.metrics().watcher(),
    };
    // The first words go out at once, so that the reader knows that nothing is missed from here on.
    let opening = match format {
        Format::Public => Sse::default().comment("open"),
        Format::Kernel => message(&Frame::Open, None, None),
    };
    let changes = stream::unfold(watcher, |mut watcher| async {
        let message = watcher.next().await?;
        Some((message, watcher))
    });
    let messages = stream::once(async { opening }).chain(changes).map(Ok);
    Ok(axum::response::Sse::new(messages).keep_alive(keep_alive(heartbeat)))
}

fn keep_alive(interval: Duration) -> KeepAlive {
    KeepAlive::new().interval(interval).text("alive")
}

impl Watcher {
    async fn next(&mut self) -> Option<Sse> {
        if self.ended {
            return None;
        }
        let notice = tokio::select! {
            () = self.app.closing().cancelled() => None,
            notice = self.watch.next() => notice,
        };
        Some(match notice {
            Some(Ok(notice)) => self.message(notice),
            Some(Err(error)) => {
                self.ended = true;
                tracing::warn!(%error, "a watch ended");
                self.failed(&error)
            }
            None => {
                self.ended = true;
                self.goodbye()
            }
        })
    }

    /// The notice in the stream's format, without what this caller may not see.
    fn message(&self, notice: Notice) -> Sse {
        let admin = self.caller.tenant.is_none() && self.caller.may(Area::Leases, Level::Admin);
        let id = Some(notice.revision());
        let notice = match notice {
            // What servers note for themselves is nobody else's.
            Notice::Event(event) if event.key.is_private() => Notice::Progress(event.revision),
            notice => notice,
        };
        match notice {
            Notice::Event(event) => match self.format {
                Format::Public => message(&Event::from(&event), Some(event.kind.as_str()), id),
                Format::Kernel => message(&Frame::Event(event), None, id),
            },
            // A reader notes the id of an event without data and shows nothing.
            Notice::Progress(revision) => match self.format {
                Format::Public => Sse::default().id(revision.to_string()).comment("progress"),
                Format::Kernel => message(&Frame::Progress(revision), None, id),
            },
            Notice::Snapshot(mut snapshot) => {
                if !admin {
                    // Records may hold what only an administrator should read.
                    snapshot.records.clear();
                }
                let records = std::mem::take(&mut snapshot.records).into_iter();
                snapshot.records = records
                    .filter_map(|record| secrets::shown(&self.caller, record))
                    .collect();
                match self.format {
                    Format::Public => message(
                        &Snapshot {
                            revision: snapshot.revision.get(),
                            at: snapshot.at.into(),
                            leases: snapshot.leases.iter().map(Lease::from).collect(),
                        },
                        Some("snapshot"),
                        id,
                    ),
                    Format::Kernel => message(&Frame::Snapshot(snapshot), None, id),
                }
            }
        }
    }

    fn goodbye(&self) -> Sse {
        match self.format {
            Format::Public => Sse::default().event("goodbye").data("{}"),
            Format::Kernel => message(&Frame::Goodbye, None, None),
        }
    }

    fn failed(&self, error: &lease::Error) -> Sse {
        // The store's own words stay in the log.
        let problem = Reject::from(error.clone()).into_problem();
        match self.format {
            Format::Public => message(&problem, Some("failed"), None),
            Format::Kernel => {
                let fault = problem.fault.unwrap_or_else(|| Fault::from(error));
                message(&Frame::Failed(fault), None, None)
            }
        }
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
