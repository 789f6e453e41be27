//! How long tests take. The ordinary run plays every scenario, short; a soak plays it at full length,
//! with seeds of its own. Only the number of rounds and seconds differs, never what is asserted.

use std::{
    fmt::Debug,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    str::FromStr,
};

/// The variable that names the length: `normal`, which is meant when it is not set, or `soak`.
pub const LENGTH: &str = "LEASEHOLD_TEST_LENGTH";

/// How long a scenario is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// Short enough to be run before each change.
    Normal,
    /// As long as it takes to meet what is rare.
    Soak,
}

impl Length {
    /// What the environment asks for.
    ///
    /// # Panics
    ///
    /// When it asks for something that is no length.
    pub fn current() -> Self {
        let asked = std::env::var(LENGTH).unwrap_or_default();
        asked.parse().unwrap_or_else(|why| panic!("{LENGTH} {why}"))
    }

    /// The value for this length.
    pub fn pick<T>(self, normal: T, soak: T) -> T {
        match self {
            Self::Normal => normal,
            Self::Soak => soak,
        }
    }
}

impl FromStr for Length {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" | "normal" => Ok(Self::Normal),
            "soak" => Ok(Self::Soak),
            other => Err(format!("is `normal` or `soak`, not {other:?}")),
        }
    }
}

/// `normal` in the ordinary run and `soak` in a soak.
///
/// # Panics
///
/// When the environment asks for something that is no length.
pub fn pick<T>(normal: T, soak: T) -> T {
    Length::current().pick(normal, soak)
}

/// As [`pick`], unless the variable `name` is set: that decides for one scenario alone.
///
/// # Panics
///
/// When the variable is set to something else than a number.
pub fn pick_or<T: FromStr<Err: Debug>>(name: &str, normal: T, soak: T) -> T {
    match std::env::var(name) {
        Err(_) => pick(normal, soak),
        Ok(text) => text
            .parse()
            .unwrap_or_else(|error| panic!("{name} must be a number, not {text:?}: {error:?}")),
    }
}

/// What chance begins with: the same in every ordinary run, another in every soak, unless the variable
/// `name` is set. It is printed, so that a failure can be repeated.
///
/// # Panics
///
/// When the variable is set to something else than a number.
pub fn seed(name: &str) -> u64 {
    // The standard library's own chance; few enough digits to be typed.
    let any = RandomState::new().build_hasher().finish() % 1_000_000_000;
    let seed = pick_or(name, 1, any);
    println!("repeat with {name}={seed}");
    seed
}
