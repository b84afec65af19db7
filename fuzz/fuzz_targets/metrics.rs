//! Metrics pages.

#![no_main]

#[path = "../../crates/expediter-wire/tests/it/invariants/mod.rs"]
#[allow(dead_code, reason = "each target calls its part")]
mod invariants;

libfuzzer_sys::fuzz_target!(|page: &[u8]| {
    invariants::metrics::check(page);
});
