//! One event.

use std::borrow::Cow;

use memchr::memchr2;

/// A complete event, its blank line included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The bytes, as they came.
    pub raw: &'a [u8],
}

/// What an event carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind<'a> {
    /// A payload: its `data` lines, joined by LF.
    Data(Cow<'a, [u8]>),
    /// Only comments: a heartbeat.
    Comment,
    /// No payload, or one of nothing but space: `data:` alone, `event:`, `id:`, `retry:`, or no line at all. Stock
    /// clients parse the payload of every event that has fields, and fail on these: they must not reach one.
    Empty,
}

impl<'a> Event<'a> {
    /// What the event carries. Costs one search where it is one `data` line, as all of an engine's are.
    pub fn kind(self) -> EventKind<'a> {
        if let Some(payload) = self.only_data_line() {
            return classify(Cow::Borrowed(payload));
        }
        let mut payload: Option<Cow<'a, [u8]>> = None;
        let (mut comments, mut fields) = (false, false);
        for line in self.lines() {
            match field(line) {
                Field::Comment => comments = true,
                Field::Data(value) => match &mut payload {
                    None => payload = Some(Cow::Borrowed(value)),
                    Some(joined) => {
                        let joined = joined.to_mut();
                        joined.push(b'\n');
                        joined.extend_from_slice(value);
                    }
                },
                Field::Id | Field::Other => fields = true,
            }
        }
        match payload {
            Some(payload) => classify(payload),
            None if comments && !fields => EventKind::Comment,
            None => EventKind::Empty,
        }
    }

    /// Whether the event has an `id` field. From then on stock clients take even a comment for an event.
    pub fn has_id(self) -> bool {
        self.lines().any(|line| matches!(field(line), Field::Id))
    }

    /// The payload, where the event is one `data` line and its blank line.
    fn only_data_line(self) -> Option<&'a [u8]> {
        let rest = self.raw.strip_prefix(b"data:")?;
        let (line, blank) = rest.split_at(memchr2(b'\n', b'\r', rest)?);
        let one_line =
            matches!(blank, b"\n\n" | b"\r\n\r\n" | b"\r\r" | b"\r\n\r" | b"\r\n\n" | b"\n\r" | b"\n\r\n");
        one_line.then(|| without_space(line))
    }

    /// The lines that are not blank.
    fn lines(self) -> impl Iterator<Item = &'a [u8]> {
        self.raw.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| !line.is_empty())
    }
}

fn classify(payload: Cow<'_, [u8]>) -> EventKind<'_> {
    if payload.trim_ascii().is_empty() { EventKind::Empty } else { EventKind::Data(payload) }
}

enum Field<'a> {
    Comment,
    Data(&'a [u8]),
    Id,
    Other,
}

fn field(line: &[u8]) -> Field<'_> {
    let (name, value) = match memchr::memchr(b':', line) {
        Some(0) => return Field::Comment,
        Some(colon) => (&line[..colon], without_space(&line[colon + 1..])),
        None => (line, &line[line.len()..]),
    };
    match name {
        b"data" => Field::Data(value),
        b"id" => Field::Id,
        _ => Field::Other,
    }
}

/// A field's value without the one space that may stand before it.
fn without_space(value: &[u8]) -> &[u8] {
    value.strip_prefix(b" ").unwrap_or(value)
}
