//! One walk over the body.

use std::ops::Range;

use super::{Cap, Endpoint, IncludeUsage, Member, PromptShape, PromptSpans, RequestScan, StreamOptions, lax};
use crate::json::{Cursor, Fault, KEY_BYTES_MAX, Tally, unescape};

/// Why a body cannot be sent on. Each is answered with 400, as the engine would.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// The body is not UTF-8.
    #[error("the body is not valid UTF-8")]
    NotUtf8,
    /// The body is not JSON.
    #[error("the body is not valid JSON: unexpected end or character at byte {offset}")]
    Syntax {
        /// Where the reader stopped; the body's length where it ends too early.
        offset: usize,
    },
    /// The body is JSON, but no object.
    #[error("the body must be a JSON object")]
    NotAnObject,
    /// Too many brackets are open at once.
    #[error("the body is nested more than 512 levels deep")]
    TooDeep,
    /// `model` is neither a string nor null, or a string that no model can be called.
    #[error("`model` must be a string")]
    ModelNotString,
    /// `stream` is nothing that reads as a boolean.
    #[error("`stream` must be true or false")]
    StreamNotBoolean,
}

impl ScanError {
    /// The stable code of the error answer.
    pub fn code(self) -> &'static str {
        match self {
            Self::NotUtf8 | Self::Syntax { .. } | Self::NotAnObject => "invalid_json",
            Self::TooDeep => "body_too_deep",
            Self::ModelNotString => "invalid_model",
            Self::StreamNotBoolean => "invalid_stream",
        }
    }

    /// The field of the body that the error is about.
    pub fn param(self) -> Option<&'static str> {
        match self {
            Self::NotUtf8 | Self::Syntax { .. } | Self::NotAnObject | Self::TooDeep => None,
            Self::ModelNotString => Some("model"),
            Self::StreamNotBoolean => Some("stream"),
        }
    }
}

impl From<Fault> for ScanError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::TooDeep => Self::TooDeep,
            Fault::Syntax(offset) => Self::Syntax { offset },
        }
    }
}

/// Reads a request's body: checks that it is JSON that the engine reads in the same way, and finds the members
/// that the gateway needs. Costs one pass, and allocates only the model's name.
///
/// # Errors
/// Every [`ScanError`] is a body that an engine refuses with 400 too, but for three oddities that Python takes:
/// UTF-16 and UTF-32, surrogates encoded as UTF-8, and nesting between 512 and about 1,000 levels.
pub fn scan(body: &[u8], endpoint: Endpoint) -> Result<RequestScan, ScanError> {
    if std::str::from_utf8(body).is_err() {
        return Err(ScanError::NotUtf8);
    }
    let mut cursor = Cursor::new(body);
    let body_start = cursor.at();
    match cursor.peek() {
        Some(b'{') => {}
        Some(_) => {
            cursor.value()?;
            cursor.finish()?;
            return Err(ScanError::NotAnObject);
        }
        None => return Err(ScanError::Syntax { offset: body_start }),
    }
    let mut places = Places::default();
    cursor.members(|cursor, key| {
        places.any = true;
        let mut buffer = [0; KEY_BYTES_MAX];
        match key.decoded_to(&mut buffer) {
            Some(b"model") => places.model = Some(cursor.value()?),
            Some(b"stream") => places.stream = Some(cursor.value()?),
            Some(b"stream_options") => places.stream_options = stream_options(cursor)?,
            Some(b"max_tokens") => places.max_tokens = Some(cursor.value()?),
            Some(b"max_completion_tokens") => places.max_completion_tokens = Some(cursor.value()?),
            Some(b"n") => places.n = Some(cursor.value()?),
            Some(b"messages") => places.messages = Weighed::read(cursor)?,
            Some(b"tools") => places.tools = Weighed::read(cursor)?,
            Some(b"prompt") => places.prompt = Weighed::read(cursor)?,
            Some(b"cache_salt") => places.cache_salt = cursor.value()?,
            _ => _ = cursor.value()?,
        }
        Ok(())
    })?;
    let body_end = cursor.at() - 1;
    cursor.finish()?;
    places.judge(body, endpoint, body_start..body_end)
}

/// Where the members stand. A later duplicate overwrites an earlier one, so they are judged when all are known.
#[derive(Default)]
struct Places {
    any: bool,
    model: Option<Range<usize>>,
    stream: Option<Range<usize>>,
    stream_options: StreamOptions,
    max_tokens: Option<Range<usize>>,
    max_completion_tokens: Option<Range<usize>>,
    n: Option<Range<usize>>,
    messages: Weighed,
    tools: Weighed,
    prompt: Weighed,
    cache_salt: Range<usize>,
}

