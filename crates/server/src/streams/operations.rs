//! What is in progress on one holder's stream: operations in flight, each answered when it completes, and
//! watches. Permissions, budgets and validation are those of plain calls: the same functions decide.

use std::{collections::HashMap, panic::AssertUnwindSafe, pin::Pin};

use futures_util::{
    FutureExt as _, Stream, StreamExt as _,
    future::OptionFuture,
    stream::{self, FuturesUnordered, SelectAll},
};
use lease::{Departure, Key, LeaseQuery, LeaseRef, Renew, Status};
use leasehold_api::{
    Code, Problem,
    authority::{self, Fault, FaultKind},
    stream::{Departing, Down, Frame, Position, Up},
};
use tokio_util::sync::CancellationToken;

use super::{holder::Peer, hub::Releases, watcher::Watcher};
use crate::{
    App, Reject,
    frame::too_slow,
    metrics, ops,
    problem::RETRY_SOON,
    query::MAX_PAGE,
    shed::{Class, Permit},
};

/// How many acquires of one connection may be in flight.
pub(super) const MAX_ACQUIRES: usize = 1_024;
/// How many other operations may be: a bound of their own, so that a holder that waits for a thousand keys can
/// still renew what it has.
pub(super) const MAX_OTHERS: usize = 1_024;
/// How many watches one connection may have.
const MAX_WATCHES: usize = 16;

type Running<'a> = Pin<Box<dyn Future<Output = (u64, Down)> + Send + 'a>>;
type Watched<'a> = Pin<Box<dyn Stream<Item = (u64, Down)> + Send + 'a>>;

/// Which bound an operation counts against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sort {
    Acquire,
    Other,
    Watch,
}

struct Flight {
    sort: Sort,
    /// Ends a watch, or an acquire that waits; nothing else can be cancelled.
    cancel: Option<CancellationToken>,
    /// What an acquire waits for.
    awaits: Option<Key>,
}

/// The operations of one connection.
pub(super) struct Operations<'a> {
    app: &'a App,
    peer: &'a Peer,
    releases: &'a Releases,
    running: FuturesUnordered<Running<'a>>,
    watches: SelectAll<Watched<'a>>,
    flights: HashMap<u64, Flight>,
}

impl<'a> Operations<'a> {
    pub fn new(app: &'a App, peer: &'a Peer, releases: &'a Releases) -> Self {
        Self {
            app,
            peer,
            releases,
            running: FuturesUnordered::new(),
            watches: SelectAll::new(),
            flights: HashMap::new(),
        }
    }

    /// Whether anything is yet to be answered.
    pub fn is_busy(&self) -> bool {
        !self.running.is_empty()
    }

    /// Begins an operation; what is refused has not happened.
    pub fn begin(&mut self, frame: Frame<Up>) -> Result<(), Reject> {
        let Frame { id, body } = frame;
        if let Up::Cancel(of) = body {
            self.cancel(of);
            return Ok(());
        }
        if id == 0 || self.flights.contains_key(&id) {
            return Err(Reject::field(
                "id",
                "a number above 0 that is not in flight",
            ));
        }
        let sort = match &body {
            Up::Acquire(_) => Sort::Acquire,
            Up::Watch(_) => Sort::Watch,
            _ => Sort::Other,
        };
        let most = match sort {
            Sort::Acquire => MAX_ACQUIRES,
            Sort::Other => MAX_OTHERS,
            Sort::Watch => MAX_WATCHES,
        };
        // Counted only where a bound may be near.
        if self.flights.len() >= most
            && self.flights.values().filter(|it| it.sort == sort).count() >= most
        {
            self.app.metrics().turned_away("stream_operation");
            return Err(Reject::new(
                Code::Overloaded,
                format!("at most {most} of these are in flight on one stream; nothing happened"),
            )
            .retry_after(RETRY_SOON));
        }
        let (awaits, cancel) = match &body {
            Up::Acquire(request) if request.wait_ms > 0 => {
                let first = request.want.keys().first().cloned();
                (first, Some(CancellationToken::new()))
            }
            Up::Watch(_) => (None, Some(CancellationToken::new())),
            _ => (None, None),
        };
        let asked_of = match &body {
            Up::Position(of) => self.flights.get(of).and_then(|it| it.awaits.clone()),
            _ => None,
        };
        let flight = Flight {
            sort,
            cancel: cancel.clone(),
            awaits,
        };
        self.flights.insert(id, flight);
        let (app, peer, releases) = (self.app, self.peer, self.releases);
        if let Up::Watch(watching) = body {
            let downs = watch(app, peer, *watching).map(move |down| (id, down));
            let downs = downs.take_until(cancel.unwrap_or_default().cancelled_owned());
            self.watches.push(Box::pin(downs));
            return Ok(());
        }
        self.running.push(Box::pin(async move {
            let performed = AssertUnwindSafe(perform(app, peer, releases, body, asked_of, cancel));
            let down = match performed.catch_unwind().await {
                Ok(Ok(down)) => down,
                Ok(Err(reject)) => failed(reject),
                Err(_) => {
                    tracing::error!("an operation of a holder's stream panicked");
                    let text = "something is wrong on the server";
                    failed(Reject::new(Code::InternalError, text))
                }
            };
            (id, down)
        }));
        Ok(())
    }

