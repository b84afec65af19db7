//! What goes into the engine, and what comes out.

use expediter_types::{ModelId, Prompt, RequestId, Time, Tokens};

/// What a client asks of the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Unique among all requests, also those of the past.
    pub id: RequestId,
    /// What is to be computed before the first token. Its hashes begin at a root that stands for `adapter` and
    /// cache salt: see [`BlockHash::salt`](expediter_types::BlockHash::salt).
    pub prompt: Prompt,
    /// Tokens to produce, at least 1.
    pub output: Tokens,
    /// Why the last of them is the last.
    pub ends_with: FinishReason,
    /// The `LoRA` adapter that computes it; `None` for the base model.
    pub adapter: Option<ModelId>,
    /// Lower is more urgent. It counts under [`Scheduling::Priority`](crate::Scheduling::Priority) only.
    pub priority: i32,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FinishReason {
    /// The model said so.
    Stop,
    /// The cap on its tokens was reached.
    Length,
    /// The engine gave it up.
    Abort,
}

/// What a step brought for one request. Without `end` it is one token more than before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// The request.
    pub id: RequestId,
    /// Tokens produced so far.
    pub produced: Tokens,
    /// Set on the last token. `Abort` comes without a new token.
    pub end: Option<FinishReason>,
    /// Where the request's time went.
    pub life: Life,
}

/// The stations of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Entered the queue.
    pub arrived: Time,
    /// Entered the batch, for the first time.
    pub admitted: Time,
    /// Produced its first token.
    pub first_token: Time,
    /// Length of its prompt.
    pub prompt: Tokens,
    /// Prompt tokens found in the prefix cache at the first admission.
    pub cached: Tokens,
    /// Times it was put back into the queue.
    pub preemptions: u32,
}
