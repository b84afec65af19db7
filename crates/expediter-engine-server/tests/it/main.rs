//! The replica over its sockets: beside captures of a real engine, and under every fault.

#![expect(clippy::unwrap_used, reason = "helpers of tests may stop them")]

mod behaviour;
mod client;
mod conformance;
mod faults;
mod kv_events;
mod operation;
mod subscriber;
