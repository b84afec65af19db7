//! Mooncake's traces: `FAST25-release/traces` of github.com/kvcache-ai/Mooncake.
//!
//! Timestamps of the conversation trace are rounded to 3 s: spread its requests over those before a replay.

use expediter_types::{BlockHash, BlockSize, Prompt, Time, Tokens};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::Mistake;
use super::field;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// From the start of the trace; milliseconds in the file.
    pub at: Time,
    /// Tokens of the prompt.
    pub input: Tokens,
    /// Tokens of the answer.
    pub output: Tokens,
    /// One id for each block of 512 tokens, a last partial one included. Equal leading ids mean an equal prefix.
    pub hash_ids: Vec<u64>,
}

/// Tokens that one id stands for.
pub const BLOCK: u64 = 512;

pub(super) const TIMESTAMP: &str = "timestamp";

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow)]
    timestamp: Option<&'a RawValue>,
    #[serde(borrow)]
    input_length: Option<&'a RawValue>,
    #[serde(borrow)]
    output_length: Option<&'a RawValue>,
    #[serde(borrow)]
    hash_ids: Option<&'a RawValue>,
}

impl Row {
    /// Reads one line.
    pub fn parse(line: &str) -> Result<Self, Mistake> {
        let raw: Raw<'_> = serde_json::from_str(line).map_err(|_| Mistake::NotJson)?;
        let millis: u64 = field::json(TIMESTAMP, raw.timestamp, MILLIS)?;
        if millis > MILLIS_MAX {
            return Err(Mistake::wrong(TIMESTAMP, &millis.to_string(), MILLIS));
        }
        let (input, output) = field::lengths(raw.input_length, raw.output_length)?;
        let hash_ids = field::hash_ids(raw.hash_ids)?;
        let expected = input.0.div_ceil(BLOCK);
        if hash_ids.len() as u64 != expected {
            return Err(Mistake::Blocks { found: hash_ids.len(), expected, tokens: input, size: BLOCK });
        }
        Ok(Self { at: Time::from_millis(millis), input, output, hash_ids })
    }

    /// The prompt in blocks of 16 tokens: each id becomes 32 hashes, chained with all ids before it.
    pub fn prompt(&self) -> Prompt {
        let size = BlockSize::DEFAULT;
        let full = usize::try_from(self.input.to_full_blocks(size).0).unwrap_or(usize::MAX);
        let mut parent = BlockHash::root(MOONCAKE);
        let mut hashes = Vec::with_capacity(full);
        for id in &self.hash_ids {
            parent = parent.then_number(*id);
            let part = |number| parent.then_number(number);
            hashes.extend((0..BLOCK / u64::from(size.0.get())).map(part).take(full - hashes.len()));
        }
        Prompt::from_hashes(self.input, size, hashes)
    }
}

const MILLIS: &str = "a whole number of milliseconds from 0 on, at most a year";
const MILLIS_MAX: u64 = 366 * 86_400_000;

/// Keeps the blocks of this trace apart from others.
const MOONCAKE: u64 = 512;
