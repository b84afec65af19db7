//! How long prompts and answers are.

use std::sync::Arc;

use expediter_types::{Prng, Tokens};

use super::error::{WorkloadError, check};

/// Where lengths of prompts and answers come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Lengths {
    /// All alike.
    Fixed {
        /// Tokens of the prompt.
        prompt: Tokens,
        /// Tokens of the answer.
        output: Tokens,
    },
    /// Pairs drawn from a trace, so that long prompts keep their long answers, multiplied and cut.
    Drawn {
        /// Prompt and answer of each request of the trace.
        pairs: Arc<[(Tokens, Tokens)]>,
        /// What prompts are multiplied by.
        prompt_factor: f64,
        /// What answers are multiplied by.
        output_factor: f64,
        /// The longest prompt.
        prompt_max: Tokens,
        /// The longest answer.
        output_max: Tokens,
    },
}

impl Lengths {
    /// Pairs of the Azure conversation trace of 2023, multiplied by 1.559 and 1.421: means of 1,800 and 300
    /// tokens, which the requirements name. Cut at 8,000 and 2,000.
    pub const fn conversation(pairs: Arc<[(Tokens, Tokens)]>) -> Self {
        Self::Drawn {
            pairs,
            prompt_factor: 1.559,
            output_factor: 1.421,
            prompt_max: Tokens(8_000),
            output_max: Tokens(2_000),
        }
    }

    pub(super) fn check(&self) -> Result<(), WorkloadError> {
        match self {
            Self::Fixed { prompt, output } => {
                check_tokens("prompt", *prompt)?;
                check_tokens("output", *output)
            }
            Self::Drawn { pairs, prompt_factor, output_factor, prompt_max, output_max } => {
                if pairs.is_empty() {
                    return Err(WorkloadError::Empty {
                        field: "lengths",
                        remedy: "a trace of one request or more",
                    });
                }
                check_factor("prompt_factor", *prompt_factor)?;
                check_factor("output_factor", *output_factor)?;
                check_tokens("prompt_max", *prompt_max)?;
                check_tokens("output_max", *output_max)
            }
        }
    }

    /// Tokens of the next prompt and of its answer, one each at least.
    pub(super) fn draw(&self, rng: &mut Prng) -> (Tokens, Tokens) {
        match self {
            Self::Fixed { prompt, output } => (*prompt, *output),
            Self::Drawn { pairs, prompt_factor, output_factor, prompt_max, output_max } => {
                let (prompt, output) = pairs[rng.below(pairs.len())];
                (scale(prompt, *prompt_factor, *prompt_max), scale(output, *output_factor, *output_max))
            }
        }
    }

    /// The most tokens that a client asks for: it does not know how long its answer will be.
    pub const fn output_cap(&self) -> Tokens {
        match self {
            Self::Fixed { output, .. } => *output,
            Self::Drawn { output_max, .. } => *output_max,
        }
    }
}

fn check_tokens(field: &'static str, tokens: Tokens) -> Result<(), WorkloadError> {
    check(
        (1..=TOKENS_MAX).contains(&tokens.0),
        field,
        tokens.0 as f64,
        "a number of tokens from 1 to 10,000,000",
    )
}

/// Ten times the longest context that any model takes.
const TOKENS_MAX: u64 = 10_000_000;

fn check_factor(field: &'static str, factor: f64) -> Result<(), WorkloadError> {
    check(factor > 0.0 && factor <= 1e3, field, factor, "a factor above 0, at most 1,000")
}

/// `tokens` times `factor`, rounded, from 1 to `max`.
pub(super) fn scale(tokens: Tokens, factor: f64, max: Tokens) -> Tokens {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "lengths are positive and far below 2^53; a cast saturates"
    )]
    let scaled = (tokens.0 as f64 * factor).round() as u64;
    Tokens(scaled.clamp(1, max.0.max(1)))
}
