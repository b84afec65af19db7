//! A ZMTP connection of any bytes.

use expediter_wire::zmtp::{Event, Role, Session};

use super::pieces;

/// Reads as each kind of socket. Events do not depend on how the bytes were cut.
pub(crate) fn check(bytes: &[u8], lengths: &[u8]) {
    for role in [Role::Publisher, Role::Subscriber, Role::Router, Role::Dealer] {
        assert_eq!(read(role, &pieces(bytes, lengths)), read(role, &[bytes]), "{role:?}");
    }
}

/// The events, whether it failed, and what was sent.
fn read(role: Role, pieces: &[&[u8]]) -> (Vec<Event>, bool, Vec<u8>) {
    let mut session = Session::new(role, 1_000);
    let (mut events, mut failed) = (Vec::new(), false);
    for piece in pieces {
        session.receive(piece);
        loop {
            match session.poll_event() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(_) => failed = true,
            }
            if failed {
                return (events, failed, session.take_output());
            }
        }
    }
    (events, failed, session.take_output())
}
