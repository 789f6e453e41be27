//! The tokens a server knows: those in its data folder, and those it was given at start.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use lease::Clock;
use rand::Rng as _;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;

use super::{Caller, Scope, TokenFile, file::Version};

/// How often the file is looked at again for changes, at most.
const RELOAD_MS: u64 = 1000;
/// A token from outside that is shorter than this can be guessed: it is taken, with a warning.
const SAFE_SECRET_BYTES: usize = 16;

/// Why tokens could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The list is not what it should be.
    #[error("{place}: {problem}")]
    Invalid {
        /// Where it came from.
        place: String,
        /// What is wrong; never a token itself.
        problem: String,
    },
    /// The folder could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: String,
        /// What happened.
        source: std::io::Error,
    },
    /// Nothing would ever be let in.
    #[error("no token is configured and there is no data folder to keep one in")]
    None,
}

/// A token as it is configured: `{"token": "…", "scopes": ["leases:write"], "tenant": "…"}`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenSpec {
    /// The secret itself.
    pub token: SecretString,
    /// What it may do.
    #[serde(default)]
    pub scopes: Vec<Scope>,
    /// The tenant it is bound to.
    #[serde(default)]
    pub tenant: Option<String>,
    /// A name for logs.
    #[serde(default)]
    pub name: Option<String>,
}

/// Reads a JSON list of tokens. The error never shows a token.
pub fn parse_tokens(place: &str, json: &str) -> Result<Vec<TokenSpec>, Error> {
    let invalid = |problem: String| Error::Invalid {
        place: place.to_owned(),
        problem,
    };
    let specs: Vec<TokenSpec> = serde_json::from_str(json).map_err(|error| {
        // serde quotes the offending value, which may be a secret: say only where it is.
        invalid(format!(
            "expected a list like [{{\"token\":\"…\",\"scopes\":[\"leases:write\"]}}], with scopes of \
             the areas leases, runners, v3 or credentials; mistake at line {} column {}",
            error.line(),
            error.column()
        ))
    })?;
    for (index, spec) in specs.iter().enumerate() {
        match spec.token.expose_secret().len() {
            0 => return Err(invalid(format!("token {index} is empty"))),
            1..SAFE_SECRET_BYTES => tracing::warn!(
                place,
                token = index,
                "this token has fewer than {SAFE_SECRET_BYTES} bytes and can be guessed; \
                 make one with `leasehold token create`"
            ),
            _ => {}
        }
    }
    Ok(specs)
}

/// The tokens given by the environment: `LEASEHOLD_TOKENS`, or its alias `XG2G_API_TOKENS`.
pub fn env_tokens(variable: impl Fn(&str) -> Option<String>) -> Result<Vec<TokenSpec>, Error> {
    for name in ["LEASEHOLD_TOKENS", "XG2G_API_TOKENS"] {
        if let Some(json) = variable(name).filter(|json| !json.trim().is_empty()) {
            return parse_tokens(name, &json);
        }
    }
    Ok(Vec::new())
}

/// A new secret: 32 random bytes, recognisable as a token of this project.
pub fn new_secret() -> SecretString {
    let mut bytes = [0u8; 32];
    rand::rng().fill_bytes(&mut bytes);
    format!("lh_{}", BASE64_URL_SAFE_NO_PAD.encode(bytes)).into()
}

