//! Short validated texts: one macro, so that every name in the system is checked the same way.

/// What is wrong with a value that came from outside: which field, and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: expected {expected}")]
pub struct Invalid {
    /// The field as the caller knows it.
    pub field: &'static str,
    /// What would have been accepted.
    pub expected: &'static str,
}

impl Invalid {
    /// A complaint about `field`.
    pub const fn new(field: &'static str, expected: &'static str) -> Self {
        Self { field, expected }
    }
}

/// Letters, digits, dot, underscore and dash: safe in URLs, file names, metrics and routing keys.
pub(crate) fn is_plain(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// Anything a person can see, without white space, control characters, or characters that make a text
/// look like another one.
pub(crate) fn is_visible(text: &str) -> bool {
    // Most names are plain ASCII, and every request has some.
    text.bytes().all(|byte| byte.is_ascii_graphic())
        || !text
            .chars()
            .any(|c| c.is_control() || c.is_whitespace() || is_deceptive(c))
}

/// Characters without a shape of their own: zero-width ones, those that turn the direction of the text
/// around them, and tags. Two names that differ only in these look the same to a person.
pub(crate) fn is_deceptive(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// Declares a newtype over a shared string that cannot hold a wrong value.
macro_rules! text {
    ($(#[$doc:meta])* $name:ident, $field:literal, 1..=$max:literal, $check:path, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// The longest accepted text, in bytes.
            pub const MAX_BYTES: usize = $max;

            /// Checks and keeps `text`.
            pub fn new(text: impl AsRef<str>) -> Result<Self, $crate::Invalid> {
                let text = text.as_ref();
                if text.is_empty() || text.len() > Self::MAX_BYTES || !$check(text) {
                    return Err($crate::Invalid::new($field, $expected));
                }
                Ok(Self(text.into()))
            }

            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::Invalid;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = $crate::Invalid;
            fn try_from(text: String) -> Result<Self, Self::Error> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.as_str().to_owned()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}
pub(crate) use text;
