//! What a stream's frame or a whole answer says beside its text: usage, finish reasons, an error.
//!
//! A chunk of a stream and a whole answer have the same outer shape, and are read by the same function.

use smallvec::SmallVec;

use crate::json::{Cursor, Fault, KEY_BYTES_MAX, Text, unescape};
use crate::number;

/// Tokens that the engine counted. `None` is unknown, which is not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt; once for all choices.
    pub prompt_tokens: Option<u64>,
    /// Tokens of all choices.
    pub completion_tokens: Option<u64>,
    /// Tokens of the prompt that the engine had in its prefix cache.
    pub cached_tokens: Option<u64>,
}

impl Usage {
    /// Takes over what `later` knows. What it does not know stays: engines send plain counts and details in
    /// separate frames, in either order.
    pub fn merge(&mut self, later: Self) {
        self.prompt_tokens = later.prompt_tokens.or(self.prompt_tokens);
        self.completion_tokens = later.completion_tokens.or(self.completion_tokens);
        self.cached_tokens = later.cached_tokens.or(self.cached_tokens);
    }
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// `"abort"`: the replica is going down and cut the answer off, however clean the end looks.
    Abort,
    /// Any other reason: the choice is complete.
    Other,
}

/// The choices that ended, by `index`, in the frame's order.
pub type Finishes = SmallVec<[(u32, Finish); 2]>;

/// What stands in `choices`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choices {
    /// The frame was not looked into, or has no such list.
    #[default]
    Unknown,
    /// An empty list: nothing that a client who did not ask for usage expects.
    Empty,
    /// At least one choice.
    Some,
}

/// An error in the place of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorFrame {
    /// The error's `code` where it is a number, or a string of digits. Engines put the HTTP status there.
    pub code: Option<u16>,
    /// The error's message; empty where it has none.
    pub message: String,
}

/// The members of a frame that matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) error: Option<ErrorFrame>,
    pub(crate) usage: Option<Usage>,
    pub(crate) finishes: Finishes,
    pub(crate) choices: Choices,
}

impl Frame {
    /// Reads a frame. A member of an unforeseen type counts as absent; only text that is no JSON is a fault.
    /// JSON that is no object is a frame that says nothing.
    pub(crate) fn read(text: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor::new(text);
        let mut frame = Self::default();
        let mut flat = FlatError::default();
        if_object(&mut cursor, |cursor, key| {
            let mut buffer = [0; KEY_BYTES_MAX];
            match key.decoded_to(&mut buffer) {
                Some(b"error") => frame.error = error(cursor)?,
                Some(b"usage") => frame.usage = usage(cursor)?,
                Some(b"choices") => (frame.choices, frame.finishes) = choices(cursor)?,
                Some(b"object") => flat.is_error = value(cursor)? == b"\"error\"",
                Some(b"message") => flat.error.message = message(value(cursor)?),
                Some(b"code") => flat.error.code = code(value(cursor)?),
                _ => skip(cursor)?,
            }
            Ok(())
        })?;
        cursor.finish()?;
        if flat.is_error && frame.error.is_none() {
            frame.error = Some(flat.error);
        }
        Ok(frame)
    }
}

/// `{"object":"error","message":…,"code":…}`: the shape of older engines, without an inner object.
#[derive(Default)]
struct FlatError {
    is_error: bool,
    error: ErrorFrame,
}

/// Reads an `error`: an object, or only its message (`{"error":"Unauthorized"}`).
fn error(cursor: &mut Cursor<'_>) -> Result<Option<ErrorFrame>, Fault> {
    if cursor.peek() != Some(b'{') {
        let raw = value(cursor)?;
        let absent = raw == b"null" || raw == b"false";
        return Ok((!absent).then(|| ErrorFrame { code: None, message: message(raw) }));
    }
    let mut error = ErrorFrame::default();
    cursor.members(|cursor, key| {
        if key.is("message") {
            error.message = message(value(cursor)?);
        } else if key.is("code") {
            error.code = code(value(cursor)?);
        } else {
            skip(cursor)?;
        }
        Ok(())
    })?;
    Ok(Some(error))
}

