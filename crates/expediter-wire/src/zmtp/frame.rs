//! The frames of a connection, after its greeting.

use bytes::{Buf as _, Bytes, BytesMut};

use super::ZmtpError;

/// A frame as it stands on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) command: bool,
    /// The message goes on in the next frame.
    pub(crate) more: bool,
    pub(crate) body: Bytes,
}

/// Takes the next frame, when all of it is there. A longer body than `body_max` is refused on its announcement.
pub(crate) fn take(input: &mut BytesMut, body_max: usize) -> Result<Option<Frame>, ZmtpError> {
    let Some(&flags) = input.first() else { return Ok(None) };
    if flags & !(MORE | LONG | COMMAND) != 0 {
        return Err(ZmtpError::Flags(flags));
    }
    let head = if flags & LONG == 0 { 2 } else { 9 };
    if input.len() < head {
        return Ok(None);
    }
    let length = input[1..head].iter().fold(0_u64, |length, byte| (length << 8) | u64::from(*byte));
    let body_max = if flags & COMMAND == 0 { body_max } else { COMMAND_BYTES_MAX };
    let length = usize::try_from(length).ok().filter(|length| *length <= body_max);
    let length = length.ok_or(ZmtpError::TooLarge { limit: body_max })?;
    if input.len() < head + length {
        input.reserve(head + length - input.len());
        return Ok(None);
    }
    input.advance(head);
    let body = input.split_to(length).freeze();
    Ok(Some(Frame { command: flags & COMMAND != 0, more: flags & MORE != 0, body }))
}

/// Appends a message of these frames.
pub fn write_message(parts: &[impl AsRef<[u8]>], output: &mut Vec<u8>) {
    for (place, part) in parts.iter().enumerate() {
        let more = if place + 1 < parts.len() { MORE } else { 0 };
        write(more, part.as_ref(), output);
    }
}

/// Appends a command.
pub(crate) fn write_command(name: &str, data: &[u8], output: &mut Vec<u8>) {
    let length = u8::try_from(name.len()).expect("the names of commands are short");
    write(COMMAND, &[&[length], name.as_bytes(), data].concat(), output);
}

fn write(flags: u8, body: &[u8], output: &mut Vec<u8>) {
    if let Ok(length) = u8::try_from(body.len()) {
        output.extend([flags, length]);
    } else {
        output.push(flags | LONG);
        output.extend((body.len() as u64).to_be_bytes());
    }
    output.extend_from_slice(body);
}

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// A peer's READY holds its socket type, its identity (255 bytes at most) and what else it wants to say of itself.
const COMMAND_BYTES_MAX: usize = 4_096;
