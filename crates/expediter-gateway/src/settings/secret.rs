//! Tokens and keys.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};
use subtle::ConstantTimeEq as _;

/// A token or a key. It prints as `<secret>`, in logs, dumps and messages alike, and a guess is compared in
/// constant time.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Keeps `value` from being printed.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The secret itself, for the one place that sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether `guess` is the secret. The time taken tells its length at most, and nothing of its content.
    pub fn matches(&self, guess: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(guess).into()
    }

    /// Whether it can stand in an `Authorization` header: not empty, and visible ASCII only.
    pub(super) fn fits_header(&self) -> bool {
        !self.0.is_empty() && self.0.bytes().all(|byte| byte.is_ascii_graphic())
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.matches(other.0.as_bytes())
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(REDACTED)
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "writeOnly": true })
    }
}

const REDACTED: &str = "<secret>";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_prints_and_compares_whole() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?}"), "<secret>");
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"<secret>\"");
        for (guess, expected) in [("hunter2", true), ("hunter", false), ("hunter22", false), ("", false)] {
            assert_eq!(secret.matches(guess.as_bytes()), expected, "{guess}");
        }
    }
}