    /// A wait is answered when it has ended; a watch just ends.
    fn cancel(&mut self, of: u64) {
        let Some(flight) = self.flights.get(&of) else {
            return;
        };
        if let Some(cancel) = &flight.cancel {
            cancel.cancel();
        }
        if flight.sort == Sort::Watch {
            self.flights.remove(&of);
        }
    }

    /// The next answer or notice. Never ends, and dropping it loses nothing.
    pub async fn next(&mut self) -> (u64, Down) {
        tokio::select! {
            Some((id, down)) = self.running.next() => {
                self.flights.remove(&id);
                (id, down)
            }
            Some((id, down)) = self.watches.next() => {
                let last = match &down {
                    Down::Notice(frame) => matches!(**frame, authority::Frame::Goodbye),
                    _ => true,
                };
                if last {
                    self.flights.remove(&id);
                }
                (id, down)
            }
            else => std::future::pending().await,
        }
    }
}

pub(super) fn failed(reject: Reject) -> Down {
    Down::Failed(Box::new(reject.into_problem()))
}

/// A watch from its opening to its end.
fn watch<'a>(
    app: &'a App,
    peer: &'a Peer,
    watching: lease::Watching,
) -> impl Stream<Item = Down> + 'a {
    enum Stage {
        Closed(Box<lease::Watching>),
        Open(Box<Watcher>, (Permit, metrics::Open)),
        Over,
    }
    let notice = |frame| Down::Notice(Box::new(frame));
    stream::unfold(Stage::Closed(Box::new(watching)), move |stage| async move {
        match stage {
            Stage::Closed(watching) => {
                let opened = async {
                    let permit = app.parts().shed.enter(Class::Stream);
                    let permit = permit.inspect_err(|_| app.metrics().turned_away("stream"))?;
                    let watcher = Watcher::open(app, peer.caller.clone(), *watching).await?;
                    Ok((watcher, (permit, app.metrics().watcher())))
                };
                Some(match opened.await {
                    Ok((watcher, permit)) => (
                        notice(authority::Frame::Open),
                        Stage::Open(Box::new(watcher), permit),
                    ),
                    Err(reject) => (failed(reject), Stage::Over),
                })
            }
            Stage::Open(mut watcher, permit) => {
                let down = match watcher.next().await? {
                    Ok(frame) => notice(frame),
                    Err(problem) => Down::Failed(problem),
                };
                Some((down, Stage::Open(watcher, permit)))
            }
            Stage::Over => None,
        }
    })
}

