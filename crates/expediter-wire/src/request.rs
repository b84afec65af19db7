//! What the gateway reads in a request's body, and the few places where it changes it.
//!
//! [`scan()`] walks the body once and remembers places; [`splice()`] puts new text in those places. Everything
//! else reaches the engine as the client sent it: number spellings, key order, unknown fields, nulls.

mod blocks;
mod lax;
mod scan;
mod splice;

use std::ops::Range;

use expediter_types::Tokens;

pub use blocks::{BLOCKS_MAX, PromptSpans};
pub use scan::{ScanError, scan};
pub use splice::{Edit, Pieces, splice};

/// The two routes whose bodies are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

/// What a request's body says. Where a key stands twice the last one counts, as for the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestScan {
    /// The route the body was sent to.
    pub endpoint: Endpoint,
    /// `model`; `None` where absent or null. May be empty: see [`RequestScan::model_name`].
    pub model: Option<Member>,
    /// Whether the answer is to be an event stream.
    pub stream: bool,
    /// `stream_options`.
    pub stream_options: StreamOptions,
    /// `max_tokens`.
    pub max_tokens: Cap,
    /// `max_completion_tokens`, which only chat has.
    pub max_completion_tokens: Cap,
    /// Choices to make for each prompt. A spelling that the engine refuses reads as 1, a number beyond `u32` as
    /// the largest.
    pub n: u32,
    /// How much there is to read for the engine.
    pub prompt: PromptShape,
    /// Where that stands.
    pub spans: PromptSpans,
    /// Whether `tools` is a list with something in it.
    pub has_tools: bool,
    /// Where the body's object begins: the offset of its `{`.
    pub body_start: usize,
    /// Where the body's object ends: the offset of its `}`.
    pub body_end: usize,
    /// Whether the body's object has no member.
    empty: bool,
    /// Where `model` is null.
    model_null: Option<Range<usize>>,
}

/// A member of the body whose value is a string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The string, its escapes decoded.
    pub value: String,
    /// Where the value stands in the body, quotes included.
    pub span: Range<usize>,
}

/// A limit of the answer's length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cap {
    /// The body does not name it.
    #[default]
    Absent,
    /// It is null: the engine takes its default.
    Null,
    /// A number of tokens, in a spelling that the engine takes.
    Tokens(u64),
    /// Something else, or too large; what it means, if anything, is left to the engine.
    Other,
}

/// How much prompt a body holds, without a tokenizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptShape {
    /// Bytes of text. Chat: the JSON of `messages` and `tools` with its brackets and keys, a rough match for
    /// what the template adds; an embedded image or sound (a string of more than 4,096 bytes that begins with
    /// `data:`, under a key that ends in `url`) counts as 1,000 bytes, whatever its size. Completions: what
    /// stands between the quotes of `prompt`.
    pub bytes: usize,
    /// Prompt tokens that are given as ids.
    pub token_ids: u64,
    /// Prompts in the batch, at least 1.
    pub prompts: u32,
}

/// What `stream_options` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StreamOptions {
    /// The body does not name it.
    #[default]
    Absent,
    /// It is null.
    Null {
        /// Where the null stands.
        span: Range<usize>,
    },
    /// It is an object.
    Object {
        /// The offset of its `{`.
        start: usize,
        /// Whether it has no member.
        empty: bool,
        /// Its `include_usage`.
        include_usage: IncludeUsage,
    },
    /// Something that the engine will refuse.
    Other,
}

/// What `stream_options.include_usage` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IncludeUsage {
    /// The options do not name it.
    #[default]
    Absent,
    /// Yes: the client awaits the usage chunk.
    Yes,
    /// No, or null.
    No {
        /// Where the value stands.
        span: Range<usize>,
    },
    /// Something that the engine will refuse.
    Other,
}

impl RequestScan {
    /// The model asked for. `None` where the body names none, or an empty one: an engine then serves its base
    /// model.
    pub fn model_name(&self) -> Option<&str> {
        self.model.as_ref().map(|member| member.value.as_str()).filter(|name| !name.is_empty())
    }

    /// Whether the client asked for the usage chunk of a stream.
    pub fn asks_usage(&self) -> bool {
        matches!(self.stream_options, StreamOptions::Object { include_usage: IncludeUsage::Yes, .. })
    }

    /// The cap that the engine will apply: for chat `max_completion_tokens` wins over `max_tokens`.
    pub fn output_cap(&self) -> Cap {
        match (self.endpoint, self.max_completion_tokens) {
            (Endpoint::Completions, _) | (Endpoint::Chat, Cap::Absent | Cap::Null) => self.max_tokens,
            (Endpoint::Chat, cap @ (Cap::Tokens(_) | Cap::Other)) => cap,
        }
    }
}

impl PromptShape {
    /// An estimate of the prompt's length: a token for every id, and one for every 4 bytes of text begun.
    pub fn tokens(&self) -> Tokens {
        Tokens(self.token_ids.saturating_add(self.bytes.div_ceil(4) as u64))
    }
}
