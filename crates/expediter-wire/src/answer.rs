//! HTTP/1.1 answers of a replica: a head, then a body in one of four framings. No IO: bytes in, values out.
//!
//! Strict where two readers could disagree about where an answer ends, since the connection is used again.
//! Source: RFC 9112.

mod body;
mod head;

pub use body::{BodyDecoder, Decoded};
pub use head::{AnswerHead, BodyFraming, HEAD_BYTES_MAX, HEADERS_MAX, HeadParse, parse_head};

/// Why bytes are no answer that can be trusted. The connection has to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// Not HTTP/1.x, or a head with bytes that have no place there.
    #[error("malformed answer head: {0}")]
    Head(httparse::Error),
    /// A status below 100, or 101: nobody asked to switch protocols.
    #[error("impossible status {0}")]
    Status(u16),
    /// The head is longer than [`HEAD_BYTES_MAX`].
    #[error("answer head longer than {HEAD_BYTES_MAX} bytes")]
    HeadTooLong,
    /// Both a length and a transfer coding, which is how answers are smuggled.
    #[error("answer with both content-length and transfer-encoding")]
    TwoFramings,
    /// A length that is no plain number, or several that differ.
    #[error("bad content-length")]
    Length,
    /// A transfer coding other than `chunked`, or one in HTTP/1.0.
    #[error("unsupported transfer-encoding")]
    TransferEncoding,
    /// A malformed chunk, or a line of the framing that is too long.
    #[error("malformed chunk: {0}")]
    Chunk(&'static str),
    /// The connection ended before the body did.
    #[error("answer cut off")]
    Truncated,
}

#[cfg(test)]
mod tests;