/// What is rare is boxed: every operation has room for the largest.
async fn perform(
    app: &App,
    peer: &Peer,
    releases: &Releases,
    up: Up,
    awaited: Option<Key>,
    cancel: Option<CancellationToken>,
) -> Result<Down, Reject> {
    let (caller, holder) = (&peer.caller, &peer.holder);
    match up {
        Up::Acquire(request) => {
            own(&request.holder, peer)?;
            let cancelled = OptionFuture::from(cancel.as_ref().map(CancellationToken::cancelled));
            tokio::select! {
                biased;
                acquired = ops::ask(app, caller, *request) => acquired.map(Down::Acquired),
                // Dropping the call takes it off the queue.
                Some(()) = cancelled => Err(was_cancelled()),
            }
        }
        Up::Presence(request) => {
            let name = holder.name.as_str();
            let mut request = request;
            request.incarnation = Some(holder.incarnation.as_str().to_owned());
            let acquire = request.check(name).map_err(Reject::invalid)?;
            let acquired = keep(app, Box::pin(ops::announce(app, caller, acquire))).await?;
            ops::masked(caller, acquired).map(Down::Acquired)
        }
        Up::Renew(leases) => {
            let request = Renew {
                holder: holder.clone(),
                leases,
            };
            keep(app, Box::pin(ops::renew(app, caller, request)))
                .await
                .map(Down::Renewed)
        }
        Up::Keep => keep(app, Box::pin(ops::keep(app, caller, holder.clone())))
            .await
            .map(Down::Kept),
        Up::Release(held) => {
            let (key, token) = (held.key, held.token);
            releases.begin(&key, token);
            let lease = LeaseRef {
                key: key.clone(),
                token,
                holder: holder.clone(),
            };
            let released = keep(app, ops::release(app, caller, lease)).await;
            if !matches!(released, Ok(true)) {
                releases.failed(&key, token);
            }
            released.map(Down::Released)
        }
        Up::Handoff(step) => {
            own(step.by(), peer)?;
            let state = keep(app, Box::pin(ops::handoff(app, caller, *step))).await?;
            Ok(Down::Handed(Box::new(state)))
        }
        Up::Depart(how) => {
            let departure = match how {
                Departing::Left => Departure::Left(holder.clone()),
                Departing::Succeeded => Departure::Succeeded(holder.clone()),
            };
            keep(app, Box::pin(ops::depart(app, caller, departure)))
                .await
                .map(Down::Departed)
        }
        Up::Position(_) => match awaited {
            Some(key) => Box::pin(position(app, peer, &key))
                .await
                .map(Down::Position),
            None => Ok(Down::Position(Position {
                place: 0,
                waiting: 0,
            })),
        },
        // Dealt with before.
        Up::Watch(_) | Up::Cancel(_) | Up::Goodbye => Err(Reject::new(
            Code::InternalError,
            "not an operation that is performed",
        )),
    }
}

fn own(holder: &lease::Holder, peer: &Peer) -> Result<(), Reject> {
    if *holder == peer.holder {
        return Ok(());
    }
    Err(Reject::field("holder", "the holder whose stream this is"))
}

/// What keeps or ends leases has the budget and the time limit of such a plain call.
async fn keep<T>(app: &App, call: impl Future<Output = Result<T, Reject>>) -> Result<T, Reject> {
    let permit = app.parts().shed.enter(Class::Keep);
    let _permit = permit.inspect_err(|_| app.metrics().turned_away(Class::Keep.as_str()))?;
    let limit = app.parts().limits.request_timeout();
    let answer = tokio::time::timeout(limit, call).await;
    answer.unwrap_or_else(|_| Err(too_slow()))
}

/// The wait has ended, and in the same moment it may have been granted.
fn was_cancelled() -> Reject {
    let text = "cancelled; it may have been granted in the same moment";
    let mut problem = Problem::new(Code::RequestTimeout, text);
    problem.fault = Some(Fault {
        kind: FaultKind::Unknown,
        field: None,
        text: text.to_owned(),
    });
    Reject::from(problem)
}

async fn position(app: &App, peer: &Peer, key: &Key) -> Result<Position, Reject> {
    let query = LeaseQuery {
        kind: Some(key.kind().to_owned()),
        id: Some(key.id().to_owned()),
        status: Some(Status::Pending),
        limit: MAX_PAGE,
        ..LeaseQuery::default()
    };
    let page = app.authority().leases(query).await?;
    let own = |lease: &lease::Lease| {
        lease.holder == peer.holder && peer.caller.sees(lease.labels.tenant())
    };
    let place = page.items.iter().position(own);
    Ok(Position {
        place: place.map_or(0, |place| place + 1),
        waiting: page.items.len(),
    })
}
