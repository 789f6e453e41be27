//! What is polled: documents in the store, a file, or a fixed list.

use std::{path::PathBuf, sync::Arc};

use lease::{Authority, Error, Key, Record, polling::TARGET};
use leasehold_client::pages::Pages;
use serde_json::Value;

/// The largest file of targets that is read.
const FILE_BYTES: u64 = 64 * 1024 * 1024;

/// A target: its id, whether it is paused, and the document with whatever else it says.
#[derive(Clone, PartialEq, Debug)]
pub struct Target {
    /// Its id.
    pub id: String,
    /// Whether it is not to be polled for now.
    pub is_paused: bool,
    /// The whole document.
    pub document: Arc<Value>,
}

impl Target {
    /// A target with nothing but an id.
    pub fn new(id: impl Into<String>) -> Self {
        let id = id.into();
        Self {
            is_paused: false,
            document: Arc::new(serde_json::json!({ "id": id })),
            id,
        }
    }

    /// Reads a document whose `id` names it.
    pub fn from_document(document: Value) -> Result<Self, String> {
        let id = document
            .get("id")
            .and_then(Value::as_str)
            .ok_or("a target needs an `id` that is a text")?
            .to_owned();
        Self::read(id, document)
    }

    /// Reads a record, which is named by its key whatever `id` its document claims.
    pub fn from_record(record: &Record) -> Result<Self, String> {
        let document: Value =
            serde_json::from_str(&record.value).map_err(|error| error.to_string())?;
        Self::read(record.key.id().to_owned(), document)
    }

    fn read(id: String, document: Value) -> Result<Self, String> {
        Key::new(lease::polling::POLL, &id).map_err(|wrong| wrong.to_string())?;
        if !document.is_object() {
            return Err(format!("{id}: a target is a JSON object"));
        }
        let is_paused = match document.get("isPaused") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(paused)) => *paused,
            Some(_) => return Err(format!("{id}: `isPaused` must be true or false")),
        };
        Ok(Self {
            id,
            is_paused,
            document: Arc::new(document),
        })
    }
}

/// Where targets come from.
#[derive(Clone, Debug)]
pub enum Targets {
    /// Records of the kind `target`; on Redis that is `session:{id}`. Changes are acted on as the
    /// store announces them, and found by discovery otherwise.
    Store,
    /// A YAML or JSON file with a list of documents, read again by every discovery.
    File(PathBuf),
    /// These.
    Fixed(Vec<Target>),
    /// None: the program asks for targets itself, with `try_acquire`.
    ByHand,
}

impl Targets {
    /// Reads all of them. A document that makes no sense is left out and logged: one bad target must
    /// not stop the others.
    pub(super) async fn read(
        &self,
        authority: &dyn Authority,
    ) -> Result<Vec<Target>, super::Error> {
        match self {
            Self::Store => Ok(from_store(authority).await?),
            Self::File(path) => from_file(path).await.map_err(super::Error::Targets),
            Self::Fixed(targets) => Ok(targets.clone()),
            Self::ByHand => Ok(Vec::new()),
        }
    }
}

impl Targets {
    /// Whether they can be read at all, as far as that can be known without the store.
    pub(super) async fn check(&self) -> Result<(), String> {
        match self {
            Self::File(path) => from_file(path)
                .await
                .map(|_| ())
                .map_err(|error| format!("poll.targets_file: {error}")),
            Self::Store | Self::Fixed(_) | Self::ByHand => Ok(()),
        }
    }
}

async fn from_store(authority: &dyn Authority) -> Result<Vec<Target>, Error> {
    let records = Pages::records(authority, TARGET, "").all().await?;
    Ok(records.iter().filter_map(sensible).collect())
}

/// The target in a record, unless it makes no sense.
pub(super) fn sensible(record: &Record) -> Option<Target> {
    Target::from_record(record)
        .inspect_err(|error| tracing::warn!(key = %record.key, %error, "target ignored"))
        .ok()
}

async fn from_file(path: &std::path::Path) -> Result<Vec<Target>, String> {
    let complain = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let size = tokio::fs::metadata(path).await.map_err(|e| complain(&e))?;
    if size.len() > FILE_BYTES {
        return Err(complain(&"the file is larger than 64 MiB"));
    }
    let text = tokio::fs::read_to_string(path)
        .await
        .map_err(|e| complain(&e))?;
    let documents: Vec<Value> = serde_saphyr::from_str(&text).map_err(|e| complain(&e))?;
    let sensible = |document| {
        Target::from_document(document)
            .inspect_err(|error| {
                tracing::warn!(file = %path.display(), %error, "target ignored");
            })
            .ok()
    };
    Ok(documents.into_iter().filter_map(sensible).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_gives_its_targets_and_leaves_out_what_makes_no_sense() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("targets.yaml");
        std::fs::write(
            &path,
            "- {id: a, url: 'http://localhost/a'}\n- {id: b, isPaused: true}\n- {name: no-id}\n- {id: c, isPaused: 3}\n- {id: 'white space'}\n",
        )
        .unwrap();
        let targets = from_file(&path).await.unwrap();
        let read: Vec<_> = targets
            .iter()
            .map(|t| (t.id.as_str(), t.is_paused))
            .collect();
        assert_eq!(read, [("a", false), ("b", true)]);
        assert_eq!(targets[0].document["url"], "http://localhost/a");
        let error = from_file(&dir.path().join("none")).await.unwrap_err();
        assert!(error.contains("none"), "{error}");
    }
}
