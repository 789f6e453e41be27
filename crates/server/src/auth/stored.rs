//! Credentials and logins as the store keeps them, for every replica: digests and rights, never a secret.

use std::sync::Arc;

use lease::{Authority, CREDENTIAL, Key, LOGIN, Record, Transaction, UnixMillis, Write};
use leasehold_api::Time;
use leasehold_client::{
    documents::{self, Contended, Edit},
    pages::Pages,
};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    Error, Scope,
    folder::Older,
    secret::{self, Digest, digest, new_id, new_secret},
};

/// How many credentials a store may have, those that were revoked included.
const MAX_CREDENTIALS: usize = 10_000;
/// How many records are removed in one step to make room.
const MAX_REMOVED: usize = 100;

/// A credential's record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stored {
    /// What it is for.
    pub name: String,
    /// The SHA-256 digest of the secret, in hex.
    pub sha256: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// The tenant it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// When it was made.
    pub created_at: Time,
    /// From when on it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// When its secret was last replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotated_at: Option<Time>,
    /// The secret before, while it is let in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Previous>,
    /// When it was revoked. The record stays, so that the same secret is not taken for a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Time>,
}

/// The secret that a credential had before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Previous {
    /// Its digest, in hex.
    pub sha256: String,
    /// Until when it is let in.
    pub until: Time,
}

/// A credential with its name in lists and logs.
#[derive(Clone, Debug)]
pub struct Credential {
    /// Names it in lists and logs.
    pub id: String,
    /// As it is stored.
    pub stored: Stored,
}

/// What a new credential is to be.
#[derive(Clone, Debug)]
pub struct NewCredential {
    /// What it is for.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// The tenant it is bound to.
    pub tenant: Option<String>,
    /// How long it is let in.
    pub expires_in_ms: Option<u64>,
}

/// A credential whose secret was just made: the only time it is seen.
#[derive(Debug)]
pub struct Created {
    /// The credential.
    pub credential: Credential,
    /// The secret.
    pub secret: SecretString,
}

/// A login's record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoredLogin {
    /// The digest of the cookie, in hex.
    pub sha256: String,
    /// The credential that it stands for.
    pub credential: String,
    /// When it was last used, to the hour.
    pub used_at: UnixMillis,
}

impl Credential {
    fn log(&self, change: &str, by: &str) {
        let name = self.stored.name.as_str();
        tracing::info!(id = self.id, name, change, by, "credential changed");
    }

    /// As it goes over the wire.
    pub fn shown(&self, now: UnixMillis) -> leasehold_api::Credential {
        let stored = &self.stored;
        let expired = stored.expires_at.is_some_and(|at| at.0 <= now);
        leasehold_api::Credential {
            id: self.id.clone(),
            name: stored.name.clone(),
            scopes: stored.scopes.iter().map(ToString::to_string).collect(),
            tenant_id: stored.tenant.clone(),
            state: match (stored.revoked_at, expired) {
                (Some(_), _) => "revoked",
                (None, true) => "expired",
                (None, false) => "active",
            }
            .to_owned(),
            created_at: stored.created_at,
            expires_at: stored.expires_at,
            rotated_at: stored.rotated_at,
            previous_until: stored
                .previous
                .as_ref()
                .map(|previous| previous.until)
                .filter(|until| until.0 > now),
            revoked_at: stored.revoked_at,
        }
    }
}

/// The credentials and logins in a store. Anyone who opens the store may use it; a server does so for its
/// callers.
#[derive(Clone)]
pub struct CredentialStore {
    authority: Arc<dyn Authority>,
}

impl CredentialStore {
    /// Those of this store.
    pub fn new(authority: Arc<dyn Authority>) -> Self {
        Self { authority }
    }

    pub(super) fn authority(&self) -> &Arc<dyn Authority> {
        &self.authority
    }

