//! The kit of the black-box tests: replicas whose bytes and times a test controls, the real gateway
//! binary, and clients that read and write raw bytes.
//!
//! A test usually reads so:
//!
//! ```ignore
//! let a = Replica::start("m-8b");
//! a.on_post(script::sse(fixture("S02.sse")));
//! let gateway = Gateway::with(&[&a]).start();
//! let answer = gateway.chat_stream();
//! assert_eq!(sse::payloads(&answer.body), …);
//! ```
//!
//! Scripts, replicas and clients run on plain threads with blocking sockets, one thread a
//! connection: what a script does is what happens on the wire, in that order.

pub mod client;
pub mod gateway;
pub mod h2;
pub mod replica;
pub mod script;
pub mod sse;
pub mod tls;
pub mod wait;

/// A file of `tests/fixtures`.
pub fn fixture(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
