//! The credentials and logins that a server accepts: those it was given, and those in its store, which
//! every replica follows. Known callers are found in memory; the store is queried only for unknown secrets,
//! since they may have been created elsewhere a moment ago.

use std::{
    path::Path,
    sync::{Arc, PoisonError, RwLock, atomic::AtomicBool, atomic::Ordering},
    time::Duration,
};

use lease::{CREDENTIAL, Clock, Key, LOGIN, PRIVATE_KINDS, UnixMillis, Watching};
use leasehold_api::Time;
use leasehold_client::{Change, Follower};
use leasehold_clock::Backoff;
use secrecy::ExposeSecret as _;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    Caller, CredentialStore, Error, TokenSpec,
    folder::Folder,
    known::{Found, IDLE_MS, Known},
    secret::{Digest, digest, id_of, new_id, new_secret},
    stored::{StoredLogin, credential_key, login_key},
};

/// How long a start waits for the store: callers that arrive before it answers are asked to retry.
const FIRST_READ: Duration = Duration::from_secs(5);
/// The pauses before the store is read again.
const RETRY_MS: (u64, u64) = (100, 1_000);
/// How many unknown secrets are looked up in the store at the same time; more are refused.
const LOOK_UPS: usize = 4;
/// How many logins there are at most; the one that was used least recently goes first.
const MAX_LOGINS: usize = 1_024;

/// What became of a secret.
pub(crate) enum Lookup {
    /// It is let in.
    Caller(Caller),
    /// It was let in, until then.
    Ended {
        /// Until when.
        at: Time,
        /// Whether another secret took its place.
        is_replaced: bool,
    },
    /// It is not let in.
    Unknown,
    /// The store was not read yet, so that nobody can say.
    NotRead,
}

/// The credentials and logins that a server lets in.
pub(crate) struct Credentials {
    // Held for a look-up, never over an await.
    known: RwLock<Known>,
    is_read: AtomicBool,
    folder: Option<Folder>,
    makes_admin: bool,
    store: CredentialStore,
    clock: Arc<dyn Clock>,
    look_ups: Semaphore,
}

