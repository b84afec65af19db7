//! A reader of JSON that builds nothing: it walks the text once, checks it, and hands out places in it.
//!
//! It accepts what Python's `json.loads` accepts, since that is what the engine reads requests with: a leading
//! UTF-8 byte order mark, `NaN` and `Infinity`, duplicate keys, escapes of lone surrogates. What Python refuses
//! is refused here too, so that gateway and engine cannot read one body in two ways. Source: CPython 3.12,
//! `Lib/json/__init__.py`, `Lib/json/scanner.py` and `Modules/_json.c`.
//!
//! Nesting is counted, not recursed into: no text can overflow the stack.

mod text;

pub(crate) use text::{KEY_BYTES_MAX, Text, unescape};

use std::ops::Range;

use memchr::memchr2;

/// Levels of brackets that are followed. Python stops at about 1,000 and serves nothing that deep;
/// no known client sends more than a few dozen.
pub(crate) const DEPTH_MAX: usize = 512;

/// Why a text is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// More than [`DEPTH_MAX`] brackets are open.
    TooDeep,
    /// The byte at this offset cannot stand there; the length of the text where it ends too early.
    Syntax(usize),
}

/// What was walked over so far. Differences of two readings tell what a value holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Numbers.
    pub(crate) numbers: u64,
    /// Strings that are values, not keys.
    pub(crate) strings: u64,
    /// Bytes between the quotes of those strings.
    pub(crate) string_bytes: usize,
    /// Arrays.
    pub(crate) arrays: u64,
    /// Strings that are media and no text: see [`Cursor::value`].
    pub(crate) media: usize,
    /// Bytes between their quotes.
    pub(crate) media_bytes: usize,
}

/// A place in a JSON text.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    /// One bit a level: set where the bracket is that of an object.
    objects: [u64; DEPTH_MAX / 64],
    tally: Tally,
}

