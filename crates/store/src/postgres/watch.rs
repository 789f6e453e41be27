//! Changes as they happen (L20): read from the history by revision, so that nothing is left out
//! whichever replica made them.

use std::{sync::Arc, time::Duration};

use lease::{Error, Event, Notice, Revision, Watch};
use tokio::{
    sync::{broadcast, mpsc, watch},
    time::sleep,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::{feed::Feed, read::Reader};

/// How many notices wait for a slow reader; the history keeps the rest.
const BUFFER: usize = 256;
/// How many events are read at once.
const PAGE: usize = 500;
/// How often the history is looked at when nobody says that it grew.
const POLL: Duration = Duration::from_secs(1);

/// Starts a watch after `from`, or from now on.
pub(super) async fn start(
    reader: Reader,
    feed: Arc<Feed>,
    from: Option<Revision>,
    closed: CancellationToken,
) -> Result<Watch, Error> {
    let (newest, renewals) = feed.join();
    let membership = Membership(feed);
    let last = match from {
        Some(revision) => revision,
        None => reader.newest().await?,
    };
    let (notices, taken) = mpsc::channel(BUFFER);
    let watcher = Watcher {
        reader,
        newest,
        renewals,
        last,
        notices,
        membership,
    };
    tokio::spawn(async move { closed.run_until_cancelled(watcher.run()).await });
    Ok(Box::pin(ReceiverStream::new(taken)))
}

/// Leaves the feed on drop.
struct Membership(Arc<Feed>);

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.leave();
    }
}

struct Watcher {
    reader: Reader,
    newest: watch::Receiver<u64>,
    renewals: broadcast::Receiver<Event>,
    last: Revision,
    notices: mpsc::Sender<Result<Notice, Error>>,
    #[expect(dead_code, reason = "held for its drop")]
    membership: Membership,
}

/// The reader of the stream is gone.
struct Gone;

impl Watcher {
    async fn run(mut self) {
        while self.step().await.is_ok() {}
    }

    async fn step(&mut self) -> Result<(), Gone> {
        self.newest.mark_unchanged();
        if self.catch_up().await? {
            return Ok(());
        }
        tokio::select! {
            () = self.notices.closed() => Err(Gone),
            changed = self.newest.changed() => changed.map_err(|_| Gone),
            () = sleep(POLL) => Ok(()),
            renewal = self.renewals.recv() => self.renewed(renewal).await,
        }
    }

    /// Sends what the history has; `true` when there may be more.
    async fn catch_up(&mut self) -> Result<bool, Gone> {
        let Ok(page) = self.reader.page(self.last, PAGE).await else {
            // The database will be back, and nothing is lost meanwhile.
            return Ok(false);
        };
        if self.last.next() < page.oldest || self.last > page.newest {
            return self.snapshot().await;
        }
        for event in page.events {
            self.last = event.revision;
            self.send(Notice::Event(event)).await?;
        }
        Ok(page.more)
    }

    async fn snapshot(&mut self) -> Result<bool, Gone> {
        let Ok(snapshot) = self.reader.snapshot().await else {
            return Ok(false);
        };
        self.last = snapshot.revision;
        self.send(Notice::Snapshot(Box::new(snapshot))).await?;
        Ok(true)
    }

    /// Passes a renewal on, in its place among the other events.
    async fn renewed(
        &mut self,
        renewal: Result<Event, broadcast::error::RecvError>,
    ) -> Result<(), Gone> {
        match renewal {
            Ok(event) => {
                while self.last < event.revision && self.catch_up().await? {}
                self.send(Notice::Event(event)).await
            }
            // Too slow: never a silent gap.
            Err(broadcast::error::RecvError::Lagged(_)) => self.snapshot().await.map(|_| ()),
            Err(broadcast::error::RecvError::Closed) => Err(Gone),
        }
    }

    async fn send(&self, notice: Notice) -> Result<(), Gone> {
        self.notices.send(Ok(notice)).await.map_err(|_| Gone)
    }
}
