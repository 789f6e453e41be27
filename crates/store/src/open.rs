//! From a URL to an authority: what `--store` and the configuration say.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc};

use lease::{Authority, Clock, engine::RenewalEvents, redact};

use crate::{
    embedded::{self, Embedded},
    migrate::{self, Maintenance},
    postgres::{self, Postgres},
    redis::{self, Redis},
};

/// Which store, and where. Shows itself without its password.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory:`: forgets everything when the process ends.
    Memory,
    /// `embedded:DIR`: in this folder.
    Embedded(PathBuf),
    /// `postgres://…`: in this database.
    Postgres(Box<postgres::Options>),
    /// `redis://…`, `rediss://…`, `redis-cluster://…` or `redis+sentinel://…`, as
    /// [`redis::Options::parse`] reads it.
    Redis(String),
}

/// What is wrong with the URL of a store. Never repeats the URL: it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The part before the first colon names no store.
    #[error("a store is given as {ACCEPTED}; there is no store called {0:?}")]
    Scheme(String),
    /// There is no colon at all.
    #[error("a store is given as {ACCEPTED}")]
    NoScheme,
    /// `embedded:` without a folder.
    #[error("embedded: needs a folder, for example embedded:/var/lib/leasehold")]
    NoFolder,
    /// `memory:` with something behind it.
    #[error("memory: takes nothing behind the colon")]
    Trailing,
    /// An address of Redis that cannot be read.
    #[error(transparent)]
    Redis(#[from] lease::Invalid),
    /// `postgres:` with something wrong behind it.
    #[error(transparent)]
    Postgres(#[from] postgres::UrlError),
}

/// The forms that are understood.
const ACCEPTED: &str = "memory:, embedded:DIR, postgres://USER@HOST/DATABASE, redis://HOST, rediss://HOST, redis-cluster://HOST,… or redis+sentinel://HOST,…/SERVICE";

/// The longest scheme that an error repeats: what is longer was not meant as one.
const SCHEME_BYTES: usize = 16;

impl FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (scheme, rest) = text.split_once(':').ok_or(UrlError::NoScheme)?;
        match scheme {
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => Err(UrlError::Trailing),
            "embedded" if rest.is_empty() => Err(UrlError::NoFolder),
            "embedded" => Ok(Self::Embedded(rest.into())),
            "postgres" | "postgresql" => Ok(Self::Postgres(Box::new(text.parse()?))),
            "redis" | "rediss" | "redis-cluster" | "redis+sentinel" => {
                redis::Options::parse(text)?;
                Ok(Self::Redis(text.to_owned()))
            }
            other if is_scheme(other) => Err(UrlError::Scheme(other.to_owned())),
            _ => Err(UrlError::NoScheme),
        }
    }
}

/// Whether a text can be shown back as a scheme: short and of letters, so no password by accident.
fn is_scheme(text: &str) -> bool {
    text.len() <= SCHEME_BYTES && text.bytes().all(|byte| byte.is_ascii_lowercase())
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Embedded(dir) => write!(f, "embedded:{}", dir.display()),
            Self::Postgres(options) => f.write_str(&options.describe()),
            Self::Redis(url) => f.write_str(&redact::without_credentials(url)),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Settings for whichever store the URL names.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// For `memory:` and `embedded:`. Its folder is replaced by the URL's.
    pub embedded: embedded::Options,
    /// What is kept, for every store.
    pub kept: Kept,
}

/// What a store keeps of the past. What is `None` is as the store has it by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// The age at which an event is forgotten, in ms. Redis goes by their number alone.
    pub history_ms: Option<u64>,
    /// How many events are kept; on Redis about as many.
    pub history_events: Option<u64>,
    /// Which renewals become events.
    pub renewals: Option<RenewalEvents>,
    /// How many keys without a lease are remembered one by one.
    pub idle_keys: Option<usize>,
    /// How long a key without a lease is remembered at most, in ms.
    pub idle_ms: Option<u64>,
}

impl Kept {
    fn embedded(self, mut options: embedded::Options) -> embedded::Options {
        let (engine, history) = (&mut options.engine, &mut options.history);
        set(&mut history.max_age_ms, self.history_ms);
        set(&mut history.max_events, self.history_events);
        set(&mut engine.renewals, self.renewals);
        set(&mut engine.idle_keys, self.idle_keys);
        set(&mut engine.idle_ms, self.idle_ms);
        options
    }

    fn postgres(self, mut options: postgres::Options) -> postgres::Options {
        set(&mut options.history_ms, self.history_ms);
        set(&mut options.history_events, self.history_events);
        set(&mut options.renewals, self.renewals);
        let keys = self.idle_keys.map(|keys| keys as u64);
        set(&mut options.idle_keys, keys);
        set(&mut options.idle_ms, self.idle_ms);
        options
    }

