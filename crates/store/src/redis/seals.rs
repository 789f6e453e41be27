//! Sealing the history, so that tampering shows, and reading the seals.

use std::{sync::Arc, time::Duration};

use ::redis::Value;
use lease::{
    Error, Revision,
    history::{Digest, Marks, Seal, SealPage},
};

use super::{Inner, events, link::Repeat, wire};

/// How long an event may stay unsealed: until then its change would not show.
const INTERVAL: Duration = Duration::from_secs(1);
/// How many events one round seals.
const ROUND: usize = Seal::MAX_EVENTS;
/// How many of them are read at a time: callers whose answers arrive on the same connection wait for them.
const PIECE: usize = 32;

/// The end of a chain: the last revision that is sealed, and the digest of that seal.
type Head = (Revision, Digest);

/// Begins the loop that seals while this replica leads.
pub(super) fn start(inner: &Arc<Inner>) {
    let stop = inner.stop.clone();
    let task = run(inner.clone());
    inner.runtime.spawn(async move {
        stop.run_until_cancelled(task).await;
    });
}

async fn run(inner: Arc<Inner>) {
    // The end of the chain as this replica last saw it. When the store has less than that, somebody
    // removed seals: the chain goes on from here, and the hole shows.
    let mut head = (Revision::ZERO, Digest::ZERO);
    loop {
        while inner.leading.leads() {
            match inner.seal(&mut head).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::debug!(%error, "the history cannot be sealed");
                    break;
                }
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

impl Inner {
    /// Seals what is not sealed yet, a round of it. `true` when there is more.
    async fn seal(&self, head: &mut Head) -> Result<bool, Error> {
        let (page, newest) = self.sealed(Revision::ZERO, 0).await?;
        if let Some((last, digest)) = newest {
            if last > head.0 {
                *head = (last, digest);
            } else if last < head.0 {
                tracing::error!(%last, sealed = %head.0, "seals of the history were removed");
            }
        }
        let (last, previous) = *head;
        if page.newest <= last {
            return Ok(false);
        }
        let mut after = last.get().max(page.from.get().saturating_sub(1));
        let mut events = Vec::with_capacity(ROUND);
        while events.len() < ROUND {
            let piece = events::after(&self.link, &self.keys, after, PIECE).await?;
            let Some(last) = piece.last() else { break };
            after = last.revision.get();
            events.extend(piece);
        }
        let full = events.len() >= ROUND;
        for seal in Seal::chain(previous, &events) {
            let mut call = self.call();
            call.number(seal.first.get())
                .number(seal.last.get())
                .arg(seal.previous.as_bytes())
                .arg(seal.digest.as_bytes())
                .arg(seal.marks.as_bytes());
            // A second one finds the first and changes nothing.
            let reply = self
                .link
                .run(&self.scripts.seal, &call, Repeat::Safe)
                .await?;
            if wire::number(&reply) == 0 {
                // Another replica was faster: its seal is found the next time.
                return Ok(true);
            }
            *head = (seal.last, seal.digest);
        }
        Ok(full)
    }

    /// A part of the chain.
    pub(super) async fn seals(&self, after: Revision, limit: usize) -> Result<SealPage, Error> {
        self.sealed(after, limit).await.map(|(page, _)| page)
    }

    async fn sealed(
        &self,
        after: Revision,
        limit: usize,
    ) -> Result<(SealPage, Option<Head>), Error> {
        let mut call = self.call();
        let most = if limit == 0 { 0 } else { limit as u64 + 1 };
        // Beyond 2^53 a number is not exact in a script, and no revision gets there.
        call.number(after.get().min(1 << 53)).number(most);
        let reply = self
            .link
            .run(&self.scripts.sealed, &call, Repeat::Safe)
            .await?;
        let [from, newest, last, seals] = wire::items(&reply) else {
            return Err(wire::broken("seals"));
        };
        let last = wire::items(last).first().map(seal).transpose()?;
        let mut seals = wire::items(seals)
            .iter()
            .map(seal)
            .collect::<Result<Vec<_>, _>>()?;
        let more = seals.len() > limit;
        seals.truncate(limit);
        let page = SealPage {
            seals,
            more,
            from: Revision::new(wire::number(from)),
            newest: Revision::new(wire::number(newest)),
        };
        Ok((page, last.map(|seal| (seal.last, seal.digest))))
    }
}

/// Reads an entry of the stream of seals. Bytes that are no digest were put there by somebody else; the
/// check of the chain reports it.
fn seal(value: &Value) -> Result<Seal, Error> {
    let [id, fields] = wire::items(value) else {
        return Err(wire::broken("a seal"));
    };
    let field = |name: &str| -> &[u8] {
        let found = wire::items(fields)
            .chunks_exact(2)
            .find(|pair| wire::text(&pair[0]) == name);
        match found.map(|pair| &pair[1]) {
            Some(Value::BulkString(bytes)) => bytes,
            _ => &[],
        }
    };
    let number = |text: &str| text.parse().map(Revision::new).unwrap_or_default();
    let digest = |name: &str| field(name).try_into().map_or(Digest::ZERO, Digest::new);
    let id = wire::text(id);
    Ok(Seal {
        first: number(&String::from_utf8_lossy(field("first"))),
        last: number(id.split_once('-').map_or("", |(last, _)| last)),
        previous: digest("previous"),
        digest: digest("digest"),
        marks: Marks::from_bytes(field("marks").to_vec()).unwrap_or_default(),
    })
}
