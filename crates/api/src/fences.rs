//! Whether tokens still count: what a receiver asks before it believes a message.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Check, FieldError, acquire::check_key};

/// A token of a key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FencedToken {
    /// The kind of the key.
    pub kind: String,
    /// The id of the key.
    pub id: String,
    /// The token.
    pub token: u64,
}

/// Many tokens in one request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FenceCheck {
    /// The tokens: 1 to 10,000.
    pub tokens: Vec<FencedToken>,
}

impl FenceCheck {
    /// How many tokens one call may name.
    pub const MAX_TOKENS: usize = 10_000;

    /// The kernel's values, or everything that is wrong.
    pub fn check(&self) -> Result<Vec<(lease::Key, lease::Token)>, Vec<FieldError>> {
        let mut check = Check::new();
        if self.tokens.is_empty() || self.tokens.len() > Self::MAX_TOKENS {
            check.wrong("tokens", "1 to 10,000 tokens");
            return check.finish(None);
        }
        let checked: Vec<_> = self
            .tokens
            .iter()
            .enumerate()
            .map(|(index, item)| {
                let prefix = format!("tokens[{index}].");
                let key = check_key(&item.kind, &item.id, &prefix, &mut check);
                let token = check.take(&format!("{prefix}token"), lease::Token::new(item.token));
                Some((key?, token?))
            })
            .collect();
        check.finish(checked.into_iter().collect())
    }
}

/// What a token is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerdictWord {
    /// The newest token of its key, and its lease is live.
    Current,
    /// The newest token of its key, but its lease is over.
    Ended,
    /// A newer token exists: drop what came with this one.
    Stale,
    /// Never granted for this key.
    Unknown,
}

/// The answer for one token.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FenceVerdict {
    /// The kind of the key.
    pub kind: String,
    /// The id of the key.
    pub id: String,
    /// The token that was asked about.
    pub token: u64,
    /// What it is worth.
    pub verdict: VerdictWord,
    /// The newest token of the key, when there is a newer one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest: Option<u64>,
}

impl FenceVerdict {
    /// The answer of the authority for one token.
    pub fn new(key: &lease::Key, token: lease::Token, verdict: lease::Verdict) -> Self {
        let (word, latest) = match verdict {
            lease::Verdict::Current => (VerdictWord::Current, None),
            lease::Verdict::Ended => (VerdictWord::Ended, None),
            lease::Verdict::Stale { latest } => (VerdictWord::Stale, Some(latest.get())),
            lease::Verdict::Unknown => (VerdictWord::Unknown, None),
        };
        Self {
            kind: key.kind().to_owned(),
            id: key.id().to_owned(),
            token: token.get(),
            verdict: word,
            latest,
        }
    }
}

/// The answers, in the order of the request.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct FenceVerdicts {
    /// One per token.
    pub results: Vec<FenceVerdict>,
}
