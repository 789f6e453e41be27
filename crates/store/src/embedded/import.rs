//! What a move writes into a folder.

use lease::{Answer, Error, Event, Record, Revision, Token, UnixMillis, engine::StoredSlot};
use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use super::{
    History,
    export::Endpoint,
    high_water::HighWater,
    history::Appending,
    index::Unindexed,
    journal::Failure,
    row, seals,
    state::{State, read_noted, write_state},
};
use crate::migrate::{Arrival, Import, Maintenance, forgotten};

/// What a store that nothing ever happened to says about itself.
const NOTHING: State = State {
    revision: Revision::ZERO,
    floor: Token::ZERO,
    history_from: Revision::new(1),
    indexed: Revision::ZERO,
    settled: Revision::ZERO,
    stopped: None,
    latest: UnixMillis::new(0),
};

fn begin(connection: &mut Connection) -> Result<Transaction<'_>, Failure> {
    Ok(connection.transaction_with_behavior(TransactionBehavior::Immediate)?)
}

/// Appends events. What a call that was not answered has put there is put there again.
fn put_events(transaction: &Transaction<'_>, events: &[Event]) -> Result<(), Failure> {
    let Some(first) = events.first() else {
        return Ok(());
    };
    transaction
        .prepare_cached("DELETE FROM events WHERE first >= ?1")?
        .execute([first.revision.get()])?;
    let times = |a: &Event, b: &Event| a.at == b.at;
    for together in events.chunk_by(times) {
        let mut appending = Appending::new(transaction, together[0].at);
        for event in together {
            appending.push(event, None)?;
        }
        appending.finish()?;
    }
    Ok(())
}

impl Endpoint {
    /// Notes what is durable, so that losing it is noticed later; and that less is meant to be there.
    fn mark(&self, revision: Revision, token: Token) -> Result<(), Error> {
        let (mut guard, _) =
            HighWater::open(&self.dir).map_err(|error| Error::Broken(error.to_string()))?;
        guard.set(revision, token);
        guard.sync();
        Ok(())
    }
}

impl Import for Endpoint {
    fn set_maintenance(&self, maintenance: Option<Maintenance>) -> Answer<'_, ()> {
        Box::pin(async move {
            self.write_maintenance(maintenance.as_ref())
                .map_err(|error| Error::Broken(format!("{}: {error}", self.dir.display())))
        })
    }

    fn keeps(&self) -> u64 {
        History::default().max_events
    }

    fn clear(&self) -> Answer<'_, ()> {
        Box::pin(async {
            self.mark(Revision::ZERO, Token::ZERO)?;
            self.work(|connection| {
                let before = read_noted(connection)?;
                let transaction = begin(connection)?;
                for table in ["slots", "recent", "records", "events", "blocks", "seals"] {
                    transaction.execute(&format!("DELETE FROM {table}"), [])?;
                }
                write_state(&transaction, &before, &NOTHING)?;
                Ok(transaction.commit()?)
            })
            .await
        })
    }

    fn put_slots(&self, slots: Vec<StoredSlot>) -> Answer<'_, ()> {
        let now = self.now;
        Box::pin(self.work(move |connection| {
            let transaction = begin(connection)?;
            for mut slot in slots {
                if slot.lease.is_none() && slot.ended.is_none() {
                    slot.ended = Some(forgotten(now));
                }
                let key = slot.key.clone();
                let live = slot.lease.is_some();
                let mut insert = transaction.prepare_cached(
                    "INSERT OR REPLACE INTO slots (key, live, data) VALUES (?1, ?2, ?3)",
                )?;
                insert.execute(params![key.as_str(), live, row::from_slot(slot)])?;
            }
            Ok(transaction.commit()?)
        }))
    }

    fn put_records(&self, records: Vec<Record>) -> Answer<'_, ()> {
        Box::pin(self.work(move |connection| {
            let transaction = begin(connection)?;
            for record in records {
                let mut insert = transaction.prepare_cached(
                    "INSERT OR REPLACE INTO records (key, value, revision, sum)
                     VALUES (?1, ?2, ?3, ?4)",
                )?;
                let sum = row::record_sum(&record.key, &record.value, record.revision);
                let revision = record.revision.get();
                insert.execute(params![record.key.as_str(), &*record.value, revision, sum])?;
            }
            Ok(transaction.commit()?)
        }))
    }

    fn put_events(&self, events: Vec<Event>) -> Answer<'_, ()> {
        Box::pin(self.work(move |connection| {
            let transaction = begin(connection)?;
            put_events(&transaction, &events)?;
            Ok(transaction.commit()?)
        }))
    }

    fn finish(&self, arrival: Arrival) -> Answer<'_, ()> {
        let now = self.now;
        Box::pin(async move {
            let (revision, largest) = (arrival.event.revision, arrival.largest);
            self.work(move |connection| {
                let before = read_noted(connection)?;
                let mut after = State {
                    revision: arrival.event.revision,
                    floor: arrival.floor,
                    history_from: arrival.oldest,
                    indexed: Revision::new(arrival.oldest.get().saturating_sub(1)),
                    settled: arrival.event.revision,
                    // As after an orderly stop: the leases' time goes on with the next start.
                    stopped: Some(now),
                    latest: now,
                };
                let transaction = begin(connection)?;
                put_events(&transaction, &[arrival.event])?;
                Unindexed::open(&transaction, &after)?.catch_up(&transaction, &mut after)?;
                // A moved history is sealed anew: its events have new company here.
                seals::seal_all(&transaction)?;
                write_state(&transaction, &before, &after)?;
                Ok(transaction.commit()?)
            })
            .await?;
            self.mark(revision, largest)?;
            self.set_maintenance(None).await
        })
    }
}
