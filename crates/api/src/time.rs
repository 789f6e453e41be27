//! A moment on the wire: RFC 3339 in UTC with milliseconds.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        KnownFormat, ObjectBuilder, RefOr, SchemaFormat,
        schema::{Schema, Type},
    },
};

/// A moment on the authority's clock, written as `2026-01-31T12:00:00.000Z`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Time(pub lease::UnixMillis);

impl From<lease::UnixMillis> for Time {
    fn from(at: lease::UnixMillis) -> Self {
        Self(at)
    }
}

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = i64::try_from(self.0.get())
            .ok()
            .and_then(|millis| Timestamp::from_millisecond(millis).ok())
            .unwrap_or(Timestamp::MAX);
        write!(f, "{at:.3}")
    }
}

impl std::str::FromStr for Time {
    type Err = lease::Invalid;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<Timestamp>()
            .ok()
            .and_then(|at| u64::try_from(at.as_millisecond()).ok())
            .map(|millis| Self(lease::UnixMillis::new(millis)))
            .ok_or(lease::Invalid::new(
                "time",
                "an RFC 3339 time since 1970, for example 2026-01-31T12:00:00Z",
            ))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl PartialSchema for Time {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .into()
    }
}

impl ToSchema for Time {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_with_milliseconds() {
        let time = Time(lease::UnixMillis::new(1_769_860_800_000));
        assert_eq!(time.to_string(), "2026-01-31T12:00:00.000Z");
        assert_eq!("2026-01-31T13:00:00+01:00".parse::<Time>(), Ok(time));
        assert!("yesterday".parse::<Time>().is_err());
        // Beyond what a calendar shows: the latest it shows, never a panic.
        assert!(
            Time(lease::UnixMillis::new(u64::MAX))
                .to_string()
                .starts_with("9999-12-")
        );
    }
}
