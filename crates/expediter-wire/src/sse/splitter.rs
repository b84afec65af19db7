//! Where one event ends and the next begins.

use memchr::memchr2;

use super::Event;

/// Cuts an event stream into events, whatever the pieces that it arrives in. Between two pieces it keeps an
/// incomplete event and nothing else.
///
/// An event ends with a blank line, and is handed on with its last byte. Lines end with LF, CR LF or CR, in any
/// mixture. Where a blank line's CR is the last byte of a piece, the event does not wait for an LF that may
/// belong to it: such an LF is dropped from the start of the next piece.
#[derive(Debug)]
pub struct EventSplitter {
    event_bytes_max: usize,
    /// The beginning of an event whose end has not come.
    kept: Vec<u8>,
    line: Line,
    /// Whether no event was handed on: the first one may begin with a byte order mark.
    first: bool,
}

/// Where in its line a stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// Before the line's first byte.
    Start,
    /// Behind its first byte.
    Inside,
    /// Behind a CR that ended the last line: an LF belongs to it.
    AfterReturn,
    /// Behind a CR that ended an event: an LF belongs to an event that is gone.
    AfterEvent,
}

/// An event is longer than the limit. The stream cannot be followed further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event is longer than {limit} bytes")]
pub struct EventTooLong {
    /// The limit, in bytes.
    pub limit: usize,
}

impl EventSplitter {
    /// A splitter at the start of a stream whose events are at most `event_bytes_max` bytes long.
    pub fn new(event_bytes_max: usize) -> Self {
        Self { event_bytes_max, kept: Vec::new(), line: Line::Start, first: true }
    }

    /// Takes the next piece of the stream, and calls `each` with every event that is complete now. An event that
    /// lies in one piece is handed on in place; each byte is looked at once.
    ///
    /// # Errors
    /// Where an event exceeds the limit. The events before it were handed on; this splitter is spent.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(Event<'_>)) -> Result<(), EventTooLong> {
        let (mut start, mut at) = (0, 0);
        while at < bytes.len() {
            if matches!(self.line, Line::AfterReturn | Line::AfterEvent) {
                let feed = usize::from(bytes[at] == b'\n');
                at += feed;
                if self.line == Line::AfterEvent {
                    start += feed;
                }
                self.line = Line::Start;
                continue;
            }
            let Some(length) = memchr2(b'\n', b'\r', &bytes[at..]) else {
                self.line = Line::Inside;
                break;
            };
            let blank = length == 0 && self.line == Line::Start;
            at += length + 1;
            self.line = match (bytes[at - 1], blank) {
                (b'\n', _) => Line::Start,
                (_, true) if at == bytes.len() => Line::AfterEvent,
                (_, true) => {
                    at += usize::from(bytes[at] == b'\n');
                    Line::Start
                }
                (_, false) => Line::AfterReturn,
            };
            if blank {
                self.emit(&bytes[start..at], &mut each)?;
                start = at;
            }
        }
        self.keep(&bytes[start..])
    }

    /// The beginning of an event whose end has not come. Where the stream ends here, it is no event.
    pub fn tail(&self) -> &[u8] {
        &self.kept
    }

    /// Whether the tail is the stream's last event but for its blank line: some servers close right behind
    /// `data: [DONE]`.
    pub fn tail_is_done(&self) -> bool {
        let payload = self.kept.strip_prefix(b"data:").map(<[u8]>::trim_ascii);
        payload == Some(b"[DONE]")
    }

    fn emit(&mut self, rest: &[u8], each: &mut impl FnMut(Event<'_>)) -> Result<(), EventTooLong> {
        let raw = if self.kept.is_empty() {
            self.check(rest.len())?;
            rest
        } else {
            self.keep(rest)?;
            &self.kept
        };
        let raw = if self.first { raw.strip_prefix(BYTE_ORDER_MARK).unwrap_or(raw) } else { raw };
        self.first = false;
        each(Event { raw });
        self.kept.clear();
        self.kept.shrink_to(KEPT_BYTES_IDLE);
        Ok(())
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), EventTooLong> {
        self.check(self.kept.len() + part.len())?;
        self.kept.extend_from_slice(part);
        Ok(())
    }

    fn check(&self, length: usize) -> Result<(), EventTooLong> {
        let limit = self.event_bytes_max;
        if length <= limit { Ok(()) } else { Err(EventTooLong { limit }) }
    }
}

/// What a stream may keep in its buffer while it waits: an ordinary event fits, a long one gives its memory back.
const KEPT_BYTES_IDLE: usize = 4096;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";
