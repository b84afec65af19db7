//! Status line and headers.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::AnswerError;

/// Status and headers of an answer.
#[derive(Clone, Debug)]
pub struct AnswerHead {
    /// The status, from 100 to 999.
    pub status: u16,
    /// The headers, in their order; all of them, those of the connection too.
    pub headers: HeaderMap,
    /// How the body's end is found.
    pub body: BodyFraming,
    /// Whether the connection may be used again once the body has ended.
    pub keep_alive: bool,
}

impl AnswerHead {
    /// Whether this is an interim answer (1xx): the real one follows.
    pub fn is_informational(&self) -> bool {
        self.status < 200
    }
}

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// The answer has no body.
    None,
    /// The body has so many bytes.
    Length(u64),
    /// The body comes in chunks, and says itself where it ends.
    Chunked,
    /// The body ends with the connection: a cut cannot be told from an end.
    UntilClose,
}

/// The outcome of reading a head.
#[derive(Clone, Debug)]
pub enum HeadParse {
    /// More bytes are needed.
    Partial,
    /// The head is complete.
    Complete {
        /// The head.
        head: AnswerHead,
        /// Its length: the body begins behind it.
        consumed: usize,
    },
}

/// Reads the head at the start of `bytes`, an answer to a GET or a POST.
pub fn parse_head(bytes: &[u8]) -> Result<HeadParse, AnswerError> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut answer = httparse::Response::new(&mut headers);
    let consumed = match answer.parse(bytes).map_err(AnswerError::Head)? {
        httparse::Status::Complete(consumed) if consumed <= HEAD_BYTES_MAX => consumed,
        httparse::Status::Partial if bytes.len() <= HEAD_BYTES_MAX => return Ok(HeadParse::Partial),
        httparse::Status::Complete(_) | httparse::Status::Partial => return Err(AnswerError::HeadTooLong),
    };
    let status = answer.code.unwrap_or(0);
    if status < 100 || status == 101 {
        return Err(AnswerError::Status(status));
    }
    let modern = answer.version == Some(1);
    let headers = to_map(bytes, consumed, answer.headers)?;
    let body = framing(status, modern, &headers)?;
    let keep_alive = body != BodyFraming::UntilClose
        && if modern { !connection_says(&headers, "close") } else { connection_says(&headers, "keep-alive") };
    Ok(HeadParse::Complete { head: AnswerHead { status, headers, body, keep_alive }, consumed })
}

/// A head longer than this is refused. Engines send a few hundred bytes.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;

/// A head with more headers than this is refused.
pub const HEADERS_MAX: usize = 128;

/// Copies the head once; all values share the copy.
fn to_map(bytes: &[u8], consumed: usize, parsed: &[httparse::Header<'_>]) -> Result<HeaderMap, AnswerError> {
    let head = Bytes::copy_from_slice(&bytes[..consumed]);
    let mut headers = HeaderMap::with_capacity(parsed.len());
    for header in parsed {
        let name = HeaderName::from_bytes(header.name.as_bytes())
            .map_err(|_| AnswerError::Head(httparse::Error::HeaderName))?;
        let start = header.value.as_ptr().addr() - bytes.as_ptr().addr();
        let value = if header.value.is_empty() {
            Bytes::new()
        } else {
            head.slice(start..start + header.value.len())
        };
        let value = HeaderValue::from_maybe_shared(value)
            .map_err(|_| AnswerError::Head(httparse::Error::HeaderValue))?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// RFC 9112 §6.3, with the cases refused where it lets a recipient choose.
fn framing(status: u16, modern: bool, headers: &HeaderMap) -> Result<BodyFraming, AnswerError> {
    let coded = headers.contains_key(TRANSFER_ENCODING);
    if coded && headers.contains_key(CONTENT_LENGTH) {
        return Err(AnswerError::TwoFramings);
    }
    let length = length(headers)?;
    if matches!(status, 100..200 | 204 | 304) {
        return Ok(BodyFraming::None);
    }
    if coded {
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        let chunked = codings.next().is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
        if !chunked || codings.next().is_some() || !modern {
            return Err(AnswerError::TransferEncoding);
        }
        return Ok(BodyFraming::Chunked);
    }
    Ok(length.map_or(BodyFraming::UntilClose, BodyFraming::Length))
}

/// The length that all of the headers agree on.
fn length(headers: &HeaderMap) -> Result<Option<u64>, AnswerError> {
    let mut agreed = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        let plain = value.as_bytes().iter().all(u8::is_ascii_digit);
        let length = value.to_str().ok().filter(|_| plain).and_then(|digits| digits.parse().ok());
        let length = length.ok_or(AnswerError::Length)?;
        if agreed.is_some_and(|agreed| agreed != length) {
            return Err(AnswerError::Length);
        }
        agreed = Some(length);
    }
    Ok(agreed)
}

/// Whether `connection` holds `option`.
fn connection_says(headers: &HeaderMap, option: &str) -> bool {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .any(|said| said.trim_ascii().eq_ignore_ascii_case(option.as_bytes()))
}
