//! The kernel's values in a binary body. Whoever the stream belongs to is not repeated in them.

use std::collections::BTreeMap;

use ::lease::{
    Acquire, Acquired, Cause, Grace, Holder, Invalid, Key, Labels, Lease, LeaseId, Loss, OnOutage,
    Refusal, Renewal, Renewals, Renewed, Revision, Status, Token, Ttl, UnixMillis, Want,
};

use super::{
    Held, Lost,
    wire::{Reader, bits, put_bytes, put_number, put_text},
};

type Read<T> = Result<T, Invalid>;

const STATUS: [Status; 5] = [
    Status::Pending,
    Status::Active,
    Status::Expired,
    Status::Released,
    Status::Revoked,
];

fn unknown() -> Invalid {
    Invalid::new("frame", "a value that is known here")
}

fn key(from: &mut Reader<'_>) -> Read<Key> {
    from.text()?.parse()
}

fn token(from: &mut Reader<'_>) -> Read<Token> {
    Token::new(from.number()?)
}

fn ttl(from: &mut Reader<'_>) -> Read<Ttl> {
    Ttl::from_millis(from.number()?)
}

fn put_holder(out: &mut Vec<u8>, holder: &Holder) {
    put_text(out, holder.name.as_str());
    put_text(out, holder.incarnation.as_str());
}

fn holder(from: &mut Reader<'_>) -> Read<Holder> {
    Holder::new(from.text()?, from.text()?)
}

fn put_labels(out: &mut Vec<u8>, labels: &Labels) {
    put_number(out, labels.iter().count() as u64);
    for (name, value) in labels.iter() {
        put_text(out, name);
        put_text(out, value);
    }
}

fn labels(from: &mut Reader<'_>) -> Read<Labels> {
    let pairs = from.list(|it| Ok((it.text()?.to_owned(), it.text()?.to_owned())))?;
    Labels::new(pairs.into_iter().collect::<BTreeMap<_, _>>())
}

fn put_policy(out: &mut Vec<u8>, policy: OnOutage) {
    out.push(u8::from(matches!(policy, OnOutage::Continue(_))));
    put_number(out, policy.grace_millis());
}

fn policy(from: &mut Reader<'_>) -> Read<OnOutage> {
    let kind = from.byte()?;
    let grace = Grace::from_millis(from.number()?)?;
    match kind {
        0 => Ok(OnOutage::Hold(grace)),
        1 => Ok(OnOutage::Continue(grace)),
        _ => Err(unknown()),
    }
}

/// Without its holder: that is the stream's own.
pub(super) fn put_acquire(out: &mut Vec<u8>, request: &Acquire) {
    let Acquire {
        want,
        holder: _,
        ttl,
        on_outage,
        release_on_death,
        labels,
        wait_ms,
        limit,
        force,
    } = request;
    out.push(bits([
        matches!(want, Want::Any(_)),
        *release_on_death,
        *on_outage != OnOutage::FailClosed,
        !labels.is_empty(),
        *wait_ms > 0,
        limit.is_some(),
        force.is_some(),
    ]));
    put_number(out, want.keys().len() as u64);
    for key in want.keys() {
        put_text(out, key.as_str());
    }
    put_number(out, ttl.millis());
    if *on_outage != OnOutage::FailClosed {
        put_policy(out, *on_outage);
    }
    if !labels.is_empty() {
        put_labels(out, labels);
    }
    if *wait_ms > 0 {
        put_number(out, *wait_ms);
    }
    if let Some(limit) = limit {
        put_number(out, u64::from(*limit));
    }
    if let Some(force) = force {
        put_text(out, force);
    }
}

pub(super) fn acquire(from: &mut Reader<'_>, holder: &Holder) -> Read<Acquire> {
    let flags = from.byte()?;
    let has = |place: u8| flags & (1 << place) != 0;
    if has(7) {
        return Err(unknown());
    }
    let keys = from.list(key)?;
    let want = if has(0) {
        Want::Any(keys)
    } else {
        Want::All(keys)
    };
    let mut request = Acquire::of(want, holder.clone(), ttl(from)?);
    request.release_on_death = has(1);
    if has(2) {
        request.on_outage = policy(from)?;
    }
    if has(3) {
        request.labels = labels(from)?;
    }
    if has(4) {
        request.wait_ms = from.number()?;
    }
    if has(5) {
        request.limit = Some(u32::try_from(from.number()?).map_err(|_| unknown())?);
    }
    if has(6) {
        request.force = Some(from.text()?.into());
    }
    Ok(request)
}

