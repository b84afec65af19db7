//! ZMTP 3, the protocol of ZeroMQ sockets, without IO: greeting, the mechanism NULL, messages of several frames,
//! subscriptions and heartbeats. As much as KV events need; why not a library: `docs/adr/0004-zeromq.md`.
//!
//! A peer is untrusted: the lengths that it announces are checked before anything is kept for them.
//! Source: <https://rfc.zeromq.org/spec/23/> (3.0), <https://rfc.zeromq.org/spec/37/> (3.1).

mod frame;
mod session;

pub use frame::write_message;
pub use session::{Event, Role, Session, ZmtpError};

#[cfg(test)]
mod tests;
