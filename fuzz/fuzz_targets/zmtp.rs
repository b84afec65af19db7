//! ZMTP connections, cut into pieces. The first bytes of the input choose the pieces.

#![no_main]

#[path = "../../crates/expediter-wire/tests/it/invariants/mod.rs"]
#[allow(dead_code, reason = "each target calls its part")]
mod invariants;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&[a, b], bytes)) = input.split_first_chunk() else { return };
    invariants::zmtp::check(bytes, &[a, b]);
});