impl<'a> Cursor<'a> {
    /// Starts before the first value of `bytes`.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        let at = if bytes.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
        let mut cursor = Self { bytes, at, depth: 0, objects: [0; DEPTH_MAX / 64], tally: Tally::default() };
        cursor.skip_space();
        cursor
    }

    /// The first byte of what comes next; `None` at the end.
    pub(crate) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Where the cursor stands.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// What was walked over so far.
    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// The text that is read.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Checks that nothing but space is left.
    pub(crate) fn finish(&mut self) -> Result<(), Fault> {
        self.skip_space();
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.syntax()) }
    }

    /// Walks over the members of the object that comes next, and calls `each` with every key. `each` has to
    /// walk over the member's value: the cursor stands on it.
    pub(crate) fn members(
        &mut self,
        mut each: impl FnMut(&mut Self, Text<'a>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.open(b'{')?;
        if self.close_if(b'}') {
            return Ok(());
        }
        loop {
            let key = self.key()?;
            each(self, key)?;
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.syntax()),
            }
            self.skip_space();
        }
        self.close();
        Ok(())
    }

    /// Walks over the elements of the array that comes next. `each` has to walk over the element: the cursor
    /// stands on it.
    pub(crate) fn elements(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.open(b'[')?;
        if self.close_if(b']') {
            return Ok(());
        }
        loop {
            each(self)?;
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(self.syntax()),
            }
            self.skip_space();
        }
        self.close();
        Ok(())
    }

    /// Walks over one value of any kind, and returns its place.
    ///
    /// A string longer than [`MEDIA_BYTES_MIN`] that begins with `data:` and belongs to a key that ends in
    /// `url` is an image or a sound in the place of a link; its bytes are tallied as media.
    pub(crate) fn value(&mut self) -> Result<Range<usize>, Fault> {
        let start = self.at;
        let base = self.depth;
        let mut link = false;
        loop {
            match self.peek() {
                Some(b'"') => {
                    let text = self.string()?;
                    self.tally.strings += 1;
                    self.tally.string_bytes += text.raw.len();
                    if link && text.raw.len() > MEDIA_BYTES_MIN && text.raw.starts_with(b"data:") {
                        self.tally.media += 1;
                        self.tally.media_bytes += text.raw.len();
                    }
                }
                Some(b'{') => {
                    self.open(b'{')?;
                    if !self.close_if(b'}') {
                        link = self.key()?.raw.ends_with(b"url");
                        continue;
                    }
                }
                Some(b'[') => {
                    self.tally.arrays += 1;
                    self.open(b'[')?;
                    if !self.close_if(b']') {
                        link = false;
                        continue;
                    }
                }
                Some(b'-' | b'0'..=b'9') => {
                    self.tally.numbers += 1;
                    self.number()?;
                }
                Some(b't') => self.literal(b"true")?,
                Some(b'f') => self.literal(b"false")?,
                Some(b'n') => self.literal(b"null")?,
                Some(b'N') => self.literal(b"NaN")?,
                Some(b'I') => self.literal(b"Infinity")?,
                _ => return Err(self.syntax()),
            }
            // A value ended: close what ends with it, up to the comma before the next one.
            loop {
                if self.depth == base {
                    return Ok(start..self.at);
                }
                self.skip_space();
                match (self.peek(), self.in_object()) {
                    (Some(b'}'), true) | (Some(b']'), false) => self.close(),
                    (Some(b','), object) => {
                        self.at += 1;
                        self.skip_space();
                        link = object && self.key()?.raw.ends_with(b"url");
                        break;
                    }
                    _ => return Err(self.syntax()),
                }
            }
        }
    }

    /// Walks over a key and its colon, up to the value.
    fn key(&mut self) -> Result<Text<'a>, Fault> {
        if self.peek() != Some(b'"') {
            return Err(self.syntax());
        }
        let key = self.string()?;
        self.skip_space();
        if self.peek() != Some(b':') {
            return Err(self.syntax());
        }
        self.at += 1;
        self.skip_space();
        Ok(key)
    }

    /// Walks over a string; the cursor stands on its opening quote.
    fn string(&mut self) -> Result<Text<'a>, Fault> {
        let start = self.at + 1;
        let mut escaped = false;
        self.at = start;
        loop {
            self.at += plain_length(&self.bytes[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    let raw = &self.bytes[start..self.at];
                    self.at += 1;
                    return Ok(Text { raw, escaped });
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) | None => return Err(self.syntax()),
            }
        }
    }

    /// Walks over one escape; the cursor stands on its backslash.
    fn escape(&mut self) -> Result<(), Fault> {
        let rest = &self.bytes[self.at..];
        let length = match rest.get(1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
            Some(b'u') if rest.get(2..6).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) => 6,
            _ => return Err(self.syntax()),
        };
        self.at += length;
        Ok(())
    }

    /// Walks over a number, or `-Infinity`; the cursor stands on its first byte.
    fn number(&mut self) -> Result<(), Fault> {
        if self.peek() == Some(b'-') {
            self.at += 1;
            if self.peek() == Some(b'I') {
                return self.literal(b"Infinity");
            }
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// Walks over one digit or more.
    fn digits(&mut self) -> Result<(), Fault> {
        let count = self.bytes[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        if count == 0 { Err(self.syntax()) } else { Ok(()) }
    }

    fn literal(&mut self, word: &[u8]) -> Result<(), Fault> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(self.syntax());
        }
        self.at += word.len();
        Ok(())
    }

    fn open(&mut self, bracket: u8) -> Result<(), Fault> {
        if self.peek() != Some(bracket) {
            return Err(self.syntax());
        }
        if self.depth == DEPTH_MAX {
            return Err(Fault::TooDeep);
        }
        let (word, bit) = (self.depth / 64, 1 << (self.depth % 64));
        if bracket == b'{' {
            self.objects[word] |= bit;
        } else {
            self.objects[word] &= !bit;
        }
        self.depth += 1;
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    /// Closes the bracket just opened where it is empty.
    fn close_if(&mut self, bracket: u8) -> bool {
        let empty = self.peek() == Some(bracket);
        if empty {
            self.close();
        }
        empty
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.at += 1;
    }

    /// Whether the innermost open bracket is that of an object.
    fn in_object(&self) -> bool {
        let level = self.depth - 1;
        self.objects[level / 64] & (1 << (level % 64)) != 0
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn syntax(&self) -> Fault {
        Fault::Syntax(self.at)
    }
}

/// Links shorter than this count as the text they are.
const MEDIA_BYTES_MIN: usize = 4096;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// How many bytes at the start of `bytes` are a string's plain text: up to a quote, a backslash or a control
/// character, which a string must escape.
///
/// Keys and most values are short, and a call of a vector search costs more than they do: the first words are
/// looked at here, eight bytes at a time.
fn plain_length(bytes: &[u8]) -> usize {
    let (words, _) = bytes.as_chunks::<8>();
    let short = &words[..words.len().min(SHORT_WORDS)];
    for (at, word) in short.iter().enumerate() {
        let special = special_bytes(u64::from_le_bytes(*word));
        if special != 0 {
            return at * 8 + special.trailing_zeros() as usize / 8;
        }
    }
    let start = short.len() * 8;
    let rest = &bytes[start..];
    let rest = &rest[..memchr2(b'"', b'\\', rest).unwrap_or(rest.len())];
    // Without a branch a byte, so that the compiler makes vector code of it.
    let control = rest.iter().fold(0, |found, byte| found | u8::from(*byte < b' ')) != 0;
    start + if control { rest.iter().take_while(|byte| **byte >= b' ').count() } else { rest.len() }
}

/// Words of eight bytes that are looked at one by one.
const SHORT_WORDS: usize = 4;

/// Has the highest bit set of the first byte that is special, and of none before it. Source: Warren, "Hacker's
/// Delight", §6-1.
fn special_bytes(word: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let less = |word: u64, bound: u8| word.wrapping_sub(ONES * u64::from(bound)) & !word;
    let equal = |byte: u8| less(word ^ (ONES * u64::from(byte)), 1);
    (less(word, b' ') | equal(b'"') | equal(b'\\')) & (ONES << 7)
}

#[cfg(test)]
mod tests;
