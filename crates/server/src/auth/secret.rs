//! Secrets: generated, digested, and identified without being shown.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use rand::Rng as _;
use secrecy::SecretString;
use sha2::{Digest as _, Sha256};

/// The SHA-256 digest of a secret: what is stored of it. Random secrets need no slow hash.
pub(super) type Digest = [u8; 32];

/// How many bytes of an id are random.
const ID_BYTES: usize = 6;
/// What every secret of this project begins with.
const MARK: &str = "lh_";

/// A new name for a credential.
pub(super) fn new_id() -> String {
    let mut bytes = [0u8; ID_BYTES];
    rand::rng().fill_bytes(&mut bytes);
    hex::encode(bytes)
}

/// A new secret: 32 random bytes after the name of its credential, by which it is found in the store.
pub(super) fn new_secret(id: &str) -> SecretString {
    let mut bytes = [0u8; 32];
    rand::rng().fill_bytes(&mut bytes);
    format!("{MARK}{id}_{}", BASE64_URL_SAFE_NO_PAD.encode(bytes)).into()
}

/// The digest of a secret.
pub(super) fn digest(secret: &[u8]) -> Digest {
    Sha256::digest(secret).into()
}

/// The digest that a text in hex stands for.
pub(super) fn parse_digest(text: &str) -> Option<Digest> {
    let mut digest = [0; 32];
    hex::decode_to_slice(text, &mut digest).ok()?;
    Some(digest)
}

/// The name of the credential that a secret belongs to, if it belongs to any. Older secrets do not say;
/// their credentials are named after their digest.
pub(super) fn id_of(secret: &[u8]) -> String {
    let named = secret
        .strip_prefix(MARK.as_bytes())
        .and_then(|rest| rest.split_at_checked(2 * ID_BYTES))
        .filter(|(id, rest)| rest.first() == Some(&b'_') && id.iter().all(u8::is_ascii_hexdigit))
        .and_then(|(id, _)| std::str::from_utf8(id).ok());
    match named {
        Some(id) => id.to_ascii_lowercase(),
        None => hex::encode(&digest(secret)[..ID_BYTES]),
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn a_secret_names_its_credential() {
        let id = new_id();
        let secret = new_secret(&id);
        assert_eq!(id_of(secret.expose_secret().as_bytes()), id);
        let older = b"lh_aGVsbG8gaGVsbG8gaGVsbG8gaGVsbG8gaGVsbG8";
        assert_eq!(id_of(older), hex::encode(&digest(older)[..6]));
        assert_eq!(id_of(b"").len(), 12);
    }
}
