//! What comes from a replica as an event stream, judged event by event, and what of it goes to the client.

use bytes::Bytes;
use expediter_core::Failure;
use expediter_wire::sse::{Choices, ErrorFrame, Event, EventKind, EventSplitter, Finish, Usage, inspect};

use crate::problem::Problem;

/// A stream's state between two reads. It does no IO.
pub(super) struct Feed {
    splitter: EventSplitter,
    /// Ready to be sent on.
    out: Vec<u8>,
    /// Whether the usage chunk is kept from the client, who did not ask for it.
    hides_usage: bool,
    /// Choices that must end.
    choices: u64,
    /// Whether an event with a payload was sent on. From then on nothing can be retried.
    begun: bool,
    /// Whether an `id:` went to the client: stock clients then take even a comment for an event.
    id_sent: bool,
    finished_choices: u64,
    /// Events with a payload that were sent on.
    events: u64,
    usage: Usage,
    end: Option<FeedEnd>,
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FeedEnd {
    /// Every choice ended for a reason of its own, and the end was marked.
    Complete,
    /// The first event is an error: nothing was sent on.
    Rejected { error: ErrorFrame, payload: Bytes },
    /// The replica broke off. What was sent on, if anything, ends with an error event.
    Broken { failure: Failure, message: String },
}

impl Feed {
    /// The state before the first byte. `choices` is how many a complete answer ends.
    pub(super) fn new(event_bytes_max: usize, hides_usage: bool, choices: u64) -> Self {
        Self {
            splitter: EventSplitter::new(event_bytes_max),
            out: Vec::new(),
            hides_usage,
            choices,
            begun: false,
            id_sent: false,
            finished_choices: 0,
            events: 0,
            usage: Usage::default(),
            end: None,
        }
    }

    /// Takes in what came.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.end.is_some() {
            return;
        }
        let mut splitter = std::mem::replace(&mut self.splitter, EventSplitter::new(0));
        let pushed = splitter.push(bytes, |event| self.take_event(event));
        self.splitter = splitter;
        if let Err(error) = pushed {
            self.break_off(
                Failure::Malformed,
                format!("The replica sent an event that is too long: {error}."),
            );
        }
    }

    /// The replica's answer is over, as HTTP sees it: nothing follows.
    pub(super) fn close(&mut self) {
        if self.end.is_none() && self.splitter.tail_is_done() {
            self.take_event(Event { raw: b"data: [DONE]\n\n" });
        }
        if self.end.is_none() {
            self.break_off(Failure::Death, "The replica ended the answer before it was complete.".to_owned());
        }
    }

    /// The connection broke, or the replica was silent for too long.
    pub(super) fn break_off(&mut self, failure: Failure, message: String) {
        if self.end.is_some() {
            return;
        }
        if self.begun {
            self.out.extend_from_slice(&Problem::in_stream(&message));
        }
        self.end = Some(FeedEnd::Broken { failure, message });
    }

    /// Whether anything was let through, so that the answer can begin.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// What is to be sent on now.
    pub(super) fn take_out(&mut self) -> Option<Bytes> {
        (!self.out.is_empty()).then(|| std::mem::take(&mut self.out).into())
    }

    /// How it ended, once it has.
    pub(super) fn end(&self) -> Option<&FeedEnd> {
        self.end.as_ref()
    }

    /// What the engine counted.
    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    /// Events with a payload that were sent on; about one a token.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    fn take_event(&mut self, event: Event<'_>) {
        if self.end.is_some() {
            return;
        }
        match event.kind() {
            EventKind::Data(payload) => self.take_payload(event, &payload),
            // A heartbeat before the first output says nothing that the client could be told without an answer.
            EventKind::Comment if self.begun && !self.id_sent => self.out.extend_from_slice(event.raw),
            EventKind::Comment | EventKind::Empty => {}
        }
    }

    fn take_payload(&mut self, event: Event<'_>, payload: &[u8]) {
        let said = inspect(payload, !self.begun);
        if let Some(usage) = said.usage {
            self.usage.merge(usage);
        }
        if let Some(error) = said.error {
            self.take_error(event, payload, error);
            return;
        }
        if said.finishes.iter().any(|(_, finish)| *finish == Finish::Abort) {
            self.break_off(Failure::Lost, "The replica went down before the answer was complete.".to_owned());
            return;
        }
        self.finished_choices += said.finishes.len() as u64;
        if said.done {
            self.take_done(event);
            return;
        }
        if self.hides_usage && said.usage.is_some() && said.choices == Choices::Empty {
            return;
        }
        if !self.begun || event.raw.first() != Some(&b'd') {
            self.id_sent |= event.has_id();
        }
        self.begun = true;
        self.events += 1;
        self.out.extend_from_slice(event.raw);
    }

    /// `[DONE]` alone proves nothing: an engine that goes down writes it too.
    fn take_done(&mut self, event: Event<'_>) {
        if self.finished_choices < self.choices {
            self.break_off(Failure::Death, "The replica ended the answer before it was complete.".to_owned());
            return;
        }
        self.out.extend_from_slice(event.raw);
        self.end = Some(FeedEnd::Complete);
    }

    fn take_error(&mut self, event: Event<'_>, payload: &[u8], error: ErrorFrame) {
        if self.begun {
            // The engine's own words go on as they are, and nothing after them.
            self.out.extend_from_slice(event.raw);
            let failure = failure_of_error(&error).unwrap_or(Failure::ServerError { status: 501 });
            self.end = Some(FeedEnd::Broken { failure, message: error.message });
        } else {
            self.end = Some(FeedEnd::Rejected { error, payload: Bytes::copy_from_slice(payload) });
        }
    }
}

/// What an error inside a 200 means; `None` where it blames the request. Engines put the status that they would
/// have answered into its `code`.
pub(super) fn failure_of_error(error: &ErrorFrame) -> Option<Failure> {
    match error.code {
        Some(429 | 503) => Some(Failure::Overloaded { retry_after: None }),
        Some(400..=499) => None,
        Some(status) => Some(Failure::ServerError { status }),
        None => Some(Failure::ServerError { status: 500 }),
    }
}
