//! What a server knows of credentials and logins without asking its store: two tables by digest.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use lease::{CREDENTIAL, Key, Record, UnixMillis};
use leasehold_api::Time;
use secrecy::ExposeSecret as _;
use tokio_util::sync::CancellationToken;

use super::{
    Caller, Rights, TokenSpec,
    secret::{Digest, digest, parse_digest},
    stored::{Stored, StoredLogin, login_key, parse},
};

/// How long a login lasts without being used: half a day of work.
pub(super) const IDLE_MS: u64 = 12 * 3_600_000;

/// A secret that is let in, or was.
struct Secret {
    caller: Caller,
    ends: Option<End>,
}

/// When a secret is no longer let in.
#[derive(Clone, Copy)]
struct End {
    at: UnixMillis,
    /// Whether another secret took its place; otherwise its credential expires.
    is_replaced: bool,
}

struct Login {
    credential: Arc<str>,
    /// When it was last used here, or elsewhere as far as that is written down.
    used: AtomicU64,
    /// The use that is written down.
    noted: AtomicU64,
    ended: CancellationToken,
}

/// What is known of a secret.
pub(super) enum Found {
    /// It is let in.
    Caller(Caller),
    /// It was let in, until then.
    Ended { at: Time, is_replaced: bool },
    /// It is not known.
    Nothing,
}

#[derive(Default)]
pub(super) struct Known {
    secrets: HashMap<Digest, Secret>,
    /// The digests of each stored credential: of its secret, and of the one before.
    stored: HashMap<Arc<str>, Vec<Digest>>,
    /// The digests of the credentials that were configured, by what logins call them.
    given: HashMap<Arc<str>, Digest>,
    logins: HashMap<Digest, Login>,
}

impl Known {
    /// With the credentials that a server was given.
    pub fn new(given: &[TokenSpec]) -> Self {
        let mut known = Self::default();
        let mut names: Vec<String> = Vec::with_capacity(given.len());
        for (index, spec) in given.iter().enumerate() {
            let digest = digest(spec.token.expose_secret().as_bytes());
            let name = spec.name.clone();
            let mut name = name.unwrap_or_else(|| format!("configured-{index}"));
            if names.contains(&name) {
                // Two of one name are two credentials: neither stands for the other.
                name = format!("{name}-{}", hex::encode(&digest[..4]));
            }
            names.push(name.clone());
            // Replicas may call it by other names: a login goes by the secret.
            let reference: Arc<str> = format!("given-{}", hex::encode(&digest[..16])).into();
            known.given.insert(reference.clone(), digest);
            let caller = Caller::from(Rights {
                token_id: name.into(),
                scopes: spec.scopes.clone().into(),
                tenant: spec.tenant.clone().map(Into::into),
                revoked: CancellationToken::new(),
                reference,
            });
            known.secrets.insert(digest, Secret { caller, ends: None });
        }
        known
    }

    /// Whose secret this is.
    pub fn secret(&self, digest: &Digest, now: UnixMillis) -> Found {
        let Some(secret) = self.secrets.get(digest) else {
            return Found::Nothing;
        };
        match secret.ends {
            Some(End { at, is_replaced }) if at <= now => Found::Ended {
                at: at.into(),
                is_replaced,
            },
            _ => Found::Caller(secret.caller.clone()),
        }
    }

