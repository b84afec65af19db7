//! Batches of KV events.

#![no_main]

#[path = "../../crates/expediter-wire/tests/it/invariants/mod.rs"]
#[allow(dead_code, reason = "each target calls its part")]
mod invariants;

libfuzzer_sys::fuzz_target!(|batch: &[u8]| {
    invariants::kv_events::check(batch);
});
