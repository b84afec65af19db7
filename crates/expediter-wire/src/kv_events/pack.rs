//! MessagePack, piece by piece, from bytes that are all there.

use rmp::Marker;

use super::KvEventsError;

/// What stands next. Of arrays and maps only the head: their elements follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Token<'a> {
    Nil,
    Bool(bool),
    Unsigned(u64),
    /// Below zero.
    Negative(i64),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    Array(usize),
    /// Pairs.
    Map(usize),
    /// A type of an application.
    Extension,
}

/// Reads one document.
#[derive(Clone, Debug)]
pub(crate) struct Unpacker<'a> {
    whole: &'a [u8],
    at: usize,
}

impl<'a> Unpacker<'a> {
    pub(crate) const fn new(whole: &'a [u8]) -> Self {
        Self { whole, at: 0 }
    }

    /// The offset of what stands next.
    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.whole.len()
    }

    /// The next token. The length of an array or map is at most what the bytes left could hold.
    pub(crate) fn next(&mut self) -> Result<Token<'a>, KvEventsError> {
        let start = self.at;
        let marker = Marker::from_u8(self.bytes(1)?[0]);
        Ok(match marker {
            Marker::Null => Token::Nil,
            Marker::False => Token::Bool(false),
            Marker::True => Token::Bool(true),
            Marker::FixPos(value) => Token::Unsigned(value.into()),
            Marker::U8 | Marker::U16 | Marker::U32 | Marker::U64 => Token::Unsigned(self.big_endian(marker)?),
            Marker::FixNeg(value) => Token::Negative(value.into()),
            Marker::I8 | Marker::I16 | Marker::I32 | Marker::I64 => self.signed(marker)?,
            Marker::F32 => Token::Float(f32::from_be_bytes(self.array()?).into()),
            Marker::F64 => Token::Float(f64::from_be_bytes(self.array()?)),
            Marker::FixStr(length) => self.text(length.into())?,
            Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                let length = self.length(marker)?;
                self.text(length)?
            }
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
                let length = self.length(marker)?;
                Token::Bytes(self.bytes(length)?)
            }
            Marker::FixArray(length) => Token::Array(self.elements(start, length.into(), 1)?),
            Marker::Array16 | Marker::Array32 => {
                let length = self.length(marker)?;
                Token::Array(self.elements(start, length, 1)?)
            }
            Marker::FixMap(length) => Token::Map(self.elements(start, length.into(), 2)?),
            Marker::Map16 | Marker::Map32 => {
                let length = self.length(marker)?;
                Token::Map(self.elements(start, length, 2)?)
            }
            Marker::FixExt1 => self.extension(1)?,
            Marker::FixExt2 => self.extension(2)?,
            Marker::FixExt4 => self.extension(4)?,
            Marker::FixExt8 => self.extension(8)?,
            Marker::FixExt16 => self.extension(16)?,
            Marker::Ext8 | Marker::Ext16 | Marker::Ext32 => {
                let length = self.length(marker)?;
                self.extension(length)?
            }
            Marker::Reserved => return Err(KvEventsError::Malformed { at: start, expected: "MessagePack" }),
        })
    }

    /// Passes over a value, and returns its bytes.
    pub(crate) fn skip(&mut self) -> Result<&'a [u8], KvEventsError> {
        let start = self.at;
        self.skip_within(DEPTH_MAX)?;
        Ok(&self.whole[start..self.at])
    }

    fn skip_within(&mut self, depth: usize) -> Result<(), KvEventsError> {
        let start = self.at;
        let values = match self.next()? {
            Token::Array(length) => length,
            Token::Map(pairs) => 2 * pairs,
            Token::Nil
            | Token::Bool(_)
            | Token::Unsigned(_)
            | Token::Negative(_)
            | Token::Float(_)
            | Token::Text(_)
            | Token::Bytes(_)
            | Token::Extension => return Ok(()),
        };
        if depth == 0 {
            return Err(KvEventsError::TooDeep { at: start });
        }
        (0..values).try_for_each(|_| self.skip_within(depth - 1))
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], KvEventsError> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.whole.len());
        let end = end.ok_or(KvEventsError::Truncated { at: self.at })?;
        let bytes = &self.whole[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], KvEventsError> {
        Ok(self.bytes(N)?.try_into().expect("so many bytes were asked for"))
    }

    /// A number of as many bytes as the marker says.
    fn big_endian(&mut self, marker: Marker) -> Result<u64, KvEventsError> {
        let bytes = self.bytes(width(marker))?;
        Ok(bytes.iter().fold(0, |value, byte| (value << 8) | u64::from(*byte)))
    }

    fn signed(&mut self, marker: Marker) -> Result<Token<'a>, KvEventsError> {
        let unused = 64 - 8 * width(marker);
        let value = (self.big_endian(marker)? << unused).cast_signed() >> unused;
        Ok(u64::try_from(value).map_or(Token::Negative(value), Token::Unsigned))
    }

    fn length(&mut self, marker: Marker) -> Result<usize, KvEventsError> {
        Ok(usize::try_from(self.big_endian(marker)?).unwrap_or(usize::MAX))
    }

    fn text(&mut self, length: usize) -> Result<Token<'a>, KvEventsError> {
        let at = self.at;
        let text = std::str::from_utf8(self.bytes(length)?);
        text.map(Token::Text).map_err(|_| KvEventsError::Malformed { at, expected: "UTF-8" })
    }

    fn extension(&mut self, length: usize) -> Result<Token<'a>, KvEventsError> {
        self.bytes(1)?;
        self.bytes(length)?;
        Ok(Token::Extension)
    }

    /// A length that what is left can hold, where each element takes `least` bytes at least.
    fn elements(&self, at: usize, length: usize, least: usize) -> Result<usize, KvEventsError> {
        if length > (self.whole.len() - self.at) / least {
            return Err(KvEventsError::Truncated { at });
        }
        Ok(length)
    }
}

/// Bytes of the number that follows a marker; 0 where none does.
const fn width(marker: Marker) -> usize {
    match marker {
        Marker::U8 | Marker::I8 | Marker::Str8 | Marker::Bin8 | Marker::Ext8 => 1,
        Marker::U16
        | Marker::I16
        | Marker::Str16
        | Marker::Bin16
        | Marker::Ext16
        | Marker::Array16
        | Marker::Map16 => 2,
        Marker::U32
        | Marker::I32
        | Marker::Str32
        | Marker::Bin32
        | Marker::Ext32
        | Marker::Array32
        | Marker::Map32 => 4,
        Marker::U64 | Marker::I64 => 8,
        Marker::Null
        | Marker::Reserved
        | Marker::False
        | Marker::True
        | Marker::FixPos(_)
        | Marker::FixNeg(_)
        | Marker::FixStr(_)
        | Marker::FixArray(_)
        | Marker::FixMap(_)
        | Marker::F32
        | Marker::F64
        | Marker::FixExt1
        | Marker::FixExt2
        | Marker::FixExt4
        | Marker::FixExt8
        | Marker::FixExt16 => 0,
    }
}

/// How deep a value may be that is passed over. Engines nest multimodal keys two levels deep.
const DEPTH_MAX: usize = 16;
