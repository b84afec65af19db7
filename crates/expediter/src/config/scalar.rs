//! Plain scalars of YAML's core schema, <https://yaml.org/spec/1.2.2/#103-core-schema>.

use serde_json::{Number, Value};

/// What an unquoted scalar means. What is no null, boolean or number is text; so are `.inf` and `.nan`, for which
/// no setting has a use, and `yes`, `no`, `on` and `off`, which were booleans before YAML 1.2.
pub(super) fn resolve_plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return true.into(),
        "false" | "False" | "FALSE" => return false.into(),
        _ => {}
    }
    integer(text).or_else(|| float(text)).map_or_else(|| text.into(), Value::Number)
}

fn integer(text: &str) -> Option<Number> {
    let radix = |digits: &str, radix| {
        let is_bare = digits.chars().all(|digit| digit.is_digit(radix));
        is_bare.then(|| u64::from_str_radix(digits, radix).ok()).flatten().map(Number::from)
    };
    if let Some(digits) = text.strip_prefix("0x") {
        return radix(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return radix(digits, 8);
    }
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    radix(unsigned, 10).or_else(|| text.parse::<i64>().ok().map(Number::from))
}

/// `[-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?`: what Rust parses, without its words for
/// infinity.
fn float(text: &str) -> Option<Number> {
    let is_numeric = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    if is_numeric { text.parse().ok().and_then(Number::from_f64) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_scalar_is_what_the_core_schema_says() {
        let cases = [
            ("", Value::Null),
            ("~", Value::Null),
            ("True", true.into()),
            ("FALSE", false.into()),
            ("yes", "yes".into()),
            ("0", 0.into()),
            ("+7", 7.into()),
            ("-7", (-7).into()),
            ("007", 7.into()),
            ("0x1F", 31.into()),
            ("0o17", 15.into()),
            ("0x", "0x".into()),
            ("0x+1", "0x+1".into()),
            ("18446744073709551615", u64::MAX.into()),
            ("0.5", 0.5.into()),
            (".5", 0.5.into()),
            ("1e3", 1000.0.into()),
            ("1e999", "1e999".into()),
            (".inf", ".inf".into()),
            ("nan", "nan".into()),
            ("1_000", "1_000".into()),
            ("10s", "10s".into()),
            ("127.0.0.1:8080", "127.0.0.1:8080".into()),
            ("::1", "::1".into()),
        ];
        for (text, expected) in cases {
            assert_eq!(resolve_plain(text), expected, "{text:?}");
        }
    }
}
