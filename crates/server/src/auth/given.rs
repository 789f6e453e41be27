//! The credentials that a server is configured with.

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::{Error, Scope};

/// A secret from outside that is shorter than this can be guessed: it is taken, with a warning.
const SAFE_SECRET_BYTES: usize = 16;

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
            0 => return Err(invalid(format!("credential {index} is empty"))),
            1..SAFE_SECRET_BYTES => tracing::warn!(
                place,
                credential = index,
                "this credential has fewer than {SAFE_SECRET_BYTES} bytes and can be guessed; \
                 make one with `leasehold credential create`"
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
        assert!(refused.contains("credential 0 is empty"), "{refused}");
    }
}
