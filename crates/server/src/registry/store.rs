//! Documents in records: reading, paging, changing, and the tags of their versions.

use http::{HeaderMap, HeaderValue, header};
use lease::{
    Authority, Committed, Expect, Key, RecordQuery, Revision, Transaction, UnixMillis, Write,
};
use leasehold_api::Code;
use leasehold_client::pages::Pages;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{App, Reject};

#[derive(Serialize, Deserialize)]
struct Stored<T> {
    value: T,
    created_at: UnixMillis,
    updated_at: UnixMillis,
}

/// A document as it was found.
#[derive(Clone, Debug)]
pub(crate) struct Found<T> {
    pub key: Key,
    pub value: T,
    pub created_at: UnixMillis,
    pub updated_at: UnixMillis,
    pub revision: Revision,
}

impl<T> Found<T> {
    /// It must still be what was read.
    pub fn expect(&self) -> Expect {
        Expect {
            key: self.key.clone(),
            revision: Some(self.revision),
        }
    }

    /// The tag of this version of the document.
    pub fn etag(&self) -> HeaderValue {
        etag(self.revision)
    }
}

pub(crate) fn etag(revision: Revision) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{revision}\""))
        .unwrap_or_else(|_| HeaderValue::from_static("\"0\""))
}

pub(crate) fn absent(key: Key) -> Expect {
    Expect {
        key,
        revision: None,
    }
}

pub(crate) fn read<T: DeserializeOwned>(record: lease::Record) -> Result<Found<T>, Reject> {
    let stored: Stored<T> = serde_json::from_str(&record.value).map_err(|error| {
        tracing::error!(key = %record.key, %error, "a record cannot be read");
        Reject::new(Code::InternalError, "a stored document cannot be read")
    })?;
    Ok(Found {
        key: record.key,
        value: stored.value,
        created_at: stored.created_at,
        updated_at: stored.updated_at,
        revision: record.revision,
    })
}

pub(crate) async fn load<T: DeserializeOwned>(
    authority: &dyn Authority,
    key: Key,
) -> Result<Option<Found<T>>, Reject> {
    authority.record(key).await?.map(read).transpose()
}

/// A page of documents, and where the next one begins.
pub(crate) async fn page<T: DeserializeOwned>(
    authority: &dyn Authority,
    query: RecordQuery,
) -> Result<(Vec<Found<T>>, bool), Reject> {
    let page = authority.records(query).await?;
    let found = page.items.into_iter().map(read).collect::<Result<_, _>>()?;
    Ok((found, page.more))
}

/// All documents of a kind under a prefix.
pub(crate) async fn all<T: DeserializeOwned>(
    authority: &dyn Authority,
    kind: &str,
    prefix: String,
) -> Result<Vec<Found<T>>, Reject> {
    let records = Pages::records(authority, kind, prefix).all().await?;
    records.into_iter().map(read).collect()
}

/// Changes documents, and lets the sites in memory know up to where they must have come.
pub(crate) async fn commit(app: &App, transaction: Transaction) -> Result<Committed, Reject> {
    let committed = app.authority().commit(transaction).await?;
    if let Committed::Done { revision, .. } = &committed {
        app.sites().wrote(*revision);
    }
    Ok(committed)
}

/// Writes documents, and answers with the revision of the first one; `None` when something was not as
/// expected, and nothing happened.
pub(crate) async fn commit_first(
    app: &App,
    transaction: Transaction,
) -> Result<Option<Revision>, Reject> {
    let later = transaction.revisions_after(0);
    let later = later.ok_or_else(|| Reject::new(Code::InternalError, "more than writes"))?;
    Ok(match commit(app, transaction).await? {
        Committed::Done { revision, .. } => Some(Revision::new(revision.get() - later)),
        Committed::Conflict { .. } | Committed::Refused(_) => None,
    })
}