    fn redis(self, mut options: redis::Options) -> redis::Options {
        set(&mut options.history, self.history_events);
        set(&mut options.renewals, self.renewals);
        set(&mut options.idle_keys, self.idle_keys);
        set(&mut options.idle_ms, self.idle_ms);
        options
    }
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is wrong.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The embedded store said no.
    #[error(transparent)]
    Embedded(#[from] embedded::OpenError),
    /// The store is there and cannot be used.
    #[error(transparent)]
    Store(#[from] lease::Error),
    /// The store is being moved, or was.
    #[error("{0}")]
    Maintenance(Maintenance),
}

#[derive(Clone)]
enum Opened {
    Embedded(Embedded),
    Postgres(Arc<Postgres>),
    Redis(Redis),
}

/// An open store, and how to stop it.
#[derive(Clone)]
pub struct Store {
    authority: Arc<dyn Authority>,
    opened: Opened,
}

impl Store {
    /// The authority.
    pub fn authority(&self) -> Arc<dyn Authority> {
        self.authority.clone()
    }

    /// Stops gracefully: an embedded store writes down the time that every lease has left (L14), and a
    /// replica of a shared one gives its leadership of expiry up.
    pub async fn close(&self) -> Result<(), lease::Error> {
        match &self.opened {
            Opened::Embedded(embedded) => return embedded.close().await,
            Opened::Postgres(postgres) => postgres.close().await,
            Opened::Redis(redis) => redis.close().await,
        }
        Ok(())
    }
}

impl From<Embedded> for Store {
    fn from(embedded: Embedded) -> Self {
        Self {
            authority: Arc::new(embedded.clone()),
            opened: Opened::Embedded(embedded),
        }
    }
}

/// Opens the store that a URL names.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use std::sync::Arc;
/// let clock = Arc::new(leasehold_clock::System);
/// let url = "memory:".parse().unwrap();
/// let store = leasehold_store::open(&url, Default::default(), clock).await.unwrap();
/// assert_eq!(store.authority().capabilities().store, "memory");
/// store.close().await.unwrap();
/// # }
/// ```
pub async fn open(
    url: &StoreUrl,
    options: Options,
    clock: Arc<dyn Clock>,
) -> Result<Store, OpenError> {
    if let Some(maintenance) = migrate::maintenance_of(url).await? {
        return Err(OpenError::Maintenance(maintenance));
    }
    match url {
        StoreUrl::Memory => {
            let options = options.kept.embedded(options.embedded);
            Ok(Embedded::memory(options, clock)?.into())
        }
        StoreUrl::Embedded(dir) => {
            let options = embedded::Options {
                dir: dir.clone(),
                ..options.kept.embedded(options.embedded)
            };
            Ok(Embedded::open(options, clock).await?.into())
        }
        StoreUrl::Redis(url) => {
            let address = redis::Options::parse(url).map_err(UrlError::Redis)?;
            let redis = Redis::open(options.kept.redis(address)).await?;
            Ok(Store {
                authority: Arc::new(redis.clone()),
                opened: Opened::Redis(redis),
            })
        }
        // Goes by the database's clock.
        StoreUrl::Postgres(address) => {
            let postgres = Postgres::open(options.kept.postgres((**address).clone())).await?;
            let postgres = Arc::new(postgres);
            Ok(Store {
                authority: postgres.clone(),
                opened: Opened::Postgres(postgres),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_understood_and_shown_as_they_were_given() {
        for text in ["memory:", "embedded:/var/lib/leasehold", "embedded:data"] {
            let url: StoreUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), text);
        }
    }

    #[test]
    fn a_wrong_url_is_refused_with_what_is_accepted_and_without_its_secret() {
        for text in [
            "",
            "nonsense",
            "mysql://u:hunter2@h/",
            "u:hunter2@h",
            "a-b:hunter2",
        ] {
            let message = text.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(message.contains(ACCEPTED), "{message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
        assert_eq!("embedded:".parse::<StoreUrl>(), Err(UrlError::NoFolder));
        assert_eq!("memory:x".parse::<StoreUrl>(), Err(UrlError::Trailing));
        let url: StoreUrl = "rediss://ann:hunter2@cache:7000/1".parse().unwrap();
        assert_eq!(url.to_string(), "rediss://cache:7000/1");
        let error = "redis://ann:hunter2@cache?color=red".parse::<StoreUrl>();
        assert!(!error.unwrap_err().to_string().contains("hunter2"));
    }
}