impl Credentials {
    /// Reads the store. Without a configured credential, one for the administrator is made in the data
    /// folder; without a folder that is an error.
    pub async fn open(
        data_dir: Option<&Path>,
        given: &[TokenSpec],
        store: CredentialStore,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, Error> {
        if data_dir.is_none() && given.is_empty() {
            return Err(Error::None);
        }
        let credentials = Arc::new(Self {
            known: RwLock::new(Known::new(given)),
            is_read: AtomicBool::new(false),
            folder: data_dir.map(Folder::new),
            makes_admin: given.is_empty(),
            store,
            clock,
            look_ups: Semaphore::new(LOOK_UPS),
        });
        let first = tokio::time::timeout(FIRST_READ, credentials.prepare()).await;
        match first
            .unwrap_or_else(|_| Err(lease::Error::Unavailable("no answer yet".into()).into()))
        {
            Ok(()) => {}
            Err(Error::Store(error)) if error.is_retryable() => {
                tracing::warn!(%error, "credentials are not read yet");
            }
            Err(error) => return Err(error),
        }
        Ok(credentials)
    }

    /// Where they are kept.
    pub fn store(&self) -> &CredentialStore {
        &self.store
    }

    /// Whose secret this is, also when it has no scopes.
    pub async fn find(&self, secret: &[u8]) -> Lookup {
        let digest = digest(secret);
        let found = self.read(|known| known.secret(&digest, self.now()));
        let found = match found {
            Found::Nothing => {
                if let Ok(key) = credential_key(&id_of(secret)) {
                    self.look_up(&key).await;
                }
                self.read(|known| known.secret(&digest, self.now()))
            }
            found => found,
        };
        match found {
            Found::Caller(caller) => Lookup::Caller(caller),
            Found::Ended { at, is_replaced } => Lookup::Ended { at, is_replaced },
            Found::Nothing => self.unknown(),
        }
    }

    /// Whose login this is.
    pub async fn find_login(self: &Arc<Self>, cookie: &str) -> Lookup {
        let digest = digest(cookie.as_bytes());
        let mut found = self.read(|known| known.login(&digest, self.now()));
        if found.is_none()
            && let Ok(key) = login_key(&digest)
        {
            self.look_up(&key).await;
            // Both may have been made at another replica a moment ago.
            if let Some(credential) = self.read(|known| known.credential_of(&digest))
                && let Ok(key) = credential_key(&credential)
            {
                self.look_up(&key).await;
            }
            found = self.read(|known| known.login(&digest, self.now()));
        }
        let Some((caller, is_due)) = found else {
            return self.unknown();
        };
        if is_due {
            tokio::spawn(self.clone().note_use(digest, caller.reference.clone()));
        }
        if caller.scopes.is_empty() {
            return Lookup::Unknown;
        }
        Lookup::Caller(caller)
    }

    /// A new login for a caller: its secret, and how long the page may keep it, in seconds.
    pub async fn log_in(&self, caller: &Caller) -> Result<(String, u64), Error> {
        let secret = new_secret(&new_id());
        let secret = secret.expose_secret();
        let digest = digest(secret.as_bytes());
        let (mut removed, oldest, count) = self.read(|known| {
            let (idle, oldest) = known.idle_logins(self.now());
            (idle, oldest, known.logins())
        });
        if removed.is_empty() && count >= MAX_LOGINS {
            removed.extend(oldest);
        }
        let key = login_key(&digest)?;
        let login = self.login(&digest, &caller.reference);
        self.store
            .put_login(key.clone(), &login, removed.iter().cloned())
            .await?;
        self.look_up(&key).await;
        self.write(|known| removed.iter().for_each(|key| known.remove(key)));
        Ok((secret.to_owned(), IDLE_MS / 1_000))
    }

    /// Ends a login.
    pub async fn log_out(&self, cookie: &str) -> Result<(), Error> {
        let key = login_key(&digest(cookie.as_bytes()))?;
        let found = self.store.record(key.clone()).await?;
        if found.is_some() {
            self.store.remove_login(key.clone()).await?;
        }
        self.write(|known| known.remove(&key));
        Ok(())
    }

    /// Reads one record again.
    pub async fn reread(&self, key: Key) -> Result<(), Error> {
        let record = self.store.record(key.clone()).await?;
        self.write(|known| match &record {
            Some(record) => known.put(record),
            None => known.remove(&key),
        });
        Ok(())
    }

    /// Ends what is open of secrets whose time is over.
    pub fn sweep(&self) {
        let now = self.now();
        self.write(|known| known.sweep(now));
    }

    /// Follows the store until the server stops.
    pub async fn follow(&self, closing: CancellationToken) {
        closing.run_until_cancelled(self.follow_on()).await;
    }

    async fn follow_on(&self) {
        let watching = Watching::kinds(PRIVATE_KINDS);
        let authority = self.store.authority().clone();
        let mut follower = Follower::new(authority, self.clock.clone(), watching)
            .with_pauses(RETRY_MS.0, RETRY_MS.1);
        loop {
            let read = match follower.next().await {
                Ok(Change::Event(event)) => self.reread(event.key.clone()).await,
                Ok(Change::Resync(_)) => self.prepare().await,
                Ok(Change::Progress(_) | Change::Interrupted(_)) => Ok(()),
                Err(error) => {
                    tracing::error!(%error, "credentials cannot be followed");
                    return;
                }
            };
            let Err(mut error) = read else { continue };
            let mut backoff = Backoff::new(RETRY_MS.0, RETRY_MS.1);
            loop {
                tracing::warn!(%error, "credentials cannot be read");
                backoff.pause(&*self.clock).await;
                match self.prepare().await {
                    Ok(()) => break,
                    Err(again) => error = again,
                }
            }
        }
    }

    /// Moves what an older version left in the data folder, makes the administrator's credential where
    /// there should be one, and reads everything.
    async fn prepare(&self) -> Result<(), Error> {
        if !self.is_read.load(Ordering::Acquire)
            && let Some(folder) = &self.folder
        {
            let older = folder.older()?;
            if !older.is_empty() {
                for it in older {
                    self.store.adopt(it).await?;
                }
                folder.moved()?;
            }
            if self.makes_admin {
                let secret = folder.admin()?;
                let secret = secret.expose_secret();
                self.store.ensure_admin(secret, self.now()).await?;
            }
        }
        let credentials = self.store.all(CREDENTIAL).await?;
        let logins = self.store.all(LOGIN).await?;
        self.write(|known| known.replace(&credentials, &logins));
        self.is_read.store(true, Ordering::Release);
        Ok(())
    }

    /// Asks the store for a record that is not known here, unless many ask already.
    async fn look_up(&self, key: &Key) {
        let Ok(_permit) = self.look_ups.try_acquire() else {
            return;
        };
        if let Err(error) = self.reread(key.clone()).await {
            tracing::debug!(%error, "unknown credential could not be looked up");
        }
    }

    /// Writes down that a login is used, so that other replicas do not end it.
    async fn note_use(self: Arc<Self>, digest: Digest, reference: Arc<str>) {
        let login = self.login(&digest, &reference);
        let noted = async {
            let key = login_key(&digest)?;
            self.store.put_login(key, &login, []).await
        };
        if let Err(error) = noted.await {
            tracing::debug!(%error, "use of a login could not be written down");
        }
    }

    fn login(&self, digest: &Digest, reference: &str) -> StoredLogin {
        StoredLogin {
            sha256: hex::encode(digest),
            credential: reference.to_owned(),
            used_at: self.now(),
        }
    }

    fn unknown(&self) -> Lookup {
        if self.is_read.load(Ordering::Acquire) {
            Lookup::Unknown
        } else {
            Lookup::NotRead
        }
    }

    fn now(&self) -> UnixMillis {
        self.clock.unix()
    }

    fn read<T>(&self, look: impl FnOnce(&Known) -> T) -> T {
        look(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        change(&mut self.known.write().unwrap_or_else(PoisonError::into_inner))
    }
}
