//! Lengths of time as people write them: `30s`, `1m30s`, `500ms`; a bare number means seconds.

use std::{fmt, str::FromStr, time::Duration};

use lease::Invalid;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const EXPECTED: Invalid = Invalid::new(
    "duration",
    "a length of time such as 500ms, 30s, 1m30s or 2h",
);

/// Units from the smallest to the largest, in milliseconds.
const UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

/// A length of time in whole milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Period(u64);

impl Period {
    /// Wraps a count of milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Whole seconds.
    pub const fn whole(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000))
    }

    /// As the standard library has it.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// For people, down to what is whole: milliseconds matter to nobody once there are seconds, seconds once there
    /// are hours, minutes once there are days.
    pub const fn rounded(self) -> Self {
        let step = match self.0 {
            86_400_000.. => 3_600_000,
            3_600_000.. => 60_000,
            1_000.. => 1_000,
            _ => 1,
        };
        Self(self.0 / step * step)
    }

    /// Milliseconds.
    pub const fn millis(self) -> u64 {
        self.0
    }
}

impl FromStr for Period {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(seconds) = text.parse::<u64>() {
            return seconds.checked_mul(1_000).map(Self).ok_or(EXPECTED);
        }
        let (mut rest, mut total) = (text, 0_u64);
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, after) = rest.split_at(digits);
            let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
            let (unit, left) = after.split_at(letters);
            let number: u64 = number.parse().map_err(|_| EXPECTED)?;
            let (_, millis) = UNITS
                .into_iter()
                .find(|(name, _)| *name == unit)
                .ok_or(EXPECTED)?;
            total = number
                .checked_mul(millis)
                .and_then(|part| total.checked_add(part))
                .ok_or(EXPECTED)?;
            rest = left;
        }
        if text.is_empty() {
            return Err(EXPECTED);
        }
        Ok(Self(total))
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0;
        if left == 0 {
            return f.write_str("0s");
        }
        for (name, millis) in UNITS.into_iter().rev() {
            if left >= millis {
                write!(f, "{}{name}", left / millis)?;
                left %= millis;
            }
        }
        Ok(())
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Period;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED.expected)
            }
            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Period, E> {
                let millis = seconds.checked_mul(1_000);
                millis.map(Period).ok_or_else(|| E::custom(EXPECTED))
            }
            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Period, E> {
                // Far beyond every limit, and far inside what a u64 holds.
                const MOST: f64 = 1e12;
                if !(0.0..=MOST).contains(&seconds) {
                    return Err(E::custom(EXPECTED));
                }
                #[expect(clippy::cast_sign_loss, reason = "checked not to be negative")]
                Ok(Period((seconds * 1_000.0).round() as u64))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Period, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write_and_writes_what_they_read() {
        for (text, millis, shown) in [
            ("500ms", 500, "500ms"),
            ("30s", 30_000, "30s"),
            ("30", 30_000, "30s"),
            ("1m30s", 90_000, "1m30s"),
            ("90m", 5_400_000, "1h30m"),
            ("0s", 0, "0s"),
        ] {
            let period: Period = text.parse().unwrap();
            assert_eq!(period.millis(), millis, "{text}");
            assert_eq!(period.to_string(), shown);
        }
        for wrong in [
            "",
            "s",
            "-1s",
            "1.5s",
            "30 s",
            "1y",
            "99999999999999999999",
            "300000000000d",
        ] {
            assert!(wrong.parse::<Period>().is_err(), "{wrong}");
        }
        for (millis, shown) in [
            (250, "250ms"),
            (59_999, "59s"),
            (3_599_999, "59m59s"),
            (3_784_123, "1h3m"),
            (86_400_000 + 3_784_123, "1d1h"),
        ] {
            assert_eq!(Period::from_millis(millis).rounded().to_string(), shown);
        }
        let read = |text: &str| serde_json::from_str::<Period>(text).map(Period::millis);
        assert_eq!(read("1.5").unwrap(), 1_500);
        assert_eq!(read("2").unwrap(), 2_000);
        assert!(read("-1").is_err() && read("-0.5").is_err() && read("1e300").is_err());
    }
}
