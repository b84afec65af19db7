//! Numbers of a scenario file with a fraction, which carry their range in their type.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};

/// A number from `MIN_MILLI` thousandths to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub(crate) struct Decimal<const MIN_MILLI: u64, const MAX: u64>(f64);

impl<const MIN_MILLI: u64, const MAX: u64> Decimal<MIN_MILLI, MAX> {
    const MIN: f64 = MIN_MILLI as f64 / 1e3;

    /// The number.
    pub(crate) const fn get(self) -> f64 {
        self.0
    }
}

impl<'de, const MIN_MILLI: u64, const MAX: u64> Deserialize<'de> for Decimal<MIN_MILLI, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        if (Self::MIN..=MAX as f64).contains(&value) {
            Ok(Self(value))
        } else {
            Err(de::Error::custom(format_args!("{value} is not in {} to {MAX}", Self::MIN)))
        }
    }
}

impl<const MIN_MILLI: u64, const MAX: u64> JsonSchema for Decimal<MIN_MILLI, MAX> {
    fn schema_name() -> Cow<'static, str> {
        format!("DecimalFrom{MIN_MILLI}MilliTo{MAX}").into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "minimum": Self::MIN, "maximum": MAX })
    }
}
