//! Event streams, cut into pieces, and what their frames say. The first bytes of the input choose the pieces and
//! the limit of an event.

#![no_main]

#[path = "../../crates/expediter-wire/tests/it/invariants/mod.rs"]
#[allow(dead_code, reason = "each target calls its part")]
mod invariants;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&[a, b, limit], stream)) = input.split_first_chunk() else { return };
    invariants::sse::check(stream, &[a, b]);
    invariants::sse::check_limit(stream, &[b, a, 1], usize::from(limit));
    for payload in invariants::sse::payloads_of(stream) {
        invariants::frame::check(&payload);
    }
});
