//! Query parameters, as strict as bodies.

use axum::extract::FromRequestParts;
use http::{HeaderMap, request::Parts};
use lease::Revision;
use leasehold_api::FieldError;
use serde::de::DeserializeOwned;

use crate::Reject;

/// The parameters of a query. Unknown ones are errors, so that a misspelt filter does not silently
/// show everything.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Reject;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Reject> {
        axum::extract::Query::try_from_uri(&parts.uri)
            .map(|axum::extract::Query(value)| Self(value))
            .map_err(|error| {
                use std::error::Error as _;
                let text = error
                    .source()
                    .map_or_else(|| error.to_string(), ToString::to_string);
                // Its path stands before what is wrong, unless it is about the whole.
                let (path, message) = text.split_once(": ").unwrap_or((".", &text));
                let mut wrong = leasehold_api::describe(path, message);
                if wrong.field == "body" {
                    wrong = FieldError::new("query", wrong.expected);
                }
                Reject::invalid(vec![wrong])
            })
    }
}

/// How many items a page has when nothing is said.
pub(crate) const DEFAULT_PAGE: usize = 100;
/// How many items a page has at most.
pub(crate) const MAX_PAGE: usize = 1000;

/// How many items a page leaves out at most: more than a site has. They are read all the same.
pub(crate) const MAX_OFFSET: usize = 100_000;

/// The size of a page.
pub(crate) fn page_limit(limit: Option<usize>) -> Result<usize, Reject> {
    match limit {
        None => Ok(DEFAULT_PAGE),
        Some(limit @ 1..=MAX_PAGE) => Ok(limit),
        Some(_) => Err(Reject::field("limit", "1 to 1000")),
    }
}

/// The largest revision that is exact in every JSON reader. No authority gets there.
pub(crate) const MAX_REVISION: u64 = (1 << 53) - 1;

/// A revision that the caller has seen.
pub(crate) fn seen_revision(field: &'static str, seen: u64) -> Result<Revision, Reject> {
    if seen > MAX_REVISION {
        return Err(Reject::field(
            field,
            "a revision: a whole number from 0 to 2^53 - 1",
        ));
    }
    Ok(Revision::new(seen))
}

/// The revision that a returning reader of a stream has seen last, as its header says.
pub(crate) fn last_event_id(headers: &HeaderMap) -> Result<Option<Revision>, Reject> {
    let header = headers.get("last-event-id").map(|id| {
        let id = id.to_str().ok().and_then(|id| id.parse().ok());
        seen_revision("Last-Event-ID", id.unwrap_or(u64::MAX))
    });
    header.transpose()
}
