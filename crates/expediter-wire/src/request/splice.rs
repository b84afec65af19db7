//! The few changes that a body needs on its way.

use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;

use super::{IncludeUsage, RequestScan, StreamOptions};

/// What to change in a body.
#[derive(Clone, Copy, Debug, Default)]
pub struct Edit<'a> {
    /// The name to put in the place of `model`, or to add where the body has none.
    pub model: Option<&'a str>,
    /// Have the engine send the usage chunk, whatever the client asked. Without effect on a request that is not
    /// streamed: the engine refuses `stream_options` there.
    pub include_usage: bool,
}

/// A body in pieces, for one vectored write. Two edits leave at most five.
pub type Pieces = SmallVec<[Bytes; 5]>;

/// Applies `edit` to `body`, which `scan` is of. All but the edited values is shared with `body`, byte for byte.
pub fn splice(body: &Bytes, scan: &RequestScan, edit: &Edit<'_>) -> Pieces {
    let usage = edit.include_usage.then(|| usage_change(scan)).flatten();
    let model = edit.model.and_then(|model| model_change(scan, model));
    let mut changes: SmallVec<[Change; 2]> = usage.into_iter().chain(model).collect();
    changes.sort_by_key(|change| change.place.start);

    let mut pieces = Pieces::new();
    let mut kept = 0;
    for Change { place, text } in changes {
        if kept < place.start {
            pieces.push(body.slice(kept..place.start));
        }
        pieces.push(text);
        kept = place.end;
    }
    pieces.push(body.slice(kept..));
    pieces
}

/// New text for a place in the body; the place is empty where the text is added.
struct Change {
    place: Range<usize>,
    text: Bytes,
}

fn model_change(scan: &RequestScan, model: &str) -> Option<Change> {
    let value = || serde_json::Value::from(model).to_string();
    let place = match (&scan.model, &scan.model_null) {
        (Some(member), _) if member.value == model => return None,
        (Some(member), _) => member.span.clone(),
        (None, Some(null)) => null.clone(),
        (None, None) => {
            let comma = if scan.empty { "" } else { "," };
            let text = format!("\"model\":{}{comma}", value()).into();
            return Some(Change { place: after(scan.body_start), text });
        }
    };
    Some(Change { place, text: value().into() })
}

fn usage_change(scan: &RequestScan) -> Option<Change> {
    if !scan.stream {
        return None;
    }
    let (place, text) = match &scan.stream_options {
        // A body with `stream` in it has a member for the comma to part from.
        StreamOptions::Absent => (after(scan.body_start), r#""stream_options":{"include_usage":true},"#),
        StreamOptions::Null { span } => (span.clone(), r#"{"include_usage":true}"#),
        StreamOptions::Object { start, empty, include_usage } => match include_usage {
            IncludeUsage::Absent if *empty => (after(*start), r#""include_usage":true"#),
            IncludeUsage::Absent => (after(*start), r#""include_usage":true,"#),
            IncludeUsage::No { span } => (span.clone(), "true"),
            IncludeUsage::Yes | IncludeUsage::Other => return None,
        },
        StreamOptions::Other => return None,
    };
    Some(Change { place, text: Bytes::from_static(text.as_bytes()) })
}

/// The empty place behind the bracket at `offset`.
fn after(offset: usize) -> Range<usize> {
    offset + 1..offset + 1
}

#[cfg(test)]
mod tests;