/// Random tokens need no slow hash.
pub(super) fn digest(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

#[derive(Clone)]
struct Known {
    digest: [u8; 32],
    caller: Caller,
}

impl Known {
    /// Whether it lets the same caller do the same.
    fn same(&self, other: &Self) -> bool {
        self.digest == other.digest
            && self.caller.scopes == other.caller.scopes
            && self.caller.tenant == other.caller.tenant
    }
}

struct Loaded {
    known: Vec<Known>,
    version: Option<Version>,
}

/// The tokens that are let in. Changes of the file are seen without a restart.
pub struct Tokens {
    file: Option<TokenFile>,
    given: Vec<Known>,
    loaded: ArcSwap<Loaded>,
    looked_at: AtomicU64,
    /// Held while the file is read again, so that each credential has one token for its end.
    reading: Mutex<()>,
    clock: Arc<dyn Clock>,
}

impl Tokens {
    /// Opens the tokens of a data folder, beside those that are given. When there is none at all,
    /// makes an administrator's token in the folder; without a folder that is an error.
    pub fn open(
        data_dir: Option<&Path>,
        given: &[TokenSpec],
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let file = data_dir.map(TokenFile::new);
        let mut known: Vec<Known> = Vec::with_capacity(given.len());
        for (index, spec) in given.iter().enumerate() {
            let mut next = known_spec(index, spec);
            if known
                .iter()
                .any(|it| it.caller.token_id == next.caller.token_id)
            {
                // Two of one name are two credentials: neither stands for the other.
                let suffix = hex::encode(&next.digest[..4]);
                next.caller.token_id = format!("{}-{suffix}", next.caller.token_id).into();
            }
            known.push(next);
        }
        let given = known;
        if let Some(file) = &file {
            if given.is_empty() && file.list()?.is_empty() {
                file.create_admin(clock.unix())?;
            }
        } else if given.is_empty() {
            return Err(Error::None);
        }
        let loaded = load(file.as_ref())?;
        let looked_at = AtomicU64::new(clock.boot().get());
        Ok(Self {
            file,
            given,
            loaded: ArcSwap::from_pointee(loaded),
            looked_at,
            reading: Mutex::new(()),
            clock,
        })
    }

    /// Whose secret this is, also when it has no scopes. Every known digest is compared, each in constant time.
    pub fn find(&self, secret: &[u8]) -> Option<Caller> {
        let digest = digest(secret);
        self.look_again(false);
        self.search(&digest).or_else(|| {
            // It may have been made a moment ago.
            self.look_again(true);
            self.search(&digest)
        })
    }

    /// Looks at the file: what was revoked ends now, also where nobody asks.
    pub(crate) fn refresh(&self) {
        self.look_again(true);
    }

    /// The caller behind a token's id, if that token is still let in.
    pub fn find_id(&self, id: &str) -> Option<Caller> {
        self.look_again(false);
        let loaded = self.loaded.load();
        self.given
            .iter()
            .chain(&loaded.known)
            .find(|known| &*known.caller.token_id == id)
            .map(|known| known.caller.clone())
            .filter(|caller| !caller.scopes.is_empty())
    }

    fn search(&self, digest: &[u8; 32]) -> Option<Caller> {
        let loaded = self.loaded.load();
        let mut found = None;
        for known in self.given.iter().chain(&loaded.known) {
            if bool::from(known.digest.ct_eq(digest)) {
                found = Some(known.caller.clone());
            }
        }
        found
    }

    /// Reads the file again if it changed. Looks at most once in a while, unless `now`.
    fn look_again(&self, now: bool) {
        let Some(file) = &self.file else { return };
        let time = self.clock.boot().get();
        let before = self.looked_at.load(Ordering::Relaxed);
        if !now && time.saturating_sub(before) < RELOAD_MS {
            return;
        }
        self.looked_at.store(time, Ordering::Relaxed);
        if file.version() == self.loaded.load().version {
            return;
        }
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        match load(Some(file)) {
            Ok(mut loaded) => {
                for before in &self.loaded.load().known {
                    match loaded.known.iter_mut().find(|it| it.same(before)) {
                        Some(same) => same.caller.revoked = before.caller.revoked.clone(),
                        None => before.caller.revoked.cancel(),
                    }
                }
                self.loaded.store(Arc::new(loaded));
            }
            // A file that cannot be read lets nobody new in, and nobody out.
            Err(error) => tracing::error!(%error, "the tokens could not be read again"),
        }
    }
}

fn load(file: Option<&TokenFile>) -> Result<Loaded, Error> {
    let Some(file) = file else {
        return Ok(Loaded {
            known: Vec::new(),
            version: None,
        });
    };
    // The version is taken first: a change in between is then seen the next time.
    let version = file.version();
    let known = file
        .list()?
        .into_iter()
        .filter_map(|stored| {
            let mut digest = [0; 32];
            hex::decode_to_slice(&stored.sha256, &mut digest).ok()?;
            Some(Known {
                digest,
                caller: Caller {
                    token_id: stored.id.into(),
                    scopes: stored.scopes.into(),
                    tenant: stored.tenant.map(Into::into),
                    revoked: CancellationToken::new(),
                },
            })
        })
        .collect();
    Ok(Loaded { known, version })
}

fn known_spec(index: usize, spec: &TokenSpec) -> Known {
    Known {
        digest: digest(spec.token.expose_secret().as_bytes()),
        caller: Caller {
            token_id: spec
                .name
                .clone()
                .unwrap_or_else(|| format!("configured-{index}"))
                .into(),
            scopes: spec.scopes.clone().into(),
            tenant: spec.tenant.clone().map(Into::into),
            revoked: CancellationToken::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_token_is_taken_and_an_empty_one_is_not() {
        let parse = |token: &str| {
            parse_tokens(
                "here",
                &format!("[{{\"token\":\"{token}\",\"scopes\":[]}}]"),
            )
        };
        assert_eq!(parse("t").unwrap().len(), 1);
        let refused = parse("").unwrap_err().to_string();
        assert!(refused.contains("token 0 is empty"), "{refused}");
    }
}
