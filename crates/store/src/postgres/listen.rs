//! Hears what other replicas did. A notification only says where to look; whoever misses one looks
//! anyway, a little later.

use std::{sync::Arc, time::Duration};

use lease::Error;
use leasehold_clock::Backoff;
use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    Options,
    connect::{Tls, direct},
    feed::Feed,
};

/// The pauses between attempts to connect again.
const FIRST_PAUSE_MS: u64 = 100;
const LONGEST_PAUSE_MS: u64 = 5_000;

/// Whom a notification concerns.
pub(super) struct Hearers {
    /// `w`: a wait of some replica was answered.
    pub answered: Arc<Notify>,
    /// `e`: the history grew.
    pub feed: Arc<Feed>,
    /// `t`: a lease lapses earlier than the leader of expiry expects.
    pub timer: Arc<Notify>,
}

impl Hearers {
    fn hear(&self, letters: &str) {
        if letters.contains('w') {
            self.answered.notify_one();
        }
        if letters.contains('e') {
            self.feed.look();
        }
        if letters.contains('t') {
            self.timer.notify_one();
        }
    }
}

/// Listens until the store is closed, and connects again with growing pauses.
pub(super) async fn run(options: Options, tls: Tls, hearers: Hearers, closed: CancellationToken) {
    let listening = async {
        let mut backoff = Backoff::new(FIRST_PAUSE_MS, LONGEST_PAUSE_MS);
        loop {
            match listen(&options, &tls, &hearers).await {
                Ok(()) => backoff.reset(),
                Err(error) => tracing::debug!(%error, "cannot listen for notifications"),
            }
            sleep(Duration::from_millis(backoff.next_ms())).await;
        }
    };
    closed.run_until_cancelled(listening).await;
}

/// Listens on one connection until it ends.
async fn listen(options: &Options, tls: &Tls, hearers: &Hearers) -> Result<(), Error> {
    let (client, mut hears) = direct(options, tls).await?;
    let channel = &options.schema;
    client
        .batch_execute(&format!("LISTEN leasehold_{channel}"))
        .await
        .map_err(|failed| super::error::reading(&failed))?;
    // What happened while nobody listened.
    hearers.hear("wet");
    while let Some(letters) = hears.recv().await {
        hearers.hear(&letters);
    }
    Ok(())
}