/// Reads a `usage`. Null, or anything else than an object, is no usage.
fn usage(cursor: &mut Cursor<'_>) -> Result<Option<Usage>, Fault> {
    if cursor.peek() != Some(b'{') {
        skip(cursor)?;
        return Ok(None);
    }
    let mut usage = Usage::default();
    cursor.members(|cursor, key| {
        let mut buffer = [0; KEY_BYTES_MAX];
        match key.decoded_to(&mut buffer) {
            Some(b"prompt_tokens") => usage.prompt_tokens = count(value(cursor)?),
            Some(b"completion_tokens") => usage.completion_tokens = count(value(cursor)?),
            Some(b"prompt_tokens_details") => usage.cached_tokens = cached_tokens(cursor)?,
            _ => skip(cursor)?,
        }
        Ok(())
    })?;
    Ok(Some(usage))
}

fn cached_tokens(cursor: &mut Cursor<'_>) -> Result<Option<u64>, Fault> {
    let mut cached = None;
    if_object(cursor, |cursor, key| {
        let raw = value(cursor)?;
        if key.is("cached_tokens") {
            cached = count(raw);
        }
        Ok(())
    })?;
    Ok(cached)
}

/// Reads `choices`.
fn choices(cursor: &mut Cursor<'_>) -> Result<(Choices, Finishes), Fault> {
    let mut finishes = Finishes::new();
    if cursor.peek() != Some(b'[') {
        skip(cursor)?;
        return Ok((Choices::Unknown, finishes));
    }
    let mut choices = Choices::Empty;
    cursor.elements(|cursor| {
        choices = Choices::Some;
        let (mut index, mut finish) = (0, None);
        if_object(cursor, |cursor, key| {
            if key.is("index") {
                index = count(value(cursor)?).and_then(|index| u32::try_from(index).ok()).unwrap_or(0);
            } else if key.is("finish_reason") {
                finish = self::finish(value(cursor)?);
            } else {
                skip(cursor)?;
            }
            Ok(())
        })?;
        finishes.extend(finish.map(|finish| (index, finish)));
        Ok(())
    })?;
    Ok((choices, finishes))
}

/// Reads a finish reason; null is none.
fn finish(raw: &[u8]) -> Option<Finish> {
    match raw {
        b"null" => None,
        b"\"abort\"" => Some(Finish::Abort),
        _ => Some(Finish::Other),
    }
}

/// Reads a count of tokens, which some engines write as a double.
fn count(raw: &[u8]) -> Option<u64> {
    let raw = std::str::from_utf8(raw).ok()?;
    raw.parse().ok().or_else(|| number::count(raw.parse().ok()?))
}

/// Reads a number, or a string of digits.
fn code(raw: &[u8]) -> Option<u16> {
    let digits = raw.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(raw);
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Reads a message: the string's text, or the JSON of what stands in its place.
fn message(raw: &[u8]) -> String {
    let text = raw.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).and_then(unescape);
    text.unwrap_or_else(|| String::from_utf8_lossy(raw).into_owned())
}

/// Walks over the value that comes next, with `each` where it is an object.
fn if_object<'a>(
    cursor: &mut Cursor<'a>,
    each: impl FnMut(&mut Cursor<'a>, Text<'a>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    if cursor.peek() == Some(b'{') { cursor.members(each) } else { skip(cursor) }
}

/// Walks over a value and returns its text.
fn value<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], Fault> {
    let span = cursor.value()?;
    Ok(&cursor.bytes()[span])
}

fn skip(cursor: &mut Cursor<'_>) -> Result<(), Fault> {
    cursor.value().map(|_| ())
}

#[cfg(test)]
mod tests;
