//! Numbers of the configuration file that carry their range in their type: a value outside is refused where it
//! is read, and the range stands in the JSON Schema.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Whole<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    /// For defaults: a value outside the range does not compile where this is called in a constant.
    pub const fn new(value: u64) -> Self {
        assert!(MIN <= value && value <= MAX, "outside the range of its type");
        Self(value)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = u64::deserialize(deserializer)?;
        if (MIN..=MAX).contains(&value) {
            Ok(Self(value))
        } else {
            Err(de::Error::custom(format_args!("{value} is not in {MIN} to {MAX}")))
        }
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Whole<MIN, MAX> {
    fn schema_name() -> Cow<'static, str> {
        format!("WholeFrom{MIN}To{MAX}").into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }
}

/// A time in whole milliseconds from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis<const MIN: u64, const MAX: u64 = DAY_MS>(Whole<MIN, MAX>);

/// The longest time a setting can hold. A longer one is a slip of the unit (microseconds where milliseconds are
/// meant), and deadlines stay far from the ends of the clock.
pub const DAY_MS: u64 = 24 * 60 * 60 * 1000;

impl<const MIN: u64, const MAX: u64> Millis<MIN, MAX> {
    /// For defaults, as [`Whole::new`].
    pub const fn new(millis: u64) -> Self {
        Self(Whole::new(millis))
    }

    /// The time.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0.get())
    }
}

impl<const MIN: u64, const MAX: u64> fmt::Display for Millis<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0.get())
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Millis<MIN, MAX> {
    fn schema_name() -> Cow<'static, str> {
        format!("MillisFrom{MIN}To{MAX}").into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Whole::<MIN, MAX>::json_schema(generator)
    }
}

/// A number from `MIN` to `MAX`, whole or not.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Real<const MIN: u64, const MAX: u64>(f64);

impl<const MIN: u64, const MAX: u64> Real<MIN, MAX> {
    /// For defaults, as [`Whole::new`].
    pub const fn new(value: f64) -> Self {
        assert!(MIN as f64 <= value && value <= MAX as f64, "outside the range of its type");
        Self(value)
    }

    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Real<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        if (MIN as f64..=MAX as f64).contains(&value) {
            Ok(Self(value))
        } else {
            Err(de::Error::custom(format_args!("{value} is not in {MIN} to {MAX}")))
        }
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Real<MIN, MAX> {
    fn schema_name() -> Cow<'static, str> {
        format!("RealFrom{MIN}To{MAX}").into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "minimum": MIN, "maximum": MAX })
    }
}

/// A share of a whole, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Ratio(f64);

impl Ratio {
    /// For defaults, as [`Whole::new`].
    pub const fn new(value: f64) -> Self {
        assert!(0.0 <= value && value <= 1.0, "a ratio lies between 0 and 1");
        Self(value)
    }

    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Ratio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        if (0.0..=1.0).contains(&value) {
            Ok(Self(value))
        } else {
            Err(de::Error::custom(format_args!("{value} is not in 0 to 1")))
        }
    }
}

impl JsonSchema for Ratio {
    fn schema_name() -> Cow<'static, str> {
        "Ratio".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "minimum": 0, "maximum": 1 })
    }
}
