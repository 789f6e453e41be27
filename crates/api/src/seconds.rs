//! A length of time on the wire: seconds, as whole as they are.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{ObjectBuilder, RefOr, schema::Schema, schema::Type},
};

/// Seconds with a resolution of a millisecond. Written as a whole number whenever it is one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Seconds(u64);

impl Seconds {
    /// From milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// From whole seconds.
    pub const fn whole(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// In milliseconds.
    pub const fn millis(self) -> u64 {
        self.0
    }

    /// In whole seconds, rounded up: what `Retry-After` wants.
    pub const fn ceil(self) -> u64 {
        self.0.div_ceil(1000)
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(1000) {
            serializer.serialize_u64(self.0 / 1000)
        } else {
            serializer.serialize_f64(self.0 as f64 / 1000.0)
        }
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Seconds;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number of seconds, not negative")
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Seconds, E> {
                Ok(Seconds::whole(value))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Seconds, E> {
                u64::try_from(value)
                    .map(Seconds::whole)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Seconds, E> {
                // Far beyond every limit of the contract, and far inside what a u64 holds.
                const MAX: f64 = 1e12;
                if (0.0..=MAX).contains(&value) {
                    #[expect(clippy::cast_sign_loss, reason = "checked not to be negative")]
                    Ok(Seconds((value * 1000.0).round() as u64))
                } else {
                    Err(E::invalid_value(de::Unexpected::Float(value), &self))
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl PartialSchema for Seconds {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::Number)
            .minimum(Some(0))
            .description(Some("Seconds, with a resolution of a millisecond"))
            .into()
    }
}

impl ToSchema for Seconds {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_seconds_stay_whole_numbers() {
        assert_eq!(serde_json::to_string(&Seconds::whole(30)).unwrap(), "30");
        assert_eq!(
            serde_json::to_string(&Seconds::from_millis(1500)).unwrap(),
            "1.5"
        );
        assert_eq!(
            serde_json::from_str::<Seconds>("1.5").unwrap(),
            Seconds::from_millis(1500)
        );
        for wrong in ["-1", "-0.5", "1e300", "\"5\"", "true"] {
            assert!(serde_json::from_str::<Seconds>(wrong).is_err(), "{wrong}");
        }
    }
}
