//! Usage traces of Alibaba Cloud's Bailian: github.com/alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0.
//! Source: Wang et al., "KVCache Cache in the Wild", USENIX ATC 2025.

use std::time::Duration;

use expediter_types::{BlockHash, BlockSize, Prompt, Time, Tokens};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::Mistake;
use super::field;

/// One request: a turn of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// This request's number.
    pub chat_id: i64,
    /// The number of the turn before; -1 for a first turn.
    pub parent_chat_id: i64,
    /// From the start of the trace; seconds in the file.
    pub at: Time,
    /// Tokens of the prompt.
    pub input: Tokens,
    /// Tokens of the answer.
    pub output: Tokens,
    /// What kind of request it is: `text`, `search`, `image`, `file`, …
    pub kind: String,
    /// Which turn of its chat, from 1.
    pub turn: u64,
    /// One id for each block of 16 tokens; a last partial one may be there or not.
    pub hash_ids: Vec<u64>,
}

/// Tokens that one id stands for.
pub const BLOCK: u64 = 16;

pub(super) const TIMESTAMP: &str = "timestamp";

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow)]
    chat_id: Option<&'a RawValue>,
    #[serde(borrow)]
    parent_chat_id: Option<&'a RawValue>,
    #[serde(borrow)]
    timestamp: Option<&'a RawValue>,
    #[serde(borrow)]
    input_length: Option<&'a RawValue>,
    #[serde(borrow)]
    output_length: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    turn: Option<&'a RawValue>,
    #[serde(borrow)]
    hash_ids: Option<&'a RawValue>,
}

impl Row {
    /// Reads one line.
    pub fn parse(line: &str) -> Result<Self, Mistake> {
        let raw: Raw<'_> = serde_json::from_str(line).map_err(|_| Mistake::NotJson)?;
        let seconds: f64 = field::json(TIMESTAMP, raw.timestamp, SECONDS)?;
        if !(0.0..=SECONDS_MAX).contains(&seconds) {
            return Err(Mistake::wrong(TIMESTAMP, &seconds.to_string(), SECONDS));
        }
        let (input, output) = field::lengths(raw.input_length, raw.output_length)?;
        let hash_ids = field::hash_ids(raw.hash_ids)?;
        let (full, all) = (input.0 / BLOCK, input.0.div_ceil(BLOCK));
        if !(full..=all).contains(&(hash_ids.len() as u64)) {
            return Err(Mistake::Blocks { found: hash_ids.len(), expected: all, tokens: input, size: BLOCK });
        }
        Ok(Self {
            chat_id: field::json("chat_id", raw.chat_id, "a whole number")?,
            parent_chat_id: field::json("parent_chat_id", raw.parent_chat_id, "a whole number, -1 for none")?,
            at: Time::ZERO + Duration::from_secs_f64(seconds),
            input,
            output,
            kind: field::json("type", raw.kind, "a text")?,
            turn: field::json("turn", raw.turn, "a whole number from 1 on")?,
            hash_ids,
        })
    }

    /// The prompt: an id is a hash, chained with all ids before it.
    pub fn prompt(&self) -> Prompt {
        let chain = |parent: &mut BlockHash, id: &u64| {
            *parent = parent.then_number(*id);
            Some(*parent)
        };
        let full = usize::try_from(self.input.0 / BLOCK).unwrap_or(usize::MAX);
        let hashes: Vec<BlockHash> =
            self.hash_ids.iter().take(full).scan(BlockHash::root(BAILIAN), chain).collect();
        Prompt::from_hashes(self.input, BlockSize::DEFAULT, hashes)
    }
}

const SECONDS: &str = "a number of seconds from 0 on, at most a year";
const SECONDS_MAX: f64 = 366.0 * 86_400.0;

/// Keeps the blocks of this trace apart from others.
const BAILIAN: u64 = 16;
