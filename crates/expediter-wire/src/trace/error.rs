//! What is wrong with a trace.

use std::time::Duration;

use expediter_types::Tokens;

/// A mistake and where it is.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("line {line}: {mistake}")]
pub struct TraceError {
    /// The line, from 1.
    pub line: u64,
    /// What is wrong there.
    pub mistake: Mistake,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Mistake {
    /// It is no JSON object.
    #[error("no JSON object: each line holds one request; check that the file is whole and of this format")]
    NotJson,
    /// A field is not there.
    #[error("`{field}` is missing: give {expected}")]
    Missing {
        /// The field.
        field: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// A field is something else than it should be.
    #[error("`{field}` is {found}: give {expected}")]
    Wrong {
        /// The field.
        field: &'static str,
        /// What it is, shortened.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// Too few or too many columns.
    #[error("{found} columns instead of {expected}: give {names}")]
    Columns {
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
        /// What they should be.
        names: &'static str,
    },
    /// A block of the prompt has no id, or an id no block.
    #[error("`hash_ids` holds {found} ids for {} tokens in blocks of {size}: give {expected}", tokens.0)]
    Blocks {
        /// How many ids there are.
        found: usize,
        /// How many there should be.
        expected: u64,
        /// Length of the prompt.
        tokens: Tokens,
        /// Tokens of a block.
        size: u64,
    },
    /// The line is earlier than the one before.
    #[error("`{field}` is {:.3} s earlier than on the line before: sort the file by `{field}`", by.as_secs_f64())]
    Backwards {
        /// The field.
        field: &'static str,
        /// How much earlier.
        by: Duration,
    },
    /// The request is longer than the model.
    #[error(
        "prompt and answer are {} tokens, the model takes {}: leave long requests out, or name a longer model",
        tokens.0, limit.0
    )]
    TooLong {
        /// Its prompt and answer.
        tokens: Tokens,
        /// The model's length.
        limit: Tokens,
    },
}

impl Mistake {
    /// A field that holds `found`, shortened so that the message stays one line.
    pub(super) fn wrong(field: &'static str, found: &str, expected: &'static str) -> Self {
        let mut found: String = found.chars().take(FOUND_MAX + 1).collect();
        if found.chars().count() > FOUND_MAX {
            found.pop();
            found.push('…');
        }
        if found.is_empty() {
            found.push_str("empty");
        }
        Self::Wrong { field, found, expected }
    }
}

/// Characters of a wrong value that a message quotes.
const FOUND_MAX: usize = 40;
