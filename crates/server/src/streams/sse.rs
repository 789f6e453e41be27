//! Changes as server-sent events. A watcher resumes from a revision; when that is gone it is told so
//! and gets a snapshot (L20).

use std::{convert::Infallible, fmt::Write as _, time::Duration};

use axum::{
    body::{Body, Bytes},
    response::{IntoResponse as _, Response},
};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use lease::{Notice, Revision, Watch, Watching};
use leasehold_api::{
    Event, Lease, Problem, Snapshot,
    authority::{Fault, FaultKind, Frame},
};

use tokio::{sync::mpsc, time::timeout};

use crate::{
    App, Reject,
    auth::{Area, Caller, Level},
    metrics::Open,
    readers,
    registry::secrets,
};

/// How many pieces may wait for a reader, and from how many bytes on a piece goes out by itself. Changes that
/// are there together go out together.
const PIECES: usize = 2;
const PIECE_BYTES: usize = 16 * 1024;

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

/// An open stream of the changes that are wanted, and that this caller may see. It is written on the readers' threads.
pub(crate) async fn events(
    app: &App,
    caller: Caller,
    watching: Watching,
    format: Format,
) -> Result<Response, Reject> {
    let shared = app.clone();
    let watcher =
        readers::run(async move { Watcher::open(&shared, caller, watching).await }).await?;
    let heartbeat = app.parts().limits.stream_heartbeat();
    let (pieces, written) = mpsc::channel(PIECES);
    readers::spawn(write(watcher, format, heartbeat, pieces));
    let written = stream::unfold(written, |mut written| async move {
        Some((Ok::<Bytes, Infallible>(written.recv().await?), written))
    });
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, Body::from_stream(written)).into_response())
}

/// Writes the stream to its end, or until nobody reads it any more.
async fn write(
    mut watcher: Watcher,
    format: Format,
    heartbeat: Duration,
    pieces: mpsc::Sender<Bytes>,
) {
    // The first words go out at once, so that the reader knows that nothing is missed from here on.
    let mut text = match format {
        Format::Public => ": open\n\n".to_owned(),
        Format::Kernel => message(&Frame::Open, None, None),
    };
    loop {
        if pieces.send(std::mem::take(&mut text).into()).await.is_err() {
            return;
        }
        let next = tokio::select! {
            () = pieces.closed() => return,
            next = timeout(heartbeat, watcher.next()) => next,
        };
        match next {
            Ok(None) => return,
            Ok(Some(notice)) => text = written(format, notice),
            Err(_) => text.push_str(": alive\n\n"),
        }
        while text.len() < PIECE_BYTES
            && let Some(Some(notice)) = watcher.next().now_or_never()
        {
            text.push_str(&written(format, notice));
        }
    }
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

fn written(format: Format, notice: Result<Frame, Box<Problem>>) -> String {
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

fn public(notice: Result<Frame, Box<Problem>>) -> String {
    match notice {
        Ok(Frame::Event(event)) => message(
            &Event::from(&event),
            Some(event.kind.as_str()),
            Some(event.revision),
        ),
        // A reader notes the id of an event without data and shows nothing.
        Ok(Frame::Progress(revision)) => {
            format!("id: {revision}\n: progress\n\n")
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
        Ok(Frame::Open) => ": open\n\n".to_owned(),
        Ok(Frame::Failed(fault)) => message(&fault, Some("failed"), None),
        Ok(Frame::Goodbye) => "event: goodbye\ndata: {}\n\n".to_owned(),
        Err(problem) => message(&problem, Some("failed"), None),
    }
}

fn message(
    data: &impl serde::Serialize,
    name: Option<&'static str>,
    id: Option<Revision>,
) -> String {
    let mut text = String::new();
    if let Some(name) = name {
        let _ = writeln!(text, "event: {name}");
    }
    if let Some(id) = id {
        let _ = writeln!(text, "id: {id}");
    }
    // JSON has no line breaks outside of strings, and there they are escaped.
    let data = serde_json::to_string(data).unwrap_or_default();
    let _ = write!(text, "data: {data}\n\n");
    text
}
