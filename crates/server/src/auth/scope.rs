//! Scopes: an area and how far into it, `leases:write`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// What a scope is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Area {
    /// Leases, events, holders.
    Leases,
    /// Runners, cameras and zones.
    Runners,
    /// Intents and sessions.
    V3,
    /// Reading stored credentials, such as those inside a camera's address.
    Credentials,
}

/// How far a scope reaches; each includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// Look.
    Read,
    /// Change.
    Write,
    /// Change what others have.
    Admin,
}

/// One thing that a token may do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Scope {
    area: Area,
    level: Level,
}

const AREAS: [(Area, &str); 4] = [
    (Area::Leases, "leases"),
    (Area::Runners, "runners"),
    (Area::V3, "v3"),
    (Area::Credentials, "credentials"),
];
const LEVELS: [(Level, &str); 3] = [
    (Level::Read, "read"),
    (Level::Write, "write"),
    (Level::Admin, "admin"),
];

impl Scope {
    /// All that there are.
    pub fn all() -> impl Iterator<Item = Self> {
        AREAS
            .iter()
            .flat_map(|(area, _)| LEVELS.iter().map(|(level, _)| Self::new(*area, *level)))
    }

    /// What a scope may be written as: `*` stands for the highest level.
    pub fn words() -> impl Iterator<Item = String> {
        let levels = || LEVELS.iter().map(|(_, level)| *level).chain(["*"]);
        AREAS
            .iter()
            .flat_map(move |(_, area)| levels().map(move |level| format!("{area}:{level}")))
    }

    /// Puts both together.
    pub const fn new(area: Area, level: Level) -> Self {
        Self { area, level }
    }

    /// Everything: what the first token may do.
    pub fn everything() -> Vec<Self> {
        AREAS
            .iter()
            .map(|&(area, _)| Self::new(area, Level::Admin))
            .collect()
    }

    /// What it is about.
    pub const fn area(self) -> Area {
        self.area
    }

    /// How far it reaches.
    pub const fn level(self) -> Level {
        self.level
    }

    /// Whether this scope includes that one.
    pub fn covers(self, area: Area, level: Level) -> bool {
        self.area == area && self.level >= level
    }
}

impl FromStr for Scope {
    type Err = lease::Invalid;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = lease::Invalid::new(
            "scopes",
            "leases, runners, v3 or credentials, a colon, and read, write, admin or *",
        );
        let (area, level) = text.split_once(':').ok_or(invalid.clone())?;
        let area = AREAS.iter().find(|(_, word)| *word == area);
        let level = if level == "*" { "admin" } else { level };
        let level = LEVELS.iter().find(|(_, word)| *word == level);
        match (area, level) {
            (Some(&(area, _)), Some(&(level, _))) => Ok(Self { area, level }),
            _ => Err(invalid),
        }
    }
}

impl TryFrom<String> for Scope {
    type Error = lease::Invalid;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Scope> for String {
    fn from(scope: Scope) -> Self {
        scope.to_string()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let area = AREAS.iter().find(|(area, _)| *area == self.area);
        let level = LEVELS.iter().find(|(level, _)| *level == self.level);
        write!(
            f,
            "{}:{}",
            area.map_or("", |(_, word)| word),
            level.map_or("", |(_, word)| word)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_includes_those_before_it_and_no_other_area() {
        let write: Scope = "v3:write".parse().unwrap();
        assert!(write.covers(Area::V3, Level::Read));
        assert!(write.covers(Area::V3, Level::Write));
        assert!(!write.covers(Area::V3, Level::Admin));
        assert!(!write.covers(Area::Leases, Level::Read));
        let all: Scope = "runners:*".parse().unwrap();
        assert!(all.covers(Area::Runners, Level::Admin));
        for wrong in ["", "leases", "leases:", "leases:all", "lease:read", "*"] {
            assert!(wrong.parse::<Scope>().is_err(), "{wrong}");
        }
    }
}
