//! Request bodies: what is read, and what an edit changes.

#![no_main]

#[path = "../../crates/expediter-wire/tests/it/invariants/mod.rs"]
#[allow(dead_code, reason = "each target calls its part")]
mod invariants;

libfuzzer_sys::fuzz_target!(|body: &[u8]| {
    invariants::request::check(body);
});
