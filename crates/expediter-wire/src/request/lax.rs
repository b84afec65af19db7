//! Values as the engine reads them. vLLM's request models are pydantic's in its lax mode, which takes `"5"` or
//! `5.0` for 5 and `"yes"` or 1 for true. Source: `src/input/shared.rs` of pydantic-core; compared with pydantic
//! 2.13. It takes a few spellings of integers more (`"1_000"`, `true`), which read as [`Cap::Other`] here.

use super::Cap;
use crate::number;

/// Reads a boolean from the text of a JSON value; `Err` where the engine refuses it.
pub(super) fn boolean(raw: &[u8]) -> Result<Option<bool>, ()> {
    match raw {
        b"true" => return Ok(Some(true)),
        b"false" => return Ok(Some(false)),
        b"null" => return Ok(None),
        _ => {}
    }
    let word = raw.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let Some(word) = word else {
        return match integer(raw) {
            Some(0) => Ok(Some(false)),
            Some(1) => Ok(Some(true)),
            _ => Err(()),
        };
    };
    let is_one_of = |words: &[&str]| words.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()));
    if is_one_of(&["1", "t", "y", "on", "yes", "true"]) {
        Ok(Some(true))
    } else if is_one_of(&["0", "f", "n", "no", "off", "false"]) {
        Ok(Some(false))
    } else {
        Err(())
    }
}

/// Reads a limit of tokens from the text of a JSON value.
pub(super) fn cap(raw: Option<&[u8]>) -> Cap {
    match raw {
        None => Cap::Absent,
        Some(b"null") => Cap::Null,
        Some(raw) => integer(raw).map_or(Cap::Other, Cap::Tokens),
    }
}

/// Reads a number that is whole, not negative and below 2^63 from the text of a JSON value: `100`, `1e2`,
/// `100.0`, `"100"`, `" 100.0 "`. Python reads a number with a dot or an exponent as a double, and so does this,
/// up to 2^53.
pub(super) fn integer(raw: &[u8]) -> Option<u64> {
    let raw = std::str::from_utf8(raw).ok()?;
    if let Some(text) = raw.strip_prefix('"') {
        let text = text.strip_suffix('"')?.trim_ascii();
        let text = text.strip_prefix('+').unwrap_or(text);
        let whole = match text.split_once('.') {
            Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|digit| digit == b'0') => whole,
            Some(_) => return None,
            None => text,
        };
        return decimal(whole);
    }
    if raw.contains(['.', 'e', 'E']) {
        return number::count(raw.parse().ok()?);
    }
    if raw == "-0" { Some(0) } else { decimal(raw) }
}

/// Reads decimal digits, nothing else.
fn decimal(digits: &str) -> Option<u64> {
    let plain = digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse().ok().filter(|value| plain && i64::try_from(*value).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_read_as_pydantic_reads_them() {
        let cases: [(&str, Cap); 26] = [
            ("null", Cap::Null),
            ("0", Cap::Tokens(0)),
            ("100", Cap::Tokens(100)),
            ("9223372036854775807", Cap::Tokens(9_223_372_036_854_775_807)),
            ("9223372036854775808", Cap::Other),
            ("18446744073709551616", Cap::Other),
            ("100.0", Cap::Tokens(100)),
            ("1e3", Cap::Tokens(1_000)),
            ("2.5E1", Cap::Tokens(25)),
            ("1e30", Cap::Other),
            ("1e400", Cap::Other),
            ("5.5", Cap::Other),
            ("-1", Cap::Other),
            ("-0.0", Cap::Tokens(0)),
            ("-0", Cap::Tokens(0)),
            ("NaN", Cap::Other),
            ("Infinity", Cap::Other),
            ("\"100\"", Cap::Tokens(100)),
            ("\" +0100.00 \"", Cap::Tokens(100)),
            ("\"1e3\"", Cap::Other),
            ("\"five\"", Cap::Other),
            ("\"5.\"", Cap::Other),
            ("\"++5\"", Cap::Other),
            ("\"\"", Cap::Other),
            ("true", Cap::Other),
            ("[5]", Cap::Other),
        ];
        for (raw, expected) in cases {
            assert_eq!(cap(Some(raw.as_bytes())), expected, "{raw}");
        }
        assert_eq!(cap(None), Cap::Absent);
    }

    #[test]
    fn booleans_read_as_pydantic_reads_them() {
        let cases = [
            (Ok(Some(true)), r#"true|1|1.0|"true"|"YES"|"On"|"y"|"t"|"1""#),
            (Ok(Some(false)), r#"false|0|0.0|"False"|"no"|"off"|"n"|"f"|"0""#),
            (Ok(None), "null"),
            (Err(()), r#"2|0.5|NaN|""|"maybe"|" true"|[]|{}|"null""#),
        ];
        for (expected, spellings) in cases {
            for raw in spellings.split('|') {
                assert_eq!(boolean(raw.as_bytes()), expected, "{raw}");
            }
        }
    }
}
