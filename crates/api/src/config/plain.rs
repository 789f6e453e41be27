//! Values that can be written as one text: in a variable, for instance.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use ipnet::IpNet;
use secrecy::SecretString;
use serde::de::DeserializeOwned;

use super::{Entry, Node, Period, Setting};

/// A value that is written as one text.
pub trait Plain: Sized {
    /// What is expected, as it stands after "expected".
    const EXPECTS: &'static str;

    /// Reads it. The error never repeats the text: it may be a secret.
    fn read(text: &str) -> Result<Self, String>;

    /// Reads several: by default separated by commas.
    fn read_list(text: &str) -> Result<Vec<Self>, String> {
        text.split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(Self::read)
            .collect()
    }
}

impl<T: Plain> Setting for T {
    fn set(&mut self, text: &str) -> Result<(), String> {
        *self = T::read(text.trim())?;
        Ok(())
    }

    fn expects(&self) -> &'static str {
        T::EXPECTS
    }
}

impl<T: Plain> Entry for T {
    fn node(&mut self) -> Node<'_> {
        Node::Setting(self)
    }
}

fn expected<T: Plain>() -> String {
    format!("expected {}", T::EXPECTS)
}

/// One of the words of an enumeration.
pub fn word<T: DeserializeOwned + Plain>(text: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|_| expected::<T>())
}

/// A value that is written as JSON. The error says where the mistake is, and nothing of the value.
pub fn json<T: DeserializeOwned>(text: &str, expects: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| {
        format!(
            "expected {expects}; mistake at line {} column {}",
            error.line(),
            error.column()
        )
    })
}

macro_rules! parsed {
    ($($type:ty => $expects:literal;)*) => {$(
        impl Plain for $type {
            const EXPECTS: &'static str = $expects;
            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| expected::<Self>())
            }
        }
    )*};
}

parsed! {
    usize => "a whole number, not negative";
    u64 => "a whole number, not negative";
    u32 => "a whole number, not negative";
    u16 => "a whole number up to 65535";
    SocketAddr => "ADDRESS:PORT";
    IpNet => "a network such as 10.0.0.0/8";
    Period => "a duration such as 500ms, 30s, 1m30s or 2h";
}

impl Plain for String {
    const EXPECTS: &'static str = "a text";
    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

impl Plain for PathBuf {
    const EXPECTS: &'static str = "a path";
    fn read(text: &str) -> Result<Self, String> {
        Ok(text.into())
    }
}

impl Plain for SecretString {
    const EXPECTS: &'static str = "a secret";
    fn read(text: &str) -> Result<Self, String> {
        Ok(text.into())
    }
}

impl Plain for bool {
    const EXPECTS: &'static str = "true or false";
    fn read(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(true),
            "0" | "false" | "no" | "off" => Ok(false),
            _ => Err(expected::<Self>()),
        }
    }
}

impl<T: Plain> Plain for Option<T> {
    const EXPECTS: &'static str = T::EXPECTS;
    fn read(text: &str) -> Result<Self, String> {
        T::read(text).map(Some)
    }
}

impl<T: Plain> Plain for Vec<T> {
    const EXPECTS: &'static str = "a list";
    fn read(text: &str) -> Result<Self, String> {
        T::read_list(text)
    }
}

impl<T: DeserializeOwned> Plain for BTreeMap<String, T> {
    const EXPECTS: &'static str = "names and values";
    fn read(text: &str) -> Result<Self, String> {
        json(text, "a JSON object")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_errors_never_repeat_them() {
        assert_eq!(bool::read("On"), Ok(true));
        assert_eq!(
            Vec::<String>::read("a, b,,c"),
            Ok(["a", "b", "c"].map(String::from).to_vec())
        );
        assert_eq!(Option::<u32>::read("7"), Ok(Some(7)));
        let map = BTreeMap::<String, String>::read("{\"a\": \"b\"}").unwrap();
        assert_eq!(map["a"], "b");
        for wrong in [
            bool::read("hush").map(|_| ()),
            usize::read("-1").map(|_| ()),
            Period::read("hush").map(|_| ()),
            BTreeMap::<String, String>::read("{\"a\": hush}").map(|_| ()),
        ] {
            let message = wrong.unwrap_err();
            assert!(
                message.starts_with("expected ") && !message.contains("hush"),
                "{message}"
            );
        }
    }
}