impl Places {
    fn judge(self, body: &[u8], endpoint: Endpoint, object: Range<usize>) -> Result<RequestScan, ScanError> {
        let raw = |span: &Option<Range<usize>>| span.clone().map(|span| &body[span]);
        let (model, model_null) = match self.model {
            None => (None, None),
            Some(span) if &body[span.clone()] == b"null" => (None, Some(span)),
            Some(span) => (Some(Member::read(body, span)?), None),
        };
        let stream = match raw(&self.stream).map(lax::boolean) {
            None => false,
            Some(Ok(stream)) => stream.unwrap_or(false),
            Some(Err(())) => return Err(ScanError::StreamNotBoolean),
        };
        let n = match lax::cap(raw(&self.n)) {
            Cap::Tokens(n) => u32::try_from(n).unwrap_or(u32::MAX),
            Cap::Absent | Cap::Null | Cap::Other => 1,
        };
        let has_tools = self.tools.is_list_of_something(body);
        let (prompt, prompt_span, tools) = match endpoint {
            Endpoint::Chat => {
                let bytes = self.messages.text_bytes() + self.tools.text_bytes();
                (PromptShape { bytes, token_ids: 0, prompts: 1 }, self.messages.span, self.tools.span)
            }
            Endpoint::Completions => (self.prompt.prompt_shape(), self.prompt.span, 0..0),
        };
        Ok(RequestScan {
            endpoint,
            model,
            stream,
            stream_options: self.stream_options,
            max_tokens: lax::cap(raw(&self.max_tokens)),
            max_completion_tokens: lax::cap(raw(&self.max_completion_tokens)),
            n,
            prompt,
            spans: PromptSpans { prompt: prompt_span, tools, cache_salt: self.cache_salt },
            has_tools,
            body_start: object.start,
            body_end: object.end,
            empty: !self.any,
            model_null,
        })
    }
}

impl Member {
    fn read(body: &[u8], span: Range<usize>) -> Result<Self, ScanError> {
        let raw = body[span.clone()].strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
        let value = raw.and_then(unescape).ok_or(ScanError::ModelNotString)?;
        Ok(Self { value, span })
    }
}

/// Reads the value of `stream_options`.
fn stream_options(cursor: &mut Cursor<'_>) -> Result<StreamOptions, Fault> {
    let start = cursor.at();
    if cursor.peek() != Some(b'{') {
        let span = cursor.value()?;
        let null = &cursor.bytes()[span.clone()] == b"null";
        return Ok(if null { StreamOptions::Null { span } } else { StreamOptions::Other });
    }
    let (mut empty, mut include_usage) = (true, IncludeUsage::Absent);
    cursor.members(|cursor, key| {
        empty = false;
        let span = cursor.value()?;
        if key.is("include_usage") {
            include_usage = match lax::boolean(&cursor.bytes()[span.clone()]) {
                Ok(Some(true)) => IncludeUsage::Yes,
                Ok(Some(false) | None) => IncludeUsage::No { span },
                Err(()) => IncludeUsage::Other,
            };
        }
        Ok(())
    })?;
    Ok(StreamOptions::Object { start, empty, include_usage })
}

/// A value and what it holds.
#[derive(Default)]
struct Weighed {
    span: Range<usize>,
    before: Tally,
    after: Tally,
}

impl Weighed {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, Fault> {
        let before = cursor.tally();
        let span = cursor.value()?;
        Ok(Self { span, before, after: cursor.tally() })
    }

    /// Bytes of the value's JSON, with embedded media at a flat rate.
    fn text_bytes(&self) -> usize {
        let media = self.after.media - self.before.media;
        let media_bytes = self.after.media_bytes - self.before.media_bytes;
        self.span.len() - media_bytes + media * MEDIA_BYTES
    }

    /// What the value holds as a `prompt`: a string, a list of strings, a list of token ids, or a list of such
    /// lists.
    fn prompt_shape(&self) -> PromptShape {
        let strings = self.after.strings - self.before.strings;
        let lists = self.after.arrays - self.before.arrays;
        let prompts = strings + lists.saturating_sub(1);
        PromptShape {
            bytes: self.after.string_bytes - self.before.string_bytes,
            token_ids: self.after.numbers - self.before.numbers,
            prompts: u32::try_from(prompts.max(1)).unwrap_or(u32::MAX),
        }
    }

    fn is_list_of_something(&self, body: &[u8]) -> bool {
        let inner = body[self.span.clone()].strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]"));
        inner.is_some_and(|inner| !inner.trim_ascii().is_empty())
    }
}

/// What an embedded image or sound counts for. An image becomes some hundreds of tokens, whatever its file's
/// size: 1,000 bytes stand for 250.
const MEDIA_BYTES: usize = 1_000;

#[cfg(test)]
mod tests;
