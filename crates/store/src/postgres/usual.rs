//! The commands that make up most of the traffic: an acquire of one key that waits for nobody, and a
//! release. The database decides all of a batch together when they turn out as usual (the key is
//! free, the lease is live), see `functions/apply.sql`, and answers in few words.

use lease::{Acquire, Error, Key, Lease, LeaseId, Revision, Status, Token, Want};

use super::{row, writer::Decided};

/// The key of an acquire that is likely to be as usual.
pub(super) fn key_of(request: &Acquire) -> Option<&Key> {
    let plain = request.wait_ms == 0 && request.limit.is_none() && request.force.is_none();
    match &request.want {
        Want::All(keys) if plain && keys.len() == 1 => keys.first(),
        Want::All(_) | Want::Any(_) => None,
    }
}

/// The lease of a usual grant, whose answer is a token and a revision: the asker knows the rest.
pub(super) fn granted(
    request: &Acquire,
    key: &Key,
    decided: &Decided,
) -> Result<Option<Lease>, Error> {
    if !decided
        .body
        .starts_with(|first: char| first.is_ascii_digit())
    {
        return Ok(None);
    }
    let (token, revision) = decided
        .body
        .split_once(' ')
        .ok_or_else(|| row::damaged("a grant without a revision"))?;
    let token = token.parse().map_err(row::damaged)?;
    let revision = Revision::new(revision.parse().map_err(row::damaged)?);
    Ok(Some(Lease {
        id: LeaseId::from_grant(decided.at, revision),
        key: key.clone(),
        holder: request.holder.clone(),
        token: Token::new(token).map_err(row::damaged)?,
        ttl: request.ttl,
        on_outage: request.on_outage,
        release_on_death: request.release_on_death,
        acquired_at: decided.at,
        expires_at: decided.at.plus(request.ttl.millis()),
        renewed_at: None,
        status: Status::Active,
        labels: request.labels.clone(),
        stats: None,
        handoff: None,
    }))
}
