//! One HTTP/1.1 connection to a replica, from request to the answer's last byte.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use expediter_wire::answer::{AnswerError, AnswerHead, BodyDecoder, Decoded, HeadParse, parse_head};
use smallvec::SmallVec;

use super::UpstreamIo;

/// A connection and what was read from it but not used.
pub(crate) struct Connection {
    io: UpstreamIo,
    /// Bytes after the head that came with it. Empty between answers, and almost always within them.
    ahead: Vec<u8>,
}

/// Why a request could not be sent.
#[derive(Debug, thiserror::Error)]
#[error("sending the request: {0}")]
pub(crate) struct SendError(#[from] io::Error);

/// Why an answer could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The connection ended or broke before the answer's first byte.
    #[error("the replica closed the connection without an answer")]
    ClosedUnanswered,
    /// The connection ended or broke within the answer.
    #[error("the replica closed the connection within the answer")]
    Truncated,
    /// Interim answers without end.
    #[error("the replica sent interim answers (1xx) without end")]
    TooManyInterim,
    /// What came is no answer.
    #[error(transparent)]
    Malformed(#[from] AnswerError),
}

impl Connection {
    /// A new connection over `io`.
    pub(crate) fn new(io: UpstreamIo) -> Self {
        Self { io, ahead: Vec::new() }
    }

    /// See [`UpstreamIo::is_quiet`].
    pub(crate) fn is_quiet(&self) -> bool {
        self.ahead.is_empty() && self.io.is_quiet()
    }

    /// Writes the pieces of a request, in one call where the socket takes them.
    pub(crate) async fn send(&mut self, pieces: &[Bytes]) -> Result<(), SendError> {
        let mut pieces: SmallVec<[Bytes; 8]> =
            pieces.iter().filter(|piece| !piece.is_empty()).cloned().collect();
        let mut first = 0;
        poll_fn(|cx| {
            while first < pieces.len() {
                let mut written = {
                    let left = pieces[first..].iter();
                    let slices: SmallVec<[IoSlice<'_>; 8]> = left.map(|piece| IoSlice::new(piece)).collect();
                    ready!(self.io.poll_write(cx, &slices))?
                };
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                while written > 0 {
                    let step = written.min(pieces[first].len());
                    pieces[first].advance(step);
                    written -= step;
                    if pieces[first].is_empty() {
                        first += 1;
                    }
                }
            }
            self.io.poll_flush(cx)
        })
        .await?;
        Ok(())
    }

    /// Reads the next answer's head, passing over informational ones.
    pub(crate) async fn read_head(&mut self) -> Result<AnswerHead, ReadError> {
        let mut seen = HeadsSeen::default();
        poll_fn(|cx| self.poll_head(cx, &mut seen)).await
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        seen: &mut HeadsSeen,
    ) -> Poll<Result<AnswerHead, ReadError>> {
        loop {
            if !self.ahead.is_empty()
                && let HeadParse::Complete { head, consumed } = parse_head(&self.ahead)?
            {
                self.ahead.drain(..consumed);
                if !head.is_informational() {
                    return Poll::Ready(Ok(head));
                }
                seen.interim += 1;
                if seen.interim > INTERIM_MAX {
                    return Poll::Ready(Err(ReadError::TooManyInterim));
                }
                continue;
            }
            let ahead = &mut self.ahead;
            let read = ready!(with_scratch(|scratch| {
                self.io.poll_read(cx, scratch).map_ok(|length| {
                    ahead.extend_from_slice(&scratch[..length]);
                    length
                })
            }));
            match read {
                Ok(1..) => seen.any_byte = true,
                Ok(0) | Err(_) if seen.any_byte => return Poll::Ready(Err(ReadError::Truncated)),
                Ok(0) | Err(_) => return Poll::Ready(Err(ReadError::ClosedUnanswered)),
            }
        }
    }

    /// Reads once and hands each piece of the body to `each`. `true` where the body is complete.
    ///
    /// The bytes pass through one buffer a thread, so a stream that waits for its next token holds none.
    pub(crate) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        decoder: &mut BodyDecoder,
        mut each: impl FnMut(&[u8]),
    ) -> Poll<Result<bool, ReadError>> {
        if decoder.is_done() {
            return Poll::Ready(Ok(true));
        }
        if !self.ahead.is_empty() {
            let ahead = std::mem::take(&mut self.ahead);
            let mut rest = ahead.as_slice();
            let done = decode(decoder, &mut rest, &mut each)?;
            self.ahead.extend_from_slice(rest);
            return Poll::Ready(Ok(done));
        }
        with_scratch(|scratch| {
            let Ok(length) = ready!(self.io.poll_read(cx, scratch)) else {
                return Poll::Ready(Err(ReadError::Truncated));
            };
            if length == 0 {
                return Poll::Ready(decoder.end_of_input().map(|()| true).map_err(|_| ReadError::Truncated));
            }
            let mut rest = &scratch[..length];
            let done = decode(decoder, &mut rest, &mut each)?;
            // What follows a complete body was not asked for: it marks the connection as unusable.
            self.ahead.extend_from_slice(rest);
            Poll::Ready(Ok(done))
        })
    }
}

/// What came while an answer's head was awaited.
#[derive(Default)]
struct HeadsSeen {
    /// Whether the replica said anything: then it has seen the request.
    any_byte: bool,
    interim: u32,
}

/// Interim answers (1xx) to one request. `100 Continue` and an early hint or two are all that is known.
const INTERIM_MAX: u32 = 16;

fn decode(
    decoder: &mut BodyDecoder,
    rest: &mut &[u8],
    each: &mut impl FnMut(&[u8]),
) -> Result<bool, ReadError> {
    loop {
        match decoder.next(rest)? {
            Decoded::Data(data) => each(data),
            Decoded::NeedMore => return Ok(false),
            Decoded::End => return Ok(true),
        }
    }
}

/// Lends the thread's read buffer.
fn with_scratch<T>(use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_BYTES].into_boxed_slice());
    }
    SCRATCH.with(|scratch| use_it(&mut scratch.borrow_mut()))
}

/// Large enough that a burst of tokens is one read, small enough to stay in the second-level cache.
const SCRATCH_BYTES: usize = 64 * 1024;
