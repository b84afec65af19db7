//! HTTP answers, cut into pieces. The first bytes of the input choose the pieces, and whether a good head is put
//! before the rest.

#![no_main]

#[path = "../../crates/expediter-wire/tests/it/invariants/mod.rs"]
#[allow(dead_code, reason = "each target calls its part")]
mod invariants;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&[a, b, head], rest)) = input.split_first_chunk() else { return };
    if head % 2 == 0 {
        invariants::answer::check(rest, &[a, b]);
    } else {
        let answer = [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", rest].concat();
        invariants::answer::check(&answer, &[a, b]);
    }
});