    /// Whose login this is, and whether its use is to be written down.
    pub fn login(&self, digest: &Digest, now: UnixMillis) -> Option<(Caller, bool)> {
        let login = self.logins.get(digest)?;
        let used = UnixMillis::new(login.used.load(Ordering::Relaxed));
        if now.since(used) >= IDLE_MS {
            return None;
        }
        // The login is only as good as its credential is now.
        let given = self.given.get(&login.credential);
        let stored = || self.stored.get(&login.credential)?.first();
        let secret = self.secrets.get(given.or_else(stored)?)?;
        if secret.ends.is_some_and(|end| end.at <= now) {
            return None;
        }
        login.used.fetch_max(now.get(), Ordering::Relaxed);
        let noted = login.noted.load(Ordering::Relaxed);
        let is_due = now.get().saturating_sub(noted) >= IDLE_MS / 12
            && login
                .noted
                .compare_exchange(noted, now.get(), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        let caller = Caller::from(Rights {
            revoked: login.ended.clone(),
            ..Rights::clone(&secret.caller)
        });
        Some((caller, is_due))
    }

    /// The credential that a login stands for, when it is not known here.
    pub fn credential_of(&self, digest: &Digest) -> Option<Arc<str>> {
        let credential = &self.logins.get(digest)?.credential;
        let known = self.stored.contains_key(credential) || self.given.contains_key(credential);
        (!known).then(|| credential.clone())
    }

    /// How many logins there are.
    pub fn logins(&self) -> usize {
        self.logins.len()
    }

    /// The logins that nobody uses any more, and the one that was used least recently.
    pub fn idle_logins(&self, now: UnixMillis) -> (Vec<Key>, Option<Key>) {
        let used = |login: &Login| UnixMillis::new(login.used.load(Ordering::Relaxed));
        let idle = self
            .logins
            .iter()
            .filter(|(_, login)| now.since(used(login)) >= IDLE_MS);
        let idle = idle.filter_map(|(digest, _)| login_key(digest).ok());
        let oldest = self.logins.iter().min_by_key(|(_, login)| used(login));
        let oldest = oldest.and_then(|(digest, _)| login_key(digest).ok());
        (idle.collect(), oldest)
    }

    /// Takes a record over as it is now.
    pub fn put(&mut self, record: &Record) {
        if record.key.kind() == CREDENTIAL {
            match parse::<Stored>(record).filter(|stored| stored.revoked_at.is_none()) {
                Some(stored) => self.put_credential(record.key.id(), stored),
                None => self.remove_credential(record.key.id()),
            }
            return;
        }
        let Some(stored) = parse::<StoredLogin>(record) else {
            return;
        };
        let Some(digest) = parse_digest(&stored.sha256) else {
            return;
        };
        let login = self.logins.entry(digest).or_insert_with(|| Login {
            credential: stored.credential.into(),
            used: AtomicU64::new(0),
            noted: AtomicU64::new(0),
            ended: CancellationToken::new(),
        });
        let used_at = stored.used_at.get();
        login.used.fetch_max(used_at, Ordering::Relaxed);
        login.noted.fetch_max(used_at, Ordering::Relaxed);
    }

    /// A record is gone: what it let in ends.
    pub fn remove(&mut self, key: &Key) {
        if key.kind() == CREDENTIAL {
            self.remove_credential(key.id());
            return;
        }
        let half = hex::decode(key.id()).unwrap_or_default();
        self.retain_logins(|digest| !digest.starts_with(&half));
    }

    /// Only these records are left.
    pub fn replace(&mut self, credentials: &[Record], logins: &[Record]) {
        let kept: HashSet<&str> = credentials.iter().map(|it| it.key.id()).collect();
        let gone = self.stored.keys().filter(|id| !kept.contains(&***id));
        for id in gone.cloned().collect::<Vec<_>>() {
            self.remove_credential(&id);
        }
        let kept: HashSet<&str> = logins.iter().map(|it| it.key.as_str()).collect();
        self.retain_logins(|digest| login_key(digest).is_ok_and(|it| kept.contains(it.as_str())));
        credentials.iter().chain(logins).for_each(|it| self.put(it));
    }

    /// Ends what is open of secrets that are no longer let in.
    pub fn sweep(&mut self, now: UnixMillis) {
        let mut ended = Vec::new();
        for secret in self.secrets.values() {
            if secret.ends.is_some_and(|end| end.at <= now) && !secret.caller.revoked.is_cancelled()
            {
                secret.caller.revoked.cancel();
                if secret.ends.is_some_and(|end| !end.is_replaced) {
                    ended.push(secret.caller.reference.clone());
                }
            }
        }
        for login in self.logins.values() {
            if ended.contains(&login.credential) {
                login.ended.cancel();
            }
        }
    }

    fn put_credential(&mut self, id: &str, stored: Stored) {
        let expires = stored.expires_at.map(|at| End {
            at: at.0,
            is_replaced: false,
        });
        let mut wanted = Vec::with_capacity(2);
        if let Some(digest) = parse_digest(&stored.sha256) {
            wanted.push((digest, expires));
        }
        if let Some(previous) = stored.previous
            && let Some(digest) = parse_digest(&previous.sha256)
        {
            let replaced = End {
                at: previous.until.0,
                is_replaced: true,
            };
            let first = expires.filter(|expires| expires.at < replaced.at);
            wanted.push((digest, Some(first.unwrap_or(replaced))));
        }
        let reference: Arc<str> = id.into();
        let scopes: Arc<[_]> = stored.scopes.into();
        let tenant: Option<Arc<str>> = stored.tenant.map(Into::into);
        for digest in self.stored.remove(id).unwrap_or_default() {
            let stays = wanted.iter().any(|(it, _)| *it == digest)
                && self.secrets.get(&digest).is_some_and(|before| {
                    before.caller.scopes == scopes && before.caller.tenant == tenant
                });
            if !stays && let Some(before) = self.secrets.remove(&digest) {
                before.caller.revoked.cancel();
            }
        }
        for (digest, ends) in &wanted {
            if self.given.values().any(|given| given == digest) {
                // What is configured goes before what was made.
                continue;
            }
            let secret = self.secrets.entry(*digest).or_insert_with(|| Secret {
                caller: Caller::from(Rights {
                    token_id: reference.clone(),
                    scopes: scopes.clone(),
                    tenant: tenant.clone(),
                    revoked: CancellationToken::new(),
                    reference: reference.clone(),
                }),
                ends: None,
            });
            secret.ends = *ends;
        }
        let digests = wanted.into_iter().map(|(digest, _)| digest).collect();
        self.stored.insert(reference, digests);
    }

    fn remove_credential(&mut self, id: &str) {
        for digest in self.stored.remove(id).unwrap_or_default() {
            if let Some(secret) = self.secrets.get(&digest)
                && &*secret.caller.reference == id
            {
                secret.caller.revoked.cancel();
                self.secrets.remove(&digest);
            }
        }
        for login in self.logins.values() {
            if &*login.credential == id {
                login.ended.cancel();
            }
        }
    }

    fn retain_logins(&mut self, keep: impl Fn(&Digest) -> bool) {
        self.logins.retain(|digest, login| {
            let stays = keep(digest);
            if !stays {
                login.ended.cancel();
            }
            stays
        });
    }
}