pub(super) fn put_held(out: &mut Vec<u8>, held: &Held) {
    put_text(out, held.key.as_str());
    put_number(out, held.token.get());
}

pub(super) fn held(from: &mut Reader<'_>) -> Read<Held> {
    Ok(Held {
        key: key(from)?,
        token: token(from)?,
    })
}

pub(super) fn put_renewals(out: &mut Vec<u8>, renewals: &Renewals) {
    let Renewals::These(these) = renewals else {
        return out.push(0);
    };
    out.push(1);
    put_number(out, these.len() as u64);
    for renewal in these {
        let Renewal {
            key,
            token,
            ttl,
            stats,
        } = renewal;
        out.push(bits([ttl.is_some(), stats.is_some()]));
        put_text(out, key.as_str());
        put_number(out, token.get());
        if let Some(ttl) = ttl {
            put_number(out, ttl.millis());
        }
        if let Some(stats) = stats {
            put_text(out, stats);
        }
    }
}

pub(super) fn renewals(from: &mut Reader<'_>) -> Read<Renewals> {
    match from.byte()? {
        0 => Ok(Renewals::All),
        1 => from.list(renewal).map(Renewals::These),
        _ => Err(unknown()),
    }
}

fn renewal(from: &mut Reader<'_>) -> Read<Renewal> {
    let flags = from.byte()?;
    if flags > 3 {
        return Err(unknown());
    }
    Ok(Renewal {
        key: key(from)?,
        token: token(from)?,
        ttl: (flags & 1 != 0).then(|| ttl(from)).transpose()?,
        stats: (flags & 2 != 0)
            .then(|| from.text().map(Into::into))
            .transpose()?,
    })
}

/// Its holder is left out when it is the stream's own.
fn put_lease(out: &mut Vec<u8>, lease: &Lease, own: &Holder) {
    let Lease {
        id,
        key,
        holder,
        token,
        ttl,
        on_outage,
        release_on_death,
        acquired_at,
        expires_at,
        renewed_at,
        status,
        labels,
        stats,
        handoff,
    } = lease;
    out.push(bits([
        *release_on_death,
        holder != own,
        *on_outage != OnOutage::FailClosed,
        renewed_at.is_some(),
        !labels.is_empty(),
        stats.is_some(),
        handoff.is_some(),
    ]));
    out.extend_from_slice(id.0.as_bytes());
    put_text(out, key.as_str());
    put_number(out, token.get());
    put_number(out, ttl.millis());
    put_number(out, acquired_at.get());
    put_number(out, expires_at.get());
    let status = STATUS.iter().position(|it| it == status);
    put_number(out, status.unwrap_or_default() as u64);
    if holder != own {
        put_holder(out, holder);
    }
    if *on_outage != OnOutage::FailClosed {
        put_policy(out, *on_outage);
    }
    if let Some(renewed_at) = renewed_at {
        put_number(out, renewed_at.get());
    }
    if !labels.is_empty() {
        put_labels(out, labels);
    }
    if let Some(stats) = stats {
        put_text(out, stats);
    }
    if let Some(handoff) = handoff {
        // Rare, and not worth a layout of its own.
        put_bytes(out, &serde_json::to_vec(handoff).unwrap_or_default());
    }
}

fn lease(from: &mut Reader<'_>, own: &Holder) -> Read<Lease> {
    let flags = from.byte()?;
    let has = |place: u8| flags & (1 << place) != 0;
    let id = <[u8; 16]>::try_from(from.take(16)?).map_err(|_| unknown())?;
    let mut lease = Lease {
        id: LeaseId::from_bytes(id),
        key: key(from)?,
        holder: own.clone(),
        token: token(from)?,
        ttl: ttl(from)?,
        on_outage: OnOutage::FailClosed,
        release_on_death: has(0),
        acquired_at: UnixMillis::new(from.number()?),
        expires_at: UnixMillis::new(from.number()?),
        renewed_at: None,
        status: *STATUS.get(usize::from(from.byte()?)).ok_or_else(unknown)?,
        labels: Labels::default(),
        stats: None,
        handoff: None,
    };
    if has(1) {
        lease.holder = holder(from)?;
    }
    if has(2) {
        lease.on_outage = policy(from)?;
    }
    if has(3) {
        lease.renewed_at = Some(UnixMillis::new(from.number()?));
    }
    if has(4) {
        lease.labels = labels(from)?;
    }
    if has(5) {
        lease.stats = Some(from.text()?.into());
    }
    if has(6) {
        lease.handoff = Some(serde_json::from_slice(from.bytes()?).map_err(|_| unknown())?);
    }
    Ok(lease)
}