/// Writes a document.
pub(crate) fn put<T: Serialize>(
    key: Key,
    value: &T,
    created_at: UnixMillis,
    updated_at: UnixMillis,
    note: &'static str,
) -> Result<Write, Reject> {
    let text = serde_json::to_string(&Stored {
        value,
        created_at,
        updated_at,
    })
    .map_err(|_| Reject::new(Code::InternalError, "the document cannot be written"))?;
    Ok(Write {
        key,
        value: Some(text.into()),
        note: Some(note.into()),
    })
}

/// Removes a document.
pub(crate) fn remove(key: Key, note: &'static str) -> Write {
    Write {
        key,
        value: None,
        note: Some(note.into()),
    }
}

/// What `If-Match` asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Condition {
    /// Nothing: the last writer wins.
    None,
    /// The document must exist.
    Exists,
    /// The document must still be this version.
    Is(Revision),
}

impl Condition {
    pub fn from_headers(headers: &HeaderMap) -> Result<Self, Reject> {
        let Some(value) = headers.get(header::IF_MATCH) else {
            return Ok(Self::None);
        };
        let wrong = || Reject::field("If-Match", "the ETag of the document, or *");
        let text = value.to_str().map_err(|_| wrong())?.trim();
        if text == "*" {
            return Ok(Self::Exists);
        }
        text.strip_prefix('"')
            .and_then(|text| text.strip_suffix('"'))
            .and_then(|text| text.parse().ok())
            .map(|revision| Self::Is(Revision::new(revision)))
            .ok_or_else(wrong)
    }

    /// Fails when the document is another version than the one asked for.
    pub fn check<T>(self, found: &Found<T>) -> Result<(), Reject> {
        match self {
            Self::Is(revision) if revision != found.revision => Err(changed()),
            _ => Ok(()),
        }
    }
}

pub(crate) fn changed() -> Reject {
    Reject::new(
        Code::PreconditionFailed,
        "the document was changed meanwhile: read it again",
    )
}

/// Puts a partial document over a whole one: objects are merged, `null` removes, everything else
/// replaces.
pub(crate) fn merge(into: &mut Map<String, Value>, change: Map<String, Value>) {
    for (name, value) in change {
        match (into.get_mut(&name), value) {
            (_, Value::Null) => {
                into.remove(&name);
            }
            (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
            (_, value) => {
                into.insert(name, value);
            }
        }
    }
}

/// Takes everything out that is `null`, also in objects within lists.
pub(crate) fn drop_nulls(fields: &mut Map<String, Value>) {
    fn inside(value: &mut Value) {
        match value {
            Value::Object(fields) => drop_nulls(fields),
            Value::Array(items) => items.iter_mut().for_each(inside),
            _ => {}
        }
    }
    fields.retain(|_, value| !value.is_null());
    fields.values_mut().for_each(inside);
}

/// A field that the path says already: filled in when absent, refused when different.
pub(crate) fn settle(
    fields: &mut Map<String, Value>,
    name: &str,
    value: Value,
) -> Result<(), Reject> {
    match fields.get(name) {
        Some(given) if *given != value => Err(Reject::field(
            name,
            format!("{value}, as in the path, or nothing"),
        )),
        _ => {
            fields.insert(name.to_owned(), value);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: &Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn a_partial_document_changes_only_what_it_names() {
        let mut whole = object(&json!({"a": 1, "b": {"c": 2, "d": 3}, "e": [1, 2]}));
        merge(
            &mut whole,
            object(&json!({"b": {"c": 5}, "e": [3], "a": null})),
        );
        assert_eq!(whole, object(&json!({"b": {"c": 5, "d": 3}, "e": [3]})));
    }

    #[test]
    fn a_condition_is_a_tag_a_star_or_a_mistake() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_MATCH, HeaderValue::from_str(text).unwrap());
            Condition::from_headers(&headers)
        };
        assert_eq!(of("\"7\""), Ok(Condition::Is(Revision::new(7))));
        assert_eq!(of("*"), Ok(Condition::Exists));
        for wrong in ["7", "\"x\"", "W/\"7\"", ""] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            Condition::from_headers(&HeaderMap::new()),
            Ok(Condition::None)
        );
    }
}
