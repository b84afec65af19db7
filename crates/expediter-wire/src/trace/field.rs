//! Fields of a line, each read by itself so that a mistake can name it.

use expediter_types::Tokens;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::error::Mistake;

/// Reads a JSON field.
pub(super) fn json<T: DeserializeOwned>(
    field: &'static str,
    raw: Option<&RawValue>,
    expected: &'static str,
) -> Result<T, Mistake> {
    let text = raw.ok_or(Mistake::Missing { field, expected })?.get();
    serde_json::from_str(text).map_err(|_| Mistake::wrong(field, text, expected))
}

/// Reads a column.
pub(super) fn column<T: std::str::FromStr>(
    field: &'static str,
    text: &str,
    expected: &'static str,
) -> Result<T, Mistake> {
    text.trim().parse().map_err(|_| Mistake::wrong(field, text, expected))
}

/// `input_length` and `output_length`, as the traces with block hashes name them.
pub(super) fn lengths(
    input: Option<&RawValue>,
    output: Option<&RawValue>,
) -> Result<(Tokens, Tokens), Mistake> {
    let input = self::prompt("input_length", json("input_length", input, PROMPT)?)?;
    Ok((input, self::output("output_length", json("output_length", output, OUTPUT)?)?))
}

/// `hash_ids`, as those traces name it.
pub(super) fn hash_ids(raw: Option<&RawValue>) -> Result<Vec<u64>, Mistake> {
    json("hash_ids", raw, IDS)
}

/// The length of a prompt: an empty one is no request.
pub(super) fn prompt(field: &'static str, tokens: u64) -> Result<Tokens, Mistake> {
    if (1..=TOKENS_MAX).contains(&tokens) {
        Ok(Tokens(tokens))
    } else {
        Err(Mistake::wrong(field, &tokens.to_string(), PROMPT))
    }
}

/// The length of an answer.
pub(super) fn output(field: &'static str, tokens: u64) -> Result<Tokens, Mistake> {
    if tokens <= TOKENS_MAX {
        Ok(Tokens(tokens))
    } else {
        Err(Mistake::wrong(field, &tokens.to_string(), OUTPUT))
    }
}

pub(super) const PROMPT: &str = "a whole number of tokens from 1 to 10,000,000";
pub(super) const OUTPUT: &str = "a whole number of tokens from 0 to 10,000,000";
const IDS: &str = "a list of whole numbers from 0 on";

/// Ten times the longest context of any model: more is a mistake, and would exhaust memory.
const TOKENS_MAX: u64 = 10_000_000;
