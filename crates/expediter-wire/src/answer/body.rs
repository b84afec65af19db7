//! The body's bytes, out of their framing.

use super::{AnswerError, BodyFraming};

/// Takes a body out of its framing, whatever the pieces that it arrives in.
#[derive(Clone, Debug)]
pub struct BodyDecoder(State);

/// What the next piece holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// Bytes of the body, at least one.
    Data(&'a [u8]),
    /// The piece is used up.
    NeedMore,
    /// The body has ended. What is left of the piece does not belong to it.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    UntilClose,
    Length {
        left: u64,
    },
    /// In a chunk's size.
    Size {
        size: u64,
        digits: u8,
    },
    /// In a chunk's extension: skipped.
    Extension {
        size: u64,
        bytes: u16,
    },
    /// Behind the CR of a chunk's size.
    SizeEnd {
        size: u64,
    },
    Chunk {
        left: u64,
    },
    /// Behind a chunk's last byte.
    ChunkEnd,
    /// Behind the CR after a chunk.
    ChunkEndFeed,
    /// At the start of a trailer, or of the blank line that ends the body.
    Trailer {
        bytes: u16,
    },
    /// In a trailer: skipped.
    TrailerLine {
        bytes: u16,
    },
    /// Behind a trailer's CR.
    TrailerFeed {
        bytes: u16,
    },
    /// Behind the blank line's CR.
    LastFeed,
    Done,
}

impl BodyDecoder {
    /// A decoder at the start of a body.
    pub fn new(framing: BodyFraming) -> Self {
        Self(match framing {
            BodyFraming::None | BodyFraming::Length(0) => State::Done,
            BodyFraming::Length(left) => State::Length { left },
            BodyFraming::Chunked => SIZE,
            BodyFraming::UntilClose => State::UntilClose,
        })
    }

    /// Takes what comes next off the front of `input`. Call again until it says [`Decoded::NeedMore`] or
    /// [`Decoded::End`].
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Decoded<'a>, AnswerError> {
        loop {
            if self.0 == State::Done {
                return Ok(Decoded::End);
            }
            let Some(&byte) = input.first() else {
                return Ok(Decoded::NeedMore);
            };
            if self.0 == State::UntilClose {
                return Ok(Decoded::Data(std::mem::take(input)));
            }
            if let State::Length { left } | State::Chunk { left } = &mut self.0 {
                let data = take(input, left);
                if *left == 0 {
                    let chunked = matches!(self.0, State::Chunk { .. });
                    self.0 = if chunked { State::ChunkEnd } else { State::Done };
                }
                return Ok(Decoded::Data(data));
            }
            self.0 = self.0.after(byte)?;
            *input = &input[1..];
        }
    }

    /// Whether the body has ended.
    pub fn is_done(&self) -> bool {
        self.0 == State::Done
    }

    /// Judges the end of the connection: only a body that ends with it is complete then.
    pub fn end_of_input(&self) -> Result<(), AnswerError> {
        let complete = matches!(self.0, State::Done | State::UntilClose);
        if complete { Ok(()) } else { Err(AnswerError::Truncated) }
    }
}

impl State {
    /// Where a byte of the chunk framing leads.
    fn after(self, byte: u8) -> Result<Self, AnswerError> {
        match (self, byte) {
            (Self::Size { size, digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F')
                if digits < SIZE_DIGITS_MAX =>
            {
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                Ok(Self::Size { size: size << 4 | u64::from(digit), digits: digits + 1 })
            }
            (Self::Size { digits: 0, .. }, _) => Err(AnswerError::Chunk("no size")),
            (Self::Size { size, .. } | Self::Extension { size, .. }, b'\r') => Ok(Self::SizeEnd { size }),
            (Self::Size { size, .. }, b';') => Ok(Self::Extension { size, bytes: 1 }),
            (Self::Size { .. }, _) => Err(AnswerError::Chunk("bad size")),
            (Self::Extension { bytes: EXTENSION_BYTES_MAX.., .. }, _) => {
                Err(AnswerError::Chunk("long extension"))
            }
            (Self::Extension { .. }, b'\n' | 0) => Err(AnswerError::Chunk("bad extension")),
            (Self::Extension { size, bytes }, _) => Ok(Self::Extension { size, bytes: bytes + 1 }),
            (Self::SizeEnd { size: 0 }, b'\n') => Ok(Self::Trailer { bytes: 0 }),
            (Self::SizeEnd { size }, b'\n') => Ok(Self::Chunk { left: size }),
            (Self::ChunkEnd, b'\r') => Ok(Self::ChunkEndFeed),
            (Self::ChunkEndFeed, b'\n') => Ok(SIZE),
            (Self::Trailer { .. }, b'\r') => Ok(Self::LastFeed),
            (Self::TrailerLine { bytes }, b'\r') => Ok(Self::TrailerFeed { bytes }),
            (
                Self::Trailer { bytes: TRAILER_BYTES_MAX.. }
                | Self::TrailerLine { bytes: TRAILER_BYTES_MAX.. },
                _,
            ) => Err(AnswerError::Chunk("long trailer")),
            (Self::Trailer { .. } | Self::TrailerLine { .. }, b'\n' | 0) => {
                Err(AnswerError::Chunk("bad trailer"))
            }
            (Self::Trailer { bytes } | Self::TrailerLine { bytes }, _) => {
                Ok(Self::TrailerLine { bytes: bytes + 1 })
            }
            (Self::TrailerFeed { bytes }, b'\n') => Ok(Self::Trailer { bytes }),
            (Self::LastFeed, b'\n') => Ok(Self::Done),
            _ => Err(AnswerError::Chunk("bad line end")),
        }
    }
}

/// The start of a chunk.
const SIZE: State = State::Size { size: 0, digits: 0 };

/// Hexadecimal digits of the largest size that `u64` holds.
const SIZE_DIGITS_MAX: u8 = 16;

/// A chunk's extension, all of it, in bytes. No engine sends any.
const EXTENSION_BYTES_MAX: u16 = 4096;

/// All trailers of a body, in bytes. No engine sends any.
const TRAILER_BYTES_MAX: u16 = 8192;

/// Takes at most `left` bytes off the front of `input`.
fn take<'a>(input: &mut &'a [u8], left: &mut u64) -> &'a [u8] {
    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
    let (data, rest) = input.split_at(length);
    *input = rest;
    *left -= length as u64;
    data
}
