//! The splitter against a parser that has the whole stream before it.

use expediter_wire::sse::{EventKind, EventSplitter};

/// Splits a stream in pieces. After each piece, exactly the events that are complete have been handed on.
pub(crate) fn check(stream: &[u8], piece_lengths: &[u8]) {
    let mut splitter = EventSplitter::new(usize::MAX);
    let (mut payloads, mut raw, mut seen) = (Vec::new(), Vec::new(), 0);
    for piece in super::pieces(stream, piece_lengths) {
        seen += piece.len();
        let pushed = splitter.push(piece, |event| {
            raw.extend(normal(event.raw));
            if let EventKind::Data(payload) = event.kind() {
                payloads.push(payload.into_owned());
            }
        });
        pushed.expect("there is no limit");
        assert_eq!(payloads, payloads_of(&stream[..seen]), "after {seen} bytes");
    }
    raw.extend(normal(splitter.tail()));
    let marked = normal(stream);
    let plain = marked.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&marked);
    assert!(raw == plain || raw == marked, "no byte but line ends is lost or made up");
}

/// Checks that an event longer than the limit is refused whatever the pieces, and that none longer is handed on.
pub(crate) fn check_limit(stream: &[u8], piece_lengths: &[u8], limit: usize) {
    let run = |lengths: &[u8]| {
        let mut splitter = EventSplitter::new(limit);
        let mut events = 0;
        let fits = super::pieces(stream, lengths).into_iter().all(|piece| {
            let pushed = splitter.push(piece, |event| {
                assert!(event.raw.len() <= limit);
                events += 1;
            });
            assert!(splitter.tail().len() <= limit);
            pushed.is_ok()
        });
        (fits, events)
    };
    // A blank line that is cut inside CR LF makes an event one byte shorter: without CR both must agree.
    let (in_pieces, whole) = (run(piece_lengths), run(&[]));
    assert!(stream.contains(&b'\r') || in_pieces == whole);
}

/// The payloads of a stream by the standard: decode, cut into lines, interpret them one after another. Payloads of
/// nothing but space are left out.
pub(crate) fn payloads_of(stream: &[u8]) -> Vec<Vec<u8>> {
    let (mut payloads, mut data) = (Vec::new(), Vec::<Vec<u8>>::new());
    for line in lines(stream.strip_prefix(BYTE_ORDER_MARK).unwrap_or(stream)) {
        if line.is_empty() {
            let payload = std::mem::take(&mut data).join(&b'\n');
            if !payload.trim_ascii().is_empty() {
                payloads.push(payload);
            }
        } else if line == b"data" {
            data.push(Vec::new());
        } else if let Some(value) = line.strip_prefix(b"data:") {
            data.push(value.strip_prefix(b" ").unwrap_or(value).to_vec());
        }
    }
    payloads
}

/// The lines that have an end.
fn lines(stream: &[u8]) -> Vec<Vec<u8>> {
    let (mut lines, mut line) = (Vec::new(), Vec::new());
    for (at, byte) in stream.iter().enumerate() {
        match byte {
            b'\n' if at > 0 && stream[at - 1] == b'\r' => {}
            b'\n' | b'\r' => lines.push(std::mem::take(&mut line)),
            _ => line.push(*byte),
        }
    }
    lines
}

/// The bytes with each line end as LF.
fn normal(stream: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for (at, byte) in stream.iter().enumerate() {
        match byte {
            b'\n' if at > 0 && stream[at - 1] == b'\r' => {}
            b'\r' => text.push(b'\n'),
            _ => text.push(*byte),
        }
    }
    text
}

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";
