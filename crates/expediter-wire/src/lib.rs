//! Bytes to values and back: OpenAI JSON, SSE, HTTP/1.1 answers, engine metrics, KV events, traces.
//!
//! Nothing here does IO or reads a clock, and nothing here panics on any bytes: what arrives from a client or
//! from a replica is untrusted. Text that passes through is never rebuilt; readers find what the gateway needs
//! and leave the rest where it is.

#![expect(clippy::doc_markdown, reason = "OpenAI and CPython are names, not items")]

pub mod answer;
pub mod completion;
pub mod error;
pub mod frame;
mod json;
pub mod kv_events;
pub mod metrics;
pub mod models;
mod number;
pub mod request;
pub mod sse;
pub mod trace;
pub mod zmtp;
