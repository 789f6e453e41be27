//! Configuration: a component's options are a section of the file. [`section!`](crate::section) declares
//! a setting once, with its name, type, default and description; reading the file, the environment,
//! `leasehold config show` and the reference page follow from that.

mod environment;
mod period;
mod plain;

use std::fmt;

pub use environment::{PREFIX, apply, variable};
pub use period::Period;
pub use plain::{Plain, json, word};

/// The port of a server unless one is configured.
pub const DEFAULT_PORT: u16 = 8740;

/// Several settings under one name.
pub trait Section {
    /// The settings and sections in it, in the order of their declaration.
    fn fields(&mut self) -> Vec<Field<'_>>;
}

/// One setting or section.
pub struct Field<'a> {
    /// Its name in the file.
    pub name: &'static str,
    /// Names it had before, which are still accepted.
    pub aliases: &'static [&'static str],
    /// What it is for, a line each.
    pub doc: &'static [&'static str],
    /// The thing itself.
    pub node: Node<'a>,
}

/// A setting, or a section with further ones.
pub enum Node<'a> {
    /// Further settings.
    Section(&'a mut dyn Section),
    /// A setting.
    Setting(&'a mut dyn Setting),
}

/// What can be a field of a section.
pub trait Entry {
    /// As a node.
    fn node(&mut self) -> Node<'_>;
}

/// A value that a text can change.
pub trait Setting {
    /// Changes it. The error says what is expected and never repeats the text.
    fn set(&mut self, text: &str) -> Result<(), String>;
    /// What is expected.
    fn expects(&self) -> &'static str;
}

/// A setting by its path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Described {
    /// Where it is in the file: `server.limits.keeps`.
    pub path: String,
    /// Paths it had before.
    pub aliases: Vec<String>,
    /// What it is for.
    pub doc: String,
    /// What is expected.
    pub expects: &'static str,
}

/// Visits every setting below a section.
pub fn visit(
    section: &mut dyn Section,
    prefix: &str,
    each: &mut dyn FnMut(Described, &mut dyn Setting),
) {
    let below = |name: &str| match prefix {
        "" => name.to_owned(),
        _ => format!("{prefix}.{name}"),
    };
    for field in section.fields() {
        let path = below(field.name);
        match field.node {
            Node::Section(inner) => visit(inner, &path, each),
            Node::Setting(setting) => {
                let doc: Vec<&str> = field.doc.iter().map(|line| line.trim()).collect();
                let described = Described {
                    path,
                    aliases: field.aliases.iter().map(|name| below(name)).collect(),
                    doc: doc.join(" "),
                    expects: setting.expects(),
                };
                each(described, setting);
            }
        }
    }
}

/// Every setting below a section.
pub fn describe(section: &mut dyn Section) -> Vec<Described> {
    let mut all = Vec::new();
    visit(section, "", &mut |described, _| all.push(described));
    all
}

/// Shows a section as it is written to a file, without its secrets.
pub fn debug(section: &impl serde::Serialize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let shown = serde_json::to_string(section).map_err(|_| fmt::Error)?;
    f.write_str(&shown)
}

/// Serialises secrets and addresses as they may be shown.
pub mod shown {
    use secrecy::{ExposeSecret as _, SecretString};
    use serde::{Serialize as _, Serializer};

    use crate::redact;

    /// A secret.
    pub fn secret<S: Serializer>(_: &SecretString, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(redact::HIDDEN)
    }

    /// A secret that may be missing; an empty one is none.
    pub fn secret_option<S: Serializer>(
        secret: &Option<SecretString>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let secret = secret.as_ref().filter(|it| !it.expose_secret().is_empty());
        secret.map(|_| redact::HIDDEN).serialize(serializer)
    }

    /// An address.
    pub fn url<S: Serializer>(url: &str, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&redact::url(url))
    }

    /// An address that may be missing.
    pub fn url_option<S: Serializer>(
        url: &Option<String>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        url.as_deref().map(redact::url).serialize(serializer)
    }

    /// The names of headers or variables, without their values.
    pub fn names<S: Serializer>(
        values: &std::collections::BTreeMap<String, String>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(values.keys().map(|name| (name, redact::HIDDEN)))
    }

    /// An address, or several separated by commas, or none.
    pub fn urls<S: Serializer>(urls: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
        let shown = urls.as_ref().map(|urls| {
            let shown: Vec<String> = urls.split(',').map(redact::url).collect();
            shown.join(",")
        });
        shown.serialize(serializer)
    }
}

/// Declares a section: each field with its description, names it had before, type and default.
///
/// ```
/// use leasehold_api::config::{self, Period};
///
/// leasehold_api::section! {
///     /// An example.
///     pub struct Limits {
///         /// How long a request may take.
///         timeout | "timeout_seconds": Period = Period::whole(10),
///         /// How many at the same time.
///         places: usize = 64,
///     }
/// }
///
/// let mut limits: Limits = serde_json::from_str(r#"{"timeout_seconds": 1.5}"#).unwrap();
/// assert_eq!((limits.timeout.millis(), limits.places), (1_500, 64));
/// let paths: Vec<_> = config::describe(&mut limits).into_iter().map(|it| it.path).collect();
/// assert_eq!(paths, ["timeout", "places"]);
/// ```
#[macro_export]
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        $(#[derive($($derive:ident),+)])?
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $(#[serde($($serde:tt)*)])?
                $field:ident $(| $alias:literal)* : $type:ty = $default:expr,
            )*
        }
    ) => {
        $(#[doc = $about])+
        $(#[derive($($derive),+)])?
        #[derive(Clone, ::serde::Deserialize, ::serde::Serialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $(
                $(#[doc = $doc])+
                $(#[serde(alias = $alias)])*
                $(#[serde($($serde)*)])?
                pub $field: $type,
            )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $crate::config::debug(self, f)
            }
        }

        impl $crate::config::Section for $name {
            fn fields(&mut self) -> Vec<$crate::config::Field<'_>> {
                vec![$($crate::config::Field {
                    name: stringify!($field),
                    aliases: &[$($alias),*],
                    doc: &[$($doc),+],
                    node: $crate::config::Entry::node(&mut self.$field),
                },)*]
            }
        }

        impl $crate::config::Entry for $name {
            fn node(&mut self) -> $crate::config::Node<'_> {
                $crate::config::Node::Section(self)
            }
        }
    };
}
