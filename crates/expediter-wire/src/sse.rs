//! Event streams, as engines send them and as the WHATWG defines them.
//!
//! [`EventSplitter`] cuts bytes into events without looking into them, [`Event::kind`] says what an event
//! carries, [`inspect`] reads what matters in its payload. Source: HTML Living Standard, §9.2.5 and §9.2.6.

mod event;
mod inspection;
mod splitter;

pub use crate::frame::{Choices, ErrorFrame, Finish, Finishes, Usage};
pub use event::{Event, EventKind};
pub use inspection::{Inspection, inspect};
pub use splitter::{EventSplitter, EventTooLong};

#[cfg(test)]
mod tests;
