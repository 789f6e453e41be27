//! Requests as the arguments of their scripts.

use std::sync::Arc;

use lease::{
    Acquire, Committed, Departure, Error, EventCause, HandoffStep, Holder, Key, Labels, Lease,
    LeaseRef, Note, Renew, Renewals, Renewed, Revision, Revoke, Status, Token, Transaction,
    Verdict, Want,
};

use super::{
    Inner,
    batch::{self, Command},
    history::granted_at,
    link::{Call, Repeat},
    wire,
};

/// How many renewals go into one script at most: longer ones would keep others waiting.
const RENEWALS_PER_SCRIPT: usize = 1000;

fn holder<'a>(call: &'a mut Call, holder: &Holder) -> &'a mut Call {
    call.arg(holder.name.as_str())
        .arg(holder.incarnation.as_str())
}

fn lease_ref<'a>(call: &'a mut Call, lease: &LeaseRef) -> &'a mut Call {
    call.arg(lease.key.as_str()).number(lease.token.get());
    holder(call, &lease.holder)
}

/// Labels as JSON; most leases have none.
fn labels(labels: &Labels) -> Result<String, Error> {
    if labels.is_empty() {
        return Ok(String::new());
    }
    serde_json::to_string(labels).map_err(|error| Error::Broken(error.to_string()))
}

/// The cause of an event as the scripts keep it.
fn cause(cause: &EventCause) -> Result<String, Error> {
    serde_json::to_string(cause).map_err(|error| Error::Broken(error.to_string()))
}

/// Gives a lease back.
pub(super) async fn release(inner: &Arc<Inner>, lease: LeaseRef) -> Result<bool, Error> {
    let mut call = inner.call();
    lease_ref(call.arg("release"), &lease);
    let command = Command {
        call,
        keys: 1,
        repeat: Repeat::Never,
    };
    let reply = batch::decide(inner, command).await?;
    Ok(wire::number(&reply) == 1)
}

/// The arguments of a request, as `read_request` of the scripts takes them.
pub(super) fn request(call: &mut Call, request: &Acquire) -> Result<(), Error> {
    let any = matches!(request.want, Want::Any(_));
    call.arg(if any { "1" } else { "0" });
    holder(call, &request.holder)
        .number(request.ttl.millis())
        .arg(wire::policy_code(request.on_outage))
        .number(request.on_outage.grace_millis())
        .arg(if request.release_on_death { "1" } else { "0" })
        .arg(labels(&request.labels)?)
        .number(request.wait_ms)
        .arg(
            request
                .limit
                .map(|limit| limit.to_string())
                .unwrap_or_default(),
        )
        .arg(request.force.as_deref().unwrap_or_default())
        .number(request.want.keys().len() as u64);
    for key in request.want.keys() {
        call.arg(key.as_str());
    }
    Ok(())
}

impl Inner {
    pub(super) async fn renew(&self, request: Renew) -> Result<Vec<Renewed>, Error> {
        let Renewals::These(renewals) = request.leases else {
            return self.renew_all(&request.holder).await;
        };
        let mut answers = Vec::with_capacity(renewals.len());
        for chunk in renewals.chunks(RENEWALS_PER_SCRIPT) {
            let changed = chunk
                .iter()
                .any(|it| it.ttl.is_some() || it.stats.is_some());
            let mut call = self.call();
            holder(&mut call, &request.holder)
                .arg(if changed { "changed" } else { "same" })
                .number(chunk.len() as u64);
            for renewal in chunk {
                call.arg(renewal.key.as_str()).number(renewal.token.get());
                if changed {
                    call.arg(
                        renewal
                            .ttl
                            .map(|ttl| ttl.millis().to_string())
                            .unwrap_or_default(),
                    )
                    .arg(renewal.stats.as_deref().unwrap_or_default());
                }
            }
            // The same renewal twice is one renewal.
            let reply = self
                .link
                .run(&self.scripts.renew, &call, Repeat::Safe)
                .await?;
            let outcomes = wire::items(&reply);
            if outcomes.len() != chunk.len() {
                return Err(wire::broken("an answer"));
            }
            for (renewal, outcome) in chunk.iter().zip(outcomes) {
                answers.push(Renewed {
                    key: renewal.key.clone(),
                    token: renewal.token,
                    outcome: match wire::loss(outcome)? {
                        Some(loss) => Err(loss),
                        None => Ok(wire::kept(outcome, &renewal.key, &request.holder)?),
                    },
                });
            }
        }
        Ok(answers)
    }

    async fn renew_all(&self, whose: &Holder) -> Result<Vec<Renewed>, Error> {
        let mut call = self.call();
        holder(&mut call, whose).arg("all");
        let reply = self
            .link
            .run(&self.scripts.renew, &call, Repeat::Safe)
            .await?;
        wire::items(&reply)
            .iter()
            .map(|item| match wire::items(item) {
                [] => {
                    let lease = wire::lease(item, Status::Active)?;
                    Ok(Renewed {
                        key: lease.key.clone(),
                        token: lease.token,
                        outcome: Ok(lease),
                    })
                }
                [key, token, loss] => Ok(Renewed {
                    key: wire::key(key)?,
                    token: wire::token(token)?,
                    outcome: Err(wire::loss(loss)?.ok_or_else(|| wire::broken("a loss"))?),
                }),
                _ => Err(wire::broken("an answer")),
            })
            .collect()
    }

