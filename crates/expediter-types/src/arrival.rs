//! One request of a workload.

use crate::{ModelId, Prompt, Time, Tokens};

/// A request as a trace or a generator gives it: when it comes, what it brings, and how long its answer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When the client sends it.
    pub at: Time,
    /// The model or adapter asked for.
    pub model: ModelId,
    /// Who asks, numbered from 0.
    pub tenant: u32,
    /// What is asked.
    pub prompt: Prompt,
    /// Tokens of the answer, which a router cannot know.
    pub output: Tokens,
    /// The most tokens that the client allows.
    pub output_cap: Tokens,
}
