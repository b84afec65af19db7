//! A reader of event streams by the WHATWG rules ("9.2.6 Interpreting an event stream"), written for
//! the tests alone: it shares no code with the gateway, so that the two cannot agree on a mistake.

/// One dispatched event, or a frame that is none and yet matters to clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The `data` lines joined by `\n`; `None` where the frame had none.
    pub data: Option<String>,
    pub event: Option<String>,
    pub id: Option<String>,
    pub retry: Option<String>,
    pub comments: Vec<String>,
}

/// All frames of a stream that an empty line ended. What follows the last empty line is dropped, as
/// the rules say; [`unfinished`] returns it.
pub fn frames(body: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut frame = Frame::default();
    let mut any = false;
    for line in lines(body).0 {
        if line.is_empty() {
            if any {
                frames.push(std::mem::take(&mut frame));
            }
            any = false;
            continue;
        }
        any = true;
        let line = String::from_utf8(line).expect("the stream is UTF-8");
        if let Some(comment) = line.strip_prefix(':') {
            frame.comments.push(comment.to_owned());
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
        match field {
            "data" => match &mut frame.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(&value);
                }
                None => frame.data = Some(value),
            },
            "event" => frame.event = Some(value),
            "id" => frame.id = Some(value),
            "retry" => frame.retry = Some(value),
            _ => {}
        }
    }
    frames
}

/// The non-empty `data` payloads in order: two streams with equal lists are event-equal.
pub fn payloads(body: &[u8]) -> Vec<String> {
    frames(body).into_iter().filter_map(|frame| frame.data).filter(|data| !data.is_empty()).collect()
}

/// Fails where the stream holds a frame that breaks stock clients: one without a payload that is no
/// comment, or any `id`, `retry` or unnamed emptiness.
pub fn assert_clean(body: &[u8]) {
    for frame in frames(body) {
        assert_eq!(frame.id, None, "an id reached the client: {frame:?}");
        assert_eq!(frame.retry, None, "a retry reached the client: {frame:?}");
        let only_comments = frame.data.is_none() && frame.event.is_none();
        let payload = frame.data.as_deref().is_some_and(|data| !data.is_empty());
        assert!(only_comments || payload, "a frame without data reached the client: {frame:?}");
    }
}

/// What stands after the last empty line.
pub fn unfinished(body: &[u8]) -> Vec<u8> {
    lines(body).1
}

/// The texts of the chat deltas (or completion texts) joined.
pub fn text(body: &[u8]) -> String {
    json_payloads(body)
        .iter()
        .filter_map(|chunk| {
            let choice = &chunk["choices"][0];
            choice["delta"]["content"].as_str().or(choice["text"].as_str()).map(str::to_owned)
        })
        .collect()
}

/// All payloads but `[DONE]`, parsed.
pub fn json_payloads(body: &[u8]) -> Vec<serde_json::Value> {
    payloads(body)
        .iter()
        .filter(|payload| *payload != "[DONE]")
        .map(|payload| serde_json::from_str(payload).unwrap_or_else(|error| panic!("{error} in {payload:?}")))
        .collect()
}

/// The distinct `id`s of the stream's chunks.
pub fn ids(body: &[u8]) -> Vec<String> {
    let mut ids: Vec<String> =
        json_payloads(body).iter().filter_map(|chunk| chunk["id"].as_str().map(str::to_owned)).collect();
    ids.sort();
    ids.dedup();
    ids
}

/// Fails unless the stream ends in one well-formed error event and nothing after it but, perhaps,
/// `[DONE]`; returns the error object. `before` payloads must precede it, exactly.
pub fn assert_ends_in_error(body: &[u8], before: &[String]) -> serde_json::Value {
    let mut payloads = payloads(body);
    if payloads.last().is_some_and(|last| last == "[DONE]") {
        payloads.pop();
    }
    let last = payloads.pop().expect("an error event");
    assert_eq!(payloads, before, "what came before the error event");
    let error =
        serde_json::from_str::<serde_json::Value>(&last).expect("the last event is JSON")["error"].clone();
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "no message: {last}");
    assert!(error["type"].as_str().is_some_and(|kind| !kind.is_empty()), "no type: {last}");
    assert!(!error["code"].is_null(), "no code: {last}");
    assert_eq!(unfinished(body), b"", "bytes after the last event");
    error
}

/// Lines of a stream that ended with CR, LF or CRLF, without a leading byte order mark; and the
/// rest after the last empty line.
fn lines(body: &[u8]) -> (Vec<Vec<u8>>, Vec<u8>) {
    let body = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
    let (mut lines, mut start, mut at, mut after_empty) = (Vec::new(), 0, 0, 0);
    while at < body.len() {
        let width = match body[at] {
            b'\r' if body.get(at + 1) == Some(&b'\n') => 2,
            b'\r' | b'\n' => 1,
            _ => {
                at += 1;
                continue;
            }
        };
        lines.push(body[start..at].to_vec());
        let empty = at == start;
        at += width;
        start = at;
        if empty {
            after_empty = at;
        }
    }
    (lines, body[after_empty..].to_vec())
}