    pub(super) async fn revoke(&self, request: Revoke) -> Result<Option<Lease>, Error> {
        let mut key = None;
        // Once by the grant's event; when the history has forgotten that, by a look at what is live.
        for _ in 0..2 {
            let mut call = self.call();
            call.arg(request.id.to_string())
                .arg(format!("{}-0", granted_at(request.id)))
                .arg(&*request.reason)
                .arg(key.as_ref().map(Key::as_str).unwrap_or_default());
            let reply = self
                .link
                .run(&self.scripts.revoke, &call, Repeat::Never)
                .await?;
            match wire::items(&reply) {
                [_, lease] => return wire::lease(lease, Status::Revoked).map(Some),
                [tag] if wire::text(tag) == "?" && key.is_none() => {
                    match self.find_live(request.id).await? {
                        Some(lease) => key = Some(lease.key),
                        None => return Ok(None),
                    }
                }
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    pub(super) async fn depart(&self, departure: Departure) -> Result<Vec<Lease>, Error> {
        let how = match departure {
            Departure::Died(_) => "died",
            Departure::Succeeded(_) => "succeeded",
            Departure::Left(_) => "left",
        };
        let cause = cause(&EventCause::from(&departure))?;
        let mut call = self.call();
        call.arg(how);
        holder(&mut call, departure.holder()).arg(cause);
        let reply = self
            .link
            .run(&self.scripts.depart, &call, Repeat::Never)
            .await?;
        wire::leases(&reply, Status::Released)
    }

    pub(super) async fn handoff(&self, step: HandoffStep) -> Result<lease::HandoffState, Error> {
        let mut call = self.call();
        match &step {
            HandoffStep::Offer {
                lease,
                successor,
                prepare_ms,
                drain_ms,
                confirm_ms,
            } => {
                lease_ref(call.arg("offer"), lease);
                holder(&mut call, successor)
                    .number(*prepare_ms)
                    .number(*drain_ms)
                    .number(*confirm_ms);
            }
            HandoffStep::Prepare { key, successor } => {
                holder(call.arg("prepare").arg(key.as_str()), successor);
            }
            HandoffStep::Commit { lease, limit } => {
                let limit = limit.map(|limit| limit.to_string());
                lease_ref(call.arg("commit"), lease).arg(limit.unwrap_or_default());
            }
            HandoffStep::Confirm { lease } => {
                lease_ref(call.arg("confirm"), lease);
            }
            HandoffStep::Cancel { key, by } => {
                holder(call.arg("cancel").arg(key.as_str()), by);
            }
        }
        // Every step is safe to repeat.
        let reply = self
            .link
            .run(&self.scripts.handoff, &call, Repeat::Safe)
            .await?;
        wire::handoff_state(&reply)
    }

    pub(super) async fn commit(&self, transaction: Transaction) -> Result<Committed, Error> {
        let mut call = self.call();
        call.number(transaction.expect.len() as u64);
        for expect in &transaction.expect {
            let revision = expect.revision.map(|revision| revision.to_string());
            call.arg(expect.key.as_str())
                .arg(revision.unwrap_or_default());
        }
        call.number(transaction.writes.len() as u64);
        for write in &transaction.writes {
            let (because, words) = write.note.clone().map_or((None, None), Note::parts);
            let because = because.as_ref().map(cause).transpose()?;
            call.arg(write.key.as_str())
                .arg(if write.value.is_some() { "1" } else { "0" })
                .arg(write.value.as_deref().unwrap_or_default())
                .arg(words.as_deref().unwrap_or_default())
                .arg(because.unwrap_or_default());
        }
        call.number(transaction.release.len() as u64);
        for lease in &transaction.release {
            lease_ref(&mut call, lease);
        }
        match &transaction.acquire {
            Some(acquire) => self::request(call.arg("1"), acquire)?,
            None => {
                call.arg("0");
            }
        }
        let reply = self
            .link
            .run(&self.scripts.commit, &call, Repeat::Never)
            .await;
        if transaction
            .writes
            .iter()
            .any(|write| write.key.kind() == "target")
        {
            self.scans.forget(&self.keys.targets());
        }
        let reply = reply?;
        let parts = wire::items(&reply);
        match (parts.first().map(wire::text).as_deref(), parts) {
            (Some("D"), [_, revision, leases]) => Ok(Committed::Done {
                revision: Revision::new(wire::number(revision)),
                leases: wire::leases(leases, Status::Active)?,
            }),
            (Some("C"), [_, key, actual]) => Ok(Committed::Conflict {
                key: wire::key(key)?,
                actual: match actual {
                    ::redis::Value::Int(-1) => None,
                    revision => Some(Revision::new(wire::number(revision))),
                },
            }),
            (Some("R"), _) => Ok(Committed::Refused(wire::refusal(&reply)?)),
            _ => Err(wire::broken("an answer")),
        }
    }

    pub(super) async fn check(&self, tokens: Vec<(Key, Token)>) -> Result<Vec<Verdict>, Error> {
        let mut call = self.call();
        call.number(tokens.len() as u64);
        for (key, token) in &tokens {
            call.arg(key.as_str()).number(token.get());
        }
        let reply = self
            .link
            .run(&self.scripts.check, &call, Repeat::Safe)
            .await?;
        wire::items(&reply)
            .iter()
            .map(|verdict| match wire::items(verdict) {
                [word, latest] if wire::text(word) == "stale" => Ok(Verdict::Stale {
                    latest: wire::token(latest)?,
                }),
                [word] => match wire::text(word).as_str() {
                    "current" => Ok(Verdict::Current),
                    "ended" => Ok(Verdict::Ended),
                    _ => Ok(Verdict::Unknown),
                },
                _ => Err(wire::broken("a verdict")),
            })
            .collect()
    }
}
