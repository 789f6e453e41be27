//! What a move writes into a Redis.

use ::redis::cmd;
use lease::{Answer, Error, Event, Record, engine::StoredSlot};

use super::{
    export::Endpoint,
    link::{Call, Repeat},
    wire,
};
use crate::migrate::{Arrival, Export as _, Import, Maintenance};

impl Endpoint {
    fn step(&self, what: &str) -> Call {
        let mut call = Call::new(&self.keys);
        call.arg(what);
        call
    }

    async fn run(&self, call: &Call, repeat: Repeat) -> Result<(), Error> {
        self.link.run(&self.write, call, repeat).await.map(drop)
    }

    async fn delete(&self, names: &[String]) -> Result<(), Error> {
        if names.is_empty() {
            return Ok(());
        }
        let mut delete = cmd("UNLINK");
        for name in names {
            delete.arg(name);
        }
        let answer = self.link.send(&delete, Repeat::Safe).await;
        answer.map(drop).map_err(|failure| failure.error)
    }
}

fn json(value: &impl serde::Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::Broken(error.to_string()))
}

/// None are kept as an empty text.
fn labels(labels: &lease::Labels) -> Result<String, Error> {
    if labels.is_empty() {
        Ok(String::new())
    } else {
        json(labels)
    }
}

fn add_slot(call: &mut Call, slot: &StoredSlot) -> Result<(), Error> {
    call.arg(slot.key.as_str()).number(slot.token.get());
    match (&slot.lease, &slot.ended) {
        (Some(lease), _) => {
            let labels = labels(&lease.labels)?;
            let handoff = match &lease.handoff {
                Some(handoff) => json(handoff)?,
                None => String::new(),
            };
            call.arg("1")
                .number(lease.lapses_at().get())
                .arg(lease.holder.name.as_str())
                .arg(lease.holder.incarnation.as_str())
                .arg(lease.id.to_string())
                .number(lease.ttl.millis())
                .arg(wire::policy_code(lease.on_outage))
                .number(lease.on_outage.grace_millis())
                .arg(if lease.release_on_death { "1" } else { "0" })
                .number(lease.acquired_at.get())
                .number(lease.expires_at.get())
                .number(lease.renewed_at.unwrap_or_default().get())
                .arg(labels)
                .arg(lease.stats.as_deref().unwrap_or_default())
                .arg(handoff);
        }
        (None, Some(ended)) => {
            call.arg("0")
                .arg(ended.id.to_string())
                .arg(ended.loss.as_str())
                .arg(ended.loss.why().map_or("", |why| why))
                .number(ended.at.get());
        }
        (None, None) => {
            call.arg("");
        }
    }
    Ok(())
}

fn add_event(call: &mut Call, event: &Event) -> Result<(), Error> {
    call.number(event.revision.get())
        .arg(event.kind.as_str())
        .number(event.at.get())
        .arg(event.key.as_str());
    let detail = event.detail.as_deref().unwrap_or_default();
    let cause = event.cause.as_ref().map(json).transpose()?;
    let cause = cause.unwrap_or_default();
    let Some(lease) = &event.lease else {
        call.arg("0").arg(detail).arg(cause);
        return Ok(());
    };
    let labels = labels(&lease.labels)?;
    call.arg("1")
        .arg(lease.id.to_string())
        .arg(lease.holder.name.as_str())
        .arg(lease.holder.incarnation.as_str())
        .number(lease.token.get())
        .number(lease.expires_at.get())
        .arg(labels)
        .arg(detail)
        .arg(cause);
    Ok(())
}

impl Import for Endpoint {
    fn set_maintenance(&self, maintenance: Option<Maintenance>) -> Answer<'_, ()> {
        Box::pin(async move {
            let call = match &maintenance {
                Some(maintenance) => {
                    let mut call = self.step("close");
                    call.arg(json(maintenance)?);
                    call
                }
                None => self.step("open"),
            };
            self.run(&call, Repeat::Safe).await
        })
    }

    fn keeps(&self) -> u64 {
        self.options.history
    }

    fn clear(&self) -> Answer<'_, ()> {
        Box::pin(async {
            let mut cursor = String::new();
            loop {
                let (names, next) = self.names(&cursor).await?;
                let mut call = self.step("forget");
                call.number(names.len() as u64);
                for name in &names {
                    call.arg(name);
                }
                self.run(&call, Repeat::Safe).await?;
                let Some(next) = next else { break };
                cursor = next;
            }
            self.delete_targets().await?;
            // Everything else of ours has our name, and so has the maintenance lock.
            let beginning = self.keys.own();
            let meta = self.keys.meta();
            let mut cursor = String::new();
            loop {
                let (names, next) = self.scan(&beginning, &cursor).await?;
                let names: Vec<String> = names
                    .into_iter()
                    .map(|name| format!("{beginning}{name}"))
                    .filter(|name| *name != meta)
                    .collect();
                self.delete(&names).await?;
                let Some(next) = next else { return Ok(()) };
                cursor = next;
            }
        })
    }

    fn put_slots(&self, slots: Vec<StoredSlot>) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut call = self.step("slots");
            call.number(slots.len() as u64);
            for slot in &slots {
                add_slot(&mut call, slot)?;
            }
            self.run(&call, Repeat::Safe).await
        })
    }

    fn put_records(&self, records: Vec<Record>) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut call = self.step("records");
            call.number(records.len() as u64);
            for record in &records {
                call.arg(record.key.as_str())
                    .number(record.revision.get())
                    .arg(&*record.value);
            }
            self.run(&call, Repeat::Safe).await
        })
    }

    fn put_events(&self, events: Vec<Event>) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut call = self.step("events");
            call.number(events.len() as u64);
            for event in &events {
                add_event(&mut call, event)?;
            }
            // A second time the stream would refuse what it has.
            self.run(&call, Repeat::Never).await
        })
    }

    fn finish(&self, arrival: Arrival) -> Answer<'_, ()> {
        Box::pin(async move {
            let now = self.now().await?;
            let mut call = self.step("finish");
            call.number(arrival.base.get())
                .number(arrival.event.revision.get())
                .number(now.get())
                .number(arrival.floor.get())
                .number(arrival.oldest.get());
            add_event(&mut call, &arrival.event)?;
            self.run(&call, Repeat::Never).await
        })
    }
}

impl Endpoint {
    /// Polling targets that we wrote; those of other programs stay.
    async fn delete_targets(&self) -> Result<(), Error> {
        let mut ours = cmd("HKEYS");
        ours.arg(self.keys.own_targets());
        let answer = self.link.send(&ours, Repeat::Safe).await;
        let ids = wire::texts(&answer.map_err(|failure| failure.error)?);
        let beginning = self.keys.targets();
        let names: Vec<String> = ids.iter().map(|id| format!("{beginning}{id}")).collect();
        for names in names.chunks(crate::migrate::PAGE) {
            self.delete(names).await?;
        }
        Ok(())
    }
}