    /// Every credential that was made, oldest first.
    pub async fn list(&self) -> Result<Vec<Credential>, Error> {
        let mut found: Vec<Credential> = self
            .all(CREDENTIAL)
            .await?
            .iter()
            .filter_map(|record| {
                Some(Credential {
                    id: record.key.id().to_owned(),
                    stored: parse(record)?,
                })
            })
            .collect();
        found.sort_by(|a, b| (a.stored.created_at, &a.id).cmp(&(b.stored.created_at, &b.id)));
        Ok(found)
    }

    /// Makes a credential.
    pub async fn create(
        &self,
        wanted: NewCredential,
        by: &str,
        now: UnixMillis,
    ) -> Result<Created, Error> {
        self.make_room(now).await?;
        let id = new_id();
        let secret = new_secret(&id);
        let stored = Stored {
            name: wanted.name,
            sha256: hex::encode(digest(secret.expose_secret().as_bytes())),
            scopes: wanted.scopes,
            tenant: wanted.tenant,
            created_at: now.into(),
            expires_at: wanted.expires_in_ms.map(|ms| now.plus(ms).into()),
            rotated_at: None,
            previous: None,
            revoked_at: None,
        };
        let credential = Credential { id, stored };
        if !self.add(&credential, by).await? {
            return Err(Contended.into());
        }
        Ok(Created { credential, secret })
    }

    /// Gives a credential a new secret; the one before is let in for `grace_ms` more. `None` when there
    /// is no such credential, or it was revoked.
    pub async fn rotate(
        &self,
        id: &str,
        grace_ms: u64,
        by: &str,
        now: UnixMillis,
    ) -> Result<Option<Created>, Error> {
        let secret = new_secret(id);
        let sha256 = hex::encode(digest(secret.expose_secret().as_bytes()));
        let change = |stored: &mut Stored| {
            let before = std::mem::replace(&mut stored.sha256, sha256.clone());
            stored.rotated_at = Some(now.into());
            stored.previous = (grace_ms > 0).then(|| Previous {
                sha256: before,
                until: now.plus(grace_ms).into(),
            });
        };
        let changed = self.change(id, "rotated", by, change).await?;
        Ok(changed.map(|credential| Created { credential, secret }))
    }

    /// Revokes a credential; `None` when there is none that is not revoked already.
    pub async fn revoke(
        &self,
        id: &str,
        by: &str,
        now: UnixMillis,
    ) -> Result<Option<Credential>, Error> {
        let change = |stored: &mut Stored| {
            stored.revoked_at = Some(now.into());
            stored.previous = None;
        };
        self.change(id, "revoked", by, change).await
    }

    /// Lets the administrator's secret of a data folder in, unless the store knows its credential.
    pub(super) async fn ensure_admin(&self, secret: &str, now: UnixMillis) -> Result<(), Error> {
        let older = Older {
            id: secret::id_of(secret.as_bytes()),
            name: "admin".to_owned(),
            sha256: hex::encode(digest(secret.as_bytes())),
            scopes: Scope::everything(),
            tenant: None,
            created_at: now.into(),
        };
        self.adopt(older).await
    }

    /// Takes a credential over from a data folder, unless the store knows it.
    pub(super) async fn adopt(&self, older: Older) -> Result<(), Error> {
        let credential = Credential {
            id: older.id,
            stored: Stored {
                name: older.name,
                sha256: older.sha256,
                scopes: older.scopes,
                tenant: older.tenant,
                created_at: older.created_at,
                expires_at: None,
                rotated_at: None,
                previous: None,
                revoked_at: None,
            },
        };
        self.add(&credential, "server").await.map(drop)
    }

    pub(super) async fn record(&self, key: Key) -> Result<Option<Record>, Error> {
        Ok(self.authority.record(key).await?)
    }

    /// Every record of a kind.
    pub(super) async fn all(&self, kind: &str) -> Result<Vec<Record>, Error> {
        let mut pages = Pages::records(&*self.authority, kind, "");
        Ok(pages.first(2 * MAX_CREDENTIALS).await?)
    }

