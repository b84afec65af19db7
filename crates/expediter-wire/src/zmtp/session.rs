//! One end of a connection: bytes in, events out, and bytes to send.

use bytes::{Bytes, BytesMut};

use super::frame::{self, Frame};

/// Which kind of socket this end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends to subscribers what they subscribed to.
    Publisher,
    /// Receives from publishers.
    Subscriber,
    /// Answers each peer by itself.
    Router,
    /// Asks, and takes any number of answers.
    Dealer,
}

/// What a peer did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It can be sent messages from now on.
    Ready,
    /// It wants messages whose first frame begins so.
    Subscribe(Bytes),
    /// It no longer wants them.
    Unsubscribe(Bytes),
    /// It sent a message, of one frame at least.
    Message(Vec<Bytes>),
}

/// Why a connection cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZmtpError {
    /// Something else speaks there.
    #[error("the peer does not speak ZMTP 3")]
    Greeting,
    /// It wants passwords or certificates.
    #[error("the peer asks for the mechanism {0:?}: only NULL is spoken")]
    Mechanism(String),
    /// Two sockets that have nothing to say to each other.
    #[error("the peer is a socket of type {0:?}")]
    SocketType(String),
    /// It refuses us.
    #[error("the peer refuses: {0:?}")]
    Refused(String),
    /// Bits that no version uses.
    #[error("a frame with the flags {0:#04x}")]
    Flags(u8),
    /// A frame or a message that is longer than expected.
    #[error("a message of more than {limit} bytes")]
    TooLarge {
        /// What is accepted.
        limit: usize,
    },
    /// A message of too many frames.
    #[error("a message of more than {PARTS_MAX} frames")]
    Parts,
    /// A command that does not hold what it should.
    #[error("a malformed command")]
    Command,
}

/// One end of a connection. The caller hands in what it reads, drains `poll_event`, and writes `take_output`.
#[derive(Debug)]
pub struct Session {
    role: Role,
    message_bytes_max: usize,
    phase: Phase,
    input: BytesMut,
    output: Vec<u8>,
    /// The message under way.
    parts: Vec<Bytes>,
    parts_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Greeting,
    Handshake,
    Open,
}

impl Session {
    /// A connection that has just been made. Messages longer than `message_bytes_max` end it.
    pub fn new(role: Role, message_bytes_max: usize) -> Self {
        let mut output = vec![0; GREETING_BYTES];
        output[0] = 0xff;
        output[9] = 0x7f;
        output[10] = 3;
        output[12..16].copy_from_slice(b"NULL");
        Self {
            role,
            message_bytes_max,
            phase: Phase::Greeting,
            input: BytesMut::new(),
            output,
            parts: Vec::new(),
            parts_bytes: 0,
        }
    }

