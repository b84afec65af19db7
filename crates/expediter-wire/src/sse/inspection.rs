//! What a frame of a stream says beside its text.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::frame::{Choices, ErrorFrame, Finishes, Frame, Usage};

/// What a frame says beside its text. A frame that was not looked into says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// It is `[DONE]`, the last frame. That alone does not make the answer complete.
    pub done: bool,
    /// It is an error.
    pub error: Option<ErrorFrame>,
    /// Its `usage`; a null one is none.
    pub usage: Option<Usage>,
    /// The choices that end with it.
    pub finishes: Finishes,
    /// What stands in its `choices`.
    pub choices: Choices,
    /// It is no JSON, or nested too deep to follow. It may be sent on untouched; it says nothing.
    pub unparsed: bool,
}

/// Reads a frame's payload. With `full` it is parsed in any case; otherwise only where the bytes of `"usage"`,
/// `"error"` or `"finish_reason"` stand in it, but not before a null. An ordinary token's frame costs three
/// searches.
///
/// The searches do not see keys that are written with escapes (`"us\u0061ge"`); no engine writes such.
pub fn inspect(payload: &[u8], full: bool) -> Inspection {
    let says_something = full
        || payload.trim_ascii_start().starts_with(b"[DONE]")
        || WANTED.iter().any(|word| holds(payload, word));
    if !says_something {
        return Inspection::default();
    }
    if payload.trim_ascii() == b"[DONE]" {
        return Inspection { done: true, ..Inspection::default() };
    }
    match Frame::read(payload) {
        Ok(Frame { error, usage, finishes, choices }) => {
            Inspection { done: false, error, usage, finishes, choices, unparsed: false }
        }
        Err(_) => Inspection { unparsed: true, ..Inspection::default() },
    }
}

/// The keys that make a frame worth parsing, with their quotes: inside a text these would be escaped.
static WANTED: LazyLock<[Finder<'static>; 3]> =
    LazyLock::new(|| [r#""finish_reason""#, r#""usage""#, r#""error""#].map(Finder::new));

/// Whether `word` stands in the payload and is not the key of a null. As a value it counts too: an `object` of
/// `"error"` is an error.
fn holds(payload: &[u8], word: &Finder<'_>) -> bool {
    word.find_iter(payload).any(|at| {
        let rest = payload[at + word.needle().len()..].trim_ascii_start();
        !rest.strip_prefix(b":").is_some_and(|value| value.trim_ascii_start().starts_with(b"null"))
    })
}
