//! The copy itself: events, records, keys, and last the step that opens the target.

use std::sync::Arc;

use lease::{
    Event, EventKind, Key, Loss, Revision, Token, UnixMillis,
    engine::{Ended, StoredSlot},
};

use super::{
    Arrival, Error, Head, Import, Maintenance, Phase, Progress, Report, Side, What,
    backend::is_leadership,
};

/// One copy under way.
struct Copy<'a> {
    source: &'a dyn Import,
    target: &'a dyn Import,
    report: &'a mut Report,
    progress: &'a mut (dyn FnMut(Progress) + Send),
    /// The largest token seen.
    largest: Token,
    /// The most that a lease's end was put off, in ms.
    lengthened_ms: u64,
}

/// Copies everything into the closed target, then leaves the source and opens the target.
pub(super) async fn copy(
    source: &dyn Import,
    target: &dyn Import,
    maintenance: &Maintenance,
    report: &mut Report,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(), Error> {
    // Now that it is closed, these are final.
    let head = source.head().await.map_err(from_source)?;
    target.clear().await.map_err(from_target)?;
    let mut copy = Copy {
        source,
        target,
        report,
        progress,
        largest: head.floor.max(maintenance.floor),
        lengthened_ms: 0,
    };
    let oldest = copy.events(&head).await?;
    copy.records(&head).await?;
    copy.slots(&head).await?;
    copy.verify().await?;
    copy.arrive(&head, oldest, maintenance).await
}

impl Copy<'_> {
    /// Copies the history, or as much of it as the target keeps. Returns the first revision that is
    /// whole there.
    async fn events(&mut self, head: &Head) -> Result<Revision, Error> {
        let newest = head.revision.get();
        let first_kept = (newest + 1).saturating_sub(self.target.keeps());
        let oldest = head.oldest.get().max(first_kept);
        let mut after = Revision::new(oldest.saturating_sub(1));
        self.report.events = 0;
        loop {
            let events = self.source.events(after).await.map_err(from_source)?;
            let Some(last) = events.last() else { break };
            after = last.revision;
            self.report.events += events.len() as u64;
            self.target.put_events(events).await.map_err(from_target)?;
            self.advance(What::Events, self.report.events, head.events);
        }
        Ok(Revision::new(oldest))
    }

    async fn records(&mut self, head: &Head) -> Result<(), Error> {
        self.report.records = 0;
        let mut cursor = String::new();
        loop {
            let part = self.source.records(cursor).await.map_err(from_source)?;
            self.report.records += part.items.len() as u64;
            let put = self.target.put_records(part.items).await;
            put.map_err(from_target)?;
            self.advance(What::Records, self.report.records, head.records);
            match part.next {
                Some(next) => cursor = next,
                None => return Ok(()),
            }
        }
    }

    async fn slots(&mut self, head: &Head) -> Result<(), Error> {
        (self.report.keys, self.report.leases) = (0, 0);
        let mut cursor = String::new();
        loop {
            let part = self.source.slots(cursor).await.map_err(from_source)?;
            // In this order: what passes between the two lengthens a lease and never shortens one.
            let there = self.source.now().await.map_err(from_source)?;
            let here = self.target.now().await.map_err(from_target)?;
            let mut slots = part.items;
            for slot in &mut slots {
                self.carry(slot, there, here);
            }
            self.target.put_slots(slots).await.map_err(from_target)?;
            self.advance(What::Keys, self.report.keys, head.keys);
            match part.next {
                Some(next) => cursor = next,
                None => return Ok(()),
            }
        }
    }

    /// Takes one key to the target's clock.
    fn carry(&mut self, slot: &mut StoredSlot, there: UnixMillis, here: UnixMillis) {
        self.largest = self.largest.max(slot.token);
        if is_leadership(&slot.key) {
            // Its holder is a server of the source, which is stopped.
            if let Some(lease) = slot.lease.take() {
                slot.ended = Some(Ended {
                    id: lease.id,
                    loss: Loss::Released,
                    at: here,
                });
            }
            return;
        }
        self.report.keys += 1;
        let Some(lease) = &mut slot.lease else { return };
        self.report.leases += 1;
        let before = lease.expires_at;
        lease.expires_at = translate(before, there, here);
        if let Some(handoff) = &mut lease.handoff {
            handoff.until = translate(handoff.until, there, here);
        }
        self.lengthened_ms = self.lengthened_ms.max(lease.expires_at.since(before));
    }

    /// What was sent must be there.
    async fn verify(&mut self) -> Result<(), Error> {
        let there = self.target.head().await.map_err(from_target)?;
        for (what, expected, found) in [
            ("keys", self.report.keys, there.keys),
            ("live leases", self.report.leases, there.live),
            ("records", self.report.records, there.records),
        ] {
            if found < expected {
                return Err(Error::Incomplete {
                    what,
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }

    async fn arrive(
        &mut self,
        head: &Head,
        oldest: Revision,
        maintenance: &Maintenance,
    ) -> Result<(), Error> {
        // A source that lost its maintenance lost its data, or was opened by hand.
        let left = self.source.maintenance().await.map_err(from_source)?;
        if left.as_ref().is_none_or(|left| left.id != maintenance.id) {
            return Err(Error::Store(
                Side::Source,
                lease::Error::Broken("it was opened while it was copied".into()),
            ));
        }
        if let Some(left) = left.filter(|left| left.phase == Phase::Leaving) {
            let left = self
                .source
                .set_maintenance(Some(left.with(Phase::Left)))
                .await;
            left.map_err(from_source)?;
        }
        let at = self.target.now().await.map_err(from_target)?;
        let event = self.news(head, at);
        self.report.revision = event.revision.get();
        self.report.floor = head.floor.max(maintenance.floor).get();
        let arrival = Arrival {
            base: head.base,
            oldest,
            floor: head.floor.max(maintenance.floor),
            largest: self.largest,
            event,
        };
        self.target.finish(arrival).await.map_err(from_target)
    }

    /// The move is an event too (L19), and says by how much it lengthened leases (L14).
    fn news(&self, head: &Head, at: UnixMillis) -> Event {
        let detail = serde_json::json!({
            "after": "move",
            "from": self.source.store(),
            "leases": self.report.leases,
            "lengthened_ms_at_most": self.lengthened_ms,
        });
        Event {
            revision: head.revision.next(),
            at,
            kind: EventKind::AuthorityResumed,
            key: Key::new("authority", self.target.store()).expect("a fixed key is well formed"),
            lease: None,
            cause: None,
            detail: Some(Arc::from(detail.to_string())),
        }
    }

    fn advance(&mut self, what: What, done: u64, of: u64) {
        (self.progress)(Progress { what, done, of });
    }
}

/// The moment `at` of one clock on another: `there` and `here` are the same moment on both.
fn translate(at: UnixMillis, there: UnixMillis, here: UnixMillis) -> UnixMillis {
    if at >= there {
        here.plus(at.since(there))
    } else {
        UnixMillis::new(here.get().saturating_sub(there.since(at)))
    }
}

fn from_source(error: lease::Error) -> Error {
    Error::Store(Side::Source, error)
}

fn from_target(error: lease::Error) -> Error {
    Error::Store(Side::Target, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l14_time_left_is_the_same_on_another_clock() {
        let ms = UnixMillis::new;
        assert_eq!(translate(ms(1_500), ms(1_000), ms(90_000)), ms(90_500));
        assert_eq!(translate(ms(900), ms(1_000), ms(90_000)), ms(89_900));
        assert_eq!(translate(ms(90_500), ms(90_000), ms(1_000)), ms(1_500));
        assert_eq!(translate(ms(0), ms(90_000), ms(1_000)), ms(0));
    }
}