    /// Writes down a login, and removes others in the same step.
    pub(super) async fn put_login(
        &self,
        key: Key,
        login: &StoredLogin,
        removed: impl IntoIterator<Item = Key>,
    ) -> Result<(), Error> {
        let mut writes = vec![Write {
            key,
            value: Some(text(login)?),
            note: None,
        }];
        writes.extend(removed.into_iter().take(MAX_REMOVED).map(removal));
        self.write(writes).await
    }

    pub(super) async fn remove_login(&self, key: Key) -> Result<(), Error> {
        self.write(vec![removal(key)]).await
    }

    /// When there are too many, those go that are let in nowhere any more, oldest first.
    async fn make_room(&self, now: UnixMillis) -> Result<(), Error> {
        let all = self.list().await?;
        if all.len() < MAX_CREDENTIALS {
            return Ok(());
        }
        let removed: Vec<Write> = all
            .iter()
            .filter(|it| it.shown(now).state != "active")
            .filter_map(|it| credential_key(&it.id).ok())
            .take(MAX_REMOVED)
            .map(removal)
            .collect();
        if removed.is_empty() {
            return Err(Error::Full(MAX_CREDENTIALS));
        }
        self.write(removed).await
    }

    async fn change(
        &self,
        id: &str,
        note: &str,
        by: &str,
        change: impl Fn(&mut Stored),
    ) -> Result<Option<Credential>, Error> {
        let Ok(key) = credential_key(id) else {
            return Ok(None);
        };
        let words = format!("{note} by {by}");
        let changed = documents::change(&*self.authority, &key, |found| {
            let found = found.as_ref().and_then(parse);
            let Some(mut stored) = found.filter(|it: &Stored| it.revoked_at.is_none()) else {
                return Ok::<_, Error>(Edit::Keep(None));
            };
            change(&mut stored);
            let text = text(&stored)?;
            Ok(Edit::Put(text, words.as_str().into(), Some(stored)))
        });
        let credential = changed.await?.map(|stored| Credential {
            id: id.to_owned(),
            stored,
        });
        if let Some(credential) = &credential {
            credential.log(note, by);
        }
        Ok(credential)
    }

    /// Writes a new credential. Whether there was none yet.
    async fn add(&self, credential: &Credential, by: &str) -> Result<bool, Error> {
        let text = text(&credential.stored)?;
        let key = credential_key(&credential.id)?;
        let added = documents::change(&*self.authority, &key, |found| {
            Ok::<_, Error>(match found {
                Some(_) => Edit::Keep(false),
                None => Edit::Put(text.clone(), format!("created by {by}").into(), true),
            })
        });
        let added = added.await?;
        if added {
            credential.log("created", by);
        }
        Ok(added)
    }

    async fn write(&self, writes: Vec<Write>) -> Result<(), Error> {
        let transaction = Transaction {
            writes,
            ..Transaction::default()
        };
        self.authority.commit(transaction).await?;
        Ok(())
    }
}

pub(super) fn credential_key(id: &str) -> Result<Key, Error> {
    Key::new(CREDENTIAL, id).map_err(|invalid| Error::Store(invalid.into()))
}

/// Half of a cookie's digest names its login: enough to be the only one.
pub(super) fn login_key(digest: &Digest) -> Result<Key, Error> {
    Key::new(LOGIN, &hex::encode(&digest[..16])).map_err(|invalid| Error::Store(invalid.into()))
}

/// A record's document. What cannot be read lets nobody in.
pub(super) fn parse<T: DeserializeOwned>(record: &Record) -> Option<T> {
    serde_json::from_str(&record.value)
        .inspect_err(|error| tracing::error!(key = %record.key, %error, "record cannot be read"))
        .ok()
}

fn text(value: &impl Serialize) -> Result<Arc<str>, Error> {
    let text = serde_json::to_string(value).map_err(|error| Error::Invalid {
        place: "credential".to_owned(),
        problem: error.to_string(),
    })?;
    Ok(text.into())
}

fn removal(key: Key) -> Write {
    Write {
        key,
        value: None,
        note: None,
    }
}
