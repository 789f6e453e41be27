//! A moment on the wire: RFC 3339 in UTC with milliseconds.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
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

/// How long its text is.
const LENGTH: usize = "2026-01-31T12:00:00.000Z".len();
/// The latest that a calendar shows, [`Timestamp::MAX`].
const LATEST: u64 = 253_402_207_200_999;

impl Time {
    /// Its text, without the detours of a general formatter: every lease and every event has several.
    fn text(self) -> [u8; LENGTH] {
        let millis = self.0.get().min(LATEST);
        let (days, in_day) = (millis / 86_400_000, millis % 86_400_000);
        // A calendar of 400 years that begin in March, so that a leap day is the last of its year.
        let day = days + 719_468;
        let (era, day) = (day / 146_097, day % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let is_next_year = month >= 10;
        let month = if is_next_year { month - 9 } else { month + 3 };
        let year = 400 * era + year + u64::from(is_next_year);

        let mut text = *b"0000-00-00T00:00:00.000Z";
        let mut put = |place: std::ops::Range<usize>, mut number: u64| {
            for digit in text[place].iter_mut().rev() {
                *digit += (number % 10) as u8;
                number /= 10;
            }
        };
        put(0..4, year);
        put(5..7, month);
        put(8..10, day);
        put(11..13, in_day / 3_600_000);
        put(14..16, in_day / 60_000 % 60);
        put(17..19, in_day / 1_000 % 60);
        put(20..23, in_day % 1_000);
        text
    }
}

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).map_err(|_| std::fmt::Error)?)
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
        let text = self.text();
        serializer.serialize_str(std::str::from_utf8(&text).map_err(ser::Error::custom)?)
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
        let by_jiff = |millis: u64| {
            let at = Timestamp::from_millisecond(millis.try_into().unwrap()).unwrap();
            format!("{at:.3}")
        };
        // Every day with its neighbours, each at another moment of the day.
        for day in 0..=LATEST / 86_400_000 {
            let millis = (day * 86_400_000 + day * 977 % 86_400_000).min(LATEST);
            let time = Time(lease::UnixMillis::new(millis));
            assert_eq!(time.to_string(), by_jiff(millis));
        }
        // Beyond what a calendar shows: the latest it shows, never a panic.
        assert!(
            Time(lease::UnixMillis::new(u64::MAX))
                .to_string()
                .starts_with("9999-12-")
        );
    }
}