pub(super) fn put_acquired(out: &mut Vec<u8>, acquired: &Acquired, own: &Holder) {
    match acquired {
        Acquired::Granted { leases, fresh } => {
            out.push(u8::from(*fresh));
            put_number(out, leases.len() as u64);
            for lease in leases {
                put_lease(out, lease, own);
            }
        }
        Acquired::Refused(Refusal { key, cause }) => {
            out.push(2);
            put_text(out, key.as_str());
            match cause {
                Cause::Held {
                    holder,
                    token,
                    left_ms,
                    labels,
                } => {
                    out.push(0);
                    put_holder(out, holder);
                    put_number(out, token.get());
                    put_number(out, *left_ms);
                    put_labels(out, labels);
                }
                Cause::Limit { limit } => {
                    out.push(1);
                    put_number(out, u64::from(*limit));
                }
                Cause::QueueFull => out.push(2),
                Cause::TokensExhausted => out.push(3),
            }
        }
    }
}

pub(super) fn acquired(from: &mut Reader<'_>, own: &Holder) -> Read<Acquired> {
    let kind = from.byte()?;
    if kind < 2 {
        return Ok(Acquired::Granted {
            leases: from.list(|it| lease(it, own))?,
            fresh: kind == 1,
        });
    }
    if kind > 2 {
        return Err(unknown());
    }
    let key = key(from)?;
    let cause = match from.byte()? {
        0 => Cause::Held {
            holder: holder(from)?,
            token: token(from)?,
            left_ms: from.number()?,
            labels: labels(from)?,
        },
        1 => Cause::Limit {
            limit: u32::try_from(from.number()?).map_err(|_| unknown())?,
        },
        2 => Cause::QueueFull,
        3 => Cause::TokensExhausted,
        _ => return Err(unknown()),
    };
    Ok(Acquired::Refused(Refusal { key, cause }))
}

fn put_loss(out: &mut Vec<u8>, loss: &Loss) {
    out.push(loss.code());
    if let Some(why) = loss.why() {
        put_text(out, why);
    }
}

/// `None` for 0, which is no loss.
fn loss(from: &mut Reader<'_>) -> Read<Option<Loss>> {
    let code = from.byte()?;
    if code == 0 {
        return Ok(None);
    }
    let mut loss = Loss::from_code(code, "").ok_or_else(unknown)?;
    if let Loss::Revoked { why } = &mut loss {
        *why = from.text()?.into();
    }
    Ok(Some(loss))
}

pub(super) fn put_renewed(out: &mut Vec<u8>, renewed: &[Renewed], own: &Holder) {
    put_number(out, renewed.len() as u64);
    for one in renewed {
        match &one.outcome {
            // A lease that was kept has the key and the token that were asked about.
            Ok(kept) => {
                out.push(0);
                put_lease(out, kept, own);
            }
            Err(loss) => {
                put_loss(out, loss);
                put_text(out, one.key.as_str());
                put_number(out, one.token.get());
            }
        }
    }
}

pub(super) fn renewed(from: &mut Reader<'_>, own: &Holder) -> Read<Vec<Renewed>> {
    from.list(|it| {
        Ok(match loss(it)? {
            None => {
                let kept = lease(it, own)?;
                Renewed {
                    key: kept.key.clone(),
                    token: kept.token,
                    outcome: Ok(kept),
                }
            }
            Some(loss) => Renewed {
                key: key(it)?,
                token: token(it)?,
                outcome: Err(loss),
            },
        })
    })
}

pub(super) fn put_lost(out: &mut Vec<u8>, lost: &Lost) {
    put_loss(out, &lost.loss);
    put_text(out, lost.key.as_str());
    put_number(out, lost.token.get());
    put_number(out, lost.revision.get());
}

pub(super) fn lost(from: &mut Reader<'_>) -> Read<Lost> {
    let loss = loss(from)?.ok_or_else(unknown)?;
    Ok(Lost {
        key: key(from)?,
        token: token(from)?,
        loss,
        revision: Revision::new(from.number()?),
    })
}
