//! What must hold for any bytes. Each function panics where it does not.
//!
//! The fuzz targets include this folder by path, which is why it has a `mod.rs`, and uses nothing of the test binary.

pub(crate) mod answer;
pub(crate) mod frame;
pub(crate) mod kv_events;
pub(crate) mod metrics;
pub(crate) mod request;
pub(crate) mod sse;
pub(crate) mod zmtp;

/// Cuts `bytes` into pieces of the lengths that `lengths` repeats; a length of 0 is an empty piece.
pub(crate) fn pieces<'a>(mut bytes: &'a [u8], lengths: &[u8]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    let mut lengths = lengths.iter().copied().filter(|_| lengths.iter().any(|length| *length > 0)).cycle();
    while !bytes.is_empty() {
        let length = lengths.next().map_or(bytes.len(), usize::from).min(bytes.len());
        let (piece, rest) = bytes.split_at(length);
        pieces.push(piece);
        bytes = rest;
    }
    pieces
}