    /// Takes in what the peer sent.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// The next event, if what was received makes one. After an error the connection is of no use.
    pub fn poll_event(&mut self) -> Result<Option<Event>, ZmtpError> {
        if self.phase == Phase::Greeting && !self.take_greeting()? {
            return Ok(None);
        }
        while let Some(frame) = frame::take(&mut self.input, self.message_bytes_max)? {
            let event = match (self.phase, frame.command) {
                (Phase::Open, true) => self.command(&frame.body)?,
                (Phase::Open, false) => self.part(frame)?,
                (Phase::Greeting | Phase::Handshake, true) => Some(self.handshake(&frame.body)?),
                (Phase::Greeting | Phase::Handshake, false) => return Err(ZmtpError::Greeting),
            };
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    /// What is to be sent before anything else.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Asks for messages whose first frame begins so.
    pub fn subscribe(&mut self, topic: &[u8]) {
        frame::write_message(&[[b"\x01", topic].concat()], &mut self.output);
    }

    /// Whether the peer's greeting is complete. Wrong ones are noticed at their first wrong byte.
    fn take_greeting(&mut self) -> Result<bool, ZmtpError> {
        let input = &self.input;
        let is = |at: usize, test: fn(u8) -> bool| input.get(at).is_none_or(|byte| test(*byte));
        if !(is(0, |byte| byte == 0xff) && is(9, |byte| byte & 1 == 1) && is(10, |major| major >= 3)) {
            return Err(ZmtpError::Greeting);
        }
        if input.len() < GREETING_BYTES {
            return Ok(false);
        }
        let greeting = self.input.split_to(GREETING_BYTES);
        let mechanism = String::from_utf8_lossy(&greeting[12..32]);
        let mechanism = mechanism.trim_end_matches('\0');
        if mechanism != "NULL" {
            return Err(ZmtpError::Mechanism(mechanism.to_owned()));
        }
        self.phase = Phase::Handshake;
        let socket_type = self.role.name();
        let length = u32::try_from(socket_type.len()).expect("the names of socket types are short");
        let property = [b"\x0bSocket-Type", &length.to_be_bytes()[..], socket_type.as_bytes()].concat();
        frame::write_command("READY", &property, &mut self.output);
        Ok(true)
    }

    /// The peer's first command.
    fn handshake(&mut self, command: &[u8]) -> Result<Event, ZmtpError> {
        let (name, data) = split_command(command)?;
        match name {
            b"READY" => {
                let socket_type = property(data, "Socket-Type").ok_or(ZmtpError::Command)?;
                let socket_type = String::from_utf8_lossy(socket_type);
                if !self.role.peers().contains(&socket_type.as_ref()) {
                    return Err(ZmtpError::SocketType(socket_type.into_owned()));
                }
                self.phase = Phase::Open;
                Ok(Event::Ready)
            }
            b"ERROR" => Err(ZmtpError::Refused(String::from_utf8_lossy(data.get(1..).unwrap_or(&[])).into())),
            _ => Err(ZmtpError::Command),
        }
    }

    /// A command on an open connection. Of unknown ones nothing follows, as the standard wants it.
    fn command(&mut self, command: &Bytes) -> Result<Option<Event>, ZmtpError> {
        let (name, data) = split_command(command)?;
        Ok(match name {
            b"PING" => {
                // Two bytes say how long the peer waits, up to sixteen are to be sent back.
                let context =
                    data.get(2..).filter(|context| context.len() <= 16).ok_or(ZmtpError::Command)?;
                frame::write_command("PONG", context, &mut self.output);
                None
            }
            b"SUBSCRIBE" => Some(Event::Subscribe(command.slice_ref(data))),
            b"CANCEL" => Some(Event::Unsubscribe(command.slice_ref(data))),
            _ => None,
        })
    }

    /// The next part of a message. To a publisher it may be a subscription: a byte 1 or 0, and the topic.
    fn part(&mut self, frame: Frame) -> Result<Option<Event>, ZmtpError> {
        self.parts_bytes += frame.body.len();
        if self.parts_bytes > self.message_bytes_max {
            return Err(ZmtpError::TooLarge { limit: self.message_bytes_max });
        }
        if self.parts.len() == PARTS_MAX {
            return Err(ZmtpError::Parts);
        }
        self.parts.push(frame.body);
        if frame.more {
            return Ok(None);
        }
        self.parts_bytes = 0;
        let parts = std::mem::take(&mut self.parts);
        if self.role != Role::Publisher {
            return Ok(Some(Event::Message(parts)));
        }
        let topic = |part: &Bytes| part.slice(1..);
        Ok(match &parts[..] {
            [part] if part.first() == Some(&1) => Some(Event::Subscribe(topic(part))),
            [part] if part.first() == Some(&0) => Some(Event::Unsubscribe(topic(part))),
            _ => None,
        })
    }
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::Publisher => "PUB",
            Self::Subscriber => "SUB",
            Self::Router => "ROUTER",
            Self::Dealer => "DEALER",
        }
    }

    /// Socket types at the other end.
    const fn peers(self) -> &'static [&'static str] {
        match self {
            Self::Publisher => &["SUB", "XSUB"],
            Self::Subscriber => &["PUB", "XPUB"],
            Self::Router => &["REQ", "DEALER", "ROUTER"],
            Self::Dealer => &["REP", "DEALER", "ROUTER"],
        }
    }
}

fn split_command(command: &[u8]) -> Result<(&[u8], &[u8]), ZmtpError> {
    let (length, rest) = command.split_first().ok_or(ZmtpError::Command)?;
    rest.split_at_checked(usize::from(*length)).ok_or(ZmtpError::Command)
}

/// The value of a property of a READY. Names count without case.
fn property<'a>(mut data: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    loop {
        let (length, rest) = data.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let (length, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        if name.eq_ignore_ascii_case(wanted.as_bytes()) {
            return Some(value);
        }
        data = rest;
    }
}

const GREETING_BYTES: usize = 64;
/// KV events have four frames at most.
const PARTS_MAX: usize = 16;
