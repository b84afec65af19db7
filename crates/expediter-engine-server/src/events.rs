//! Streamed answers: the bytes of each event, and the body that sends them.
//!
//! The shapes are byte for byte those of vLLM 0.32.0, ids and words aside. An ordinary token is three copies into
//! one buffer: what stands before the word, the word, and what stands after it.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use expediter_engine_sim::FinishReason;
use tokio::sync::mpsc;

use crate::answer::{FINGERPRINT, finish_reason};
use crate::driver::{End, Output};
use crate::error;
use crate::generate::{Answer, Guard, PlannedCut};
use crate::reply::Cut;
use crate::request::{Endpoint, UsageEvents};

/// Turns what the engine says into events.
#[derive(Debug)]
pub(crate) struct Events {
    answer: Answer,
    /// What stands before the word, for each choice.
    prefixes: Vec<String>,
    /// Nothing but the word differs from token to token.
    plain: bool,
    begun: bool,
    open_choices: usize,
}

impl Events {
    pub(crate) fn new(answer: Answer) -> Self {
        let (generation, chat) = (&answer.generation, answer.generation.endpoint == Endpoint::Chat);
        let plain = generation.usage != UsageEvents::Everywhere && !generation.return_token_ids;
        let open_choices = answer.choices.len();
        let field = if chat { r#""delta":{"content":""# } else { r#""text":""# };
        let head = head(&answer);
        let prefixes =
            (0..open_choices).map(|index| format!(r#"{head}[{{"index":{index},{field}"#)).collect();
        Self { answer, prefixes, plain, begun: false, open_choices }
    }

    /// Appends the events that follow from this output.
    fn render(&mut self, output: Output, events: &mut VecDeque<Bytes>) {
        let failure = match output.end {
            Some(End::Lost) => Some(error::engine_lost_event()),
            Some(End::Refused) => Some(error::queue_full_event()),
            Some(End::Finished(_)) | None => None,
        };
        if let Some(failure) = failure {
            events.extend([failure.into(), DONE]);
            self.open_choices = 0;
            return;
        }
        let first = self.answer.choices[output.index].produced == 0;
        let word = self.answer.note(output);
        let chat = self.answer.generation.endpoint == Endpoint::Chat;
        if chat && !std::mem::replace(&mut self.begun, true) {
            (0..self.answer.choices.len()).for_each(|index| events.push_back(self.role(index)));
        }
        if output.end.is_some() {
            self.open_choices -= 1;
        }
        events.push_back(self.token(output.index, word, first));
        if self.open_choices == 0 {
            if self.answer.generation.usage != UsageEvents::Never {
                events.push_back(self.usage());
            }
            events.push_back(DONE);
        }
    }

    /// Whether every choice has ended.
    fn is_done(&self) -> bool {
        self.open_choices == 0
    }

    /// The event of a word, or of an end without one.
    fn token(&self, index: usize, word: Option<usize>, first: bool) -> Bytes {
        let (choice, prefix) = (&self.answer.choices[index], &self.prefixes[index]);
        let chat = self.answer.generation.endpoint == Endpoint::Chat;
        let mut event = String::with_capacity(prefix.len() + EVENT_REST);
        event.push_str(prefix);
        event.push_str(word.map_or("", |place| choice.words[place].escaped()));
        if self.plain && choice.finish.is_none() {
            event.push_str(if chat { CHAT_SUFFIX } else { COMPLETION_SUFFIX });
            return event.into();
        }
        event.push_str(if chat {
            r#""},"logprobs":null,"finish_reason":"#
        } else {
            r#"","logprobs":null,"finish_reason":"#
        });
        push_finish(&mut event, choice.finish, chat);
        if !chat {
            event.push_str(r#","prompt_token_ids":"#);
            self.push_prompt(&mut event, index, first);
        }
        event.push_str(r#","token_ids":"#);
        match word.filter(|_| self.answer.generation.return_token_ids) {
            Some(place) => write(&mut event, format_args!("[{}]", choice.words[place].id())),
            None => event.push_str("null"),
        }
        event.push_str("}]");
        self.push_running_usage(&mut event, index, choice.produced);
        if self.open_choices == 0 && self.answer.generation.usage == UsageEvents::Never {
            write(&mut event, format_args!(r#","system_fingerprint":"{FINGERPRINT}""#));
        }
        event.push_str("}\n\n");
        event.into()
    }

    /// The event that opens a choice of a chat. It leaves with the first token.
    fn role(&self, index: usize) -> Bytes {
        let mut event = head(&self.answer);
        write(
            &mut event,
            format_args!(
                r#"[{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]"#
            ),
        );
        self.push_running_usage(&mut event, index, 0);
        event.push_str(r#","prompt_token_ids":"#);
        self.push_prompt(&mut event, index, true);
        event.push_str(",\"prompt_text\":null}\n\n");
        event.into()
    }

    /// The event before the last, where it was asked for.
    fn usage(&self) -> Bytes {
        let usage = self.answer.usage();
        let (prompt, completion, cached) = (usage.prompt, usage.completion, usage.cached);
        let total = prompt + completion;
        let created = match self.answer.generation.endpoint {
            Endpoint::Chat => format!(r#","created_cache_tokens":{}"#, usage.created),
            Endpoint::Completions => String::new(),
        };
        let mut event = head(&self.answer);
        write(
            &mut event,
            format_args!(
                r#"[],"usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{completion},"prompt_tokens_details":{{"cached_tokens":{cached}{created}}}}},"system_fingerprint":"{FINGERPRINT}"}}"#
            ),
        );
        event.push_str("\n\n");
        event.into()
    }

    fn push_running_usage(&self, event: &mut String, index: usize, completion: usize) {
        if self.answer.generation.usage != UsageEvents::Everywhere {
            return;
        }
        let prompt = self.answer.prompt(index).ids.len();
        let total = prompt + completion;
        let details = match self.answer.generation.endpoint {
            Endpoint::Chat => r#","completion_tokens_details":null"#,
            Endpoint::Completions => "",
        };
        write(
            event,
            format_args!(
                r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{completion}{details}}}"#
            ),
        );
    }

    /// The prompt's ids in a choice's first event, where they were asked for.
    fn push_prompt(&self, event: &mut String, index: usize, first: bool) {
        if !(first && self.answer.generation.return_token_ids) {
            event.push_str("null");
            return;
        }
        for (place, id) in self.answer.prompt(index).ids.iter().enumerate() {
            write(event, format_args!("{}{id}", if place == 0 { '[' } else { ',' }));
        }
        event.push(']');
    }
}

/// The body of a streamed answer.
#[derive(Debug)]
pub(crate) struct EventStream {
    events: Events,
    outputs: mpsc::UnboundedReceiver<Output>,
    ready: VecDeque<Bytes>,
    guard: Guard,
    cut: Option<PlannedCut>,
    sent: u32,
    /// What was sent before the cut has been given the time to leave.
    flushed: bool,
}

impl EventStream {
    pub(crate) fn new(
        events: Events,
        outputs: mpsc::UnboundedReceiver<Output>,
        guard: Guard,
        cut: Option<PlannedCut>,
    ) -> Self {
        Self { events, outputs, ready: VecDeque::new(), guard, cut, sent: 0, flushed: false }
    }

    /// The next event, the end, or the cut that a fault has planned.
    pub(crate) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        if let Some(cut) = self.cut.as_ref().filter(|cut| self.sent >= cut.after) {
            if std::mem::replace(&mut self.flushed, true) {
                return Poll::Ready(Some(Err(cut.now())));
            }
            // The connection writes out what it has when a body is not ready, and drops it when one fails.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.sent += 1;
                return Poll::Ready(Some(Ok(event)));
            }
            if self.events.is_done() {
                return Poll::Ready(None);
            }
            let Some(output) = ready!(self.outputs.poll_recv(cx)) else { return Poll::Ready(Some(Err(Cut))) };
            if output.end.is_some() {
                self.guard.ended(output.index);
            }
            self.events.render(output, &mut self.ready);
        }
    }
}

/// What every event of an answer begins with, up to its choices.
fn head(answer: &Answer) -> String {
    let object = match answer.generation.endpoint {
        Endpoint::Chat => "chat.completion.chunk",
        Endpoint::Completions => "text_completion",
    };
    let quoted = |text: &str| serde_json::to_string(text).expect("a string is valid JSON");
    let (id, model, created) = (quoted(&answer.id), quoted(&answer.model), answer.created);
    format!(r#"data: {{"id":{id},"object":"{object}","created":{created},"model":{model},"choices":"#)
}

fn push_finish(event: &mut String, finish: Option<FinishReason>, chat: bool) {
    match finish {
        Some(reason) => write(event, format_args!(r#""{}","stop_reason":null"#, finish_reason(reason))),
        None if chat => event.push_str("null"),
        None => event.push_str(r#"null,"stop_reason":null"#),
    }
}

fn write(event: &mut String, text: std::fmt::Arguments<'_>) {
    event.write_fmt(text).expect("a string takes all that is written to it");
}

const CHAT_SUFFIX: &str = "\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";
const COMPLETION_SUFFIX: &str = "\",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null,\
                                 \"prompt_token_ids\":null,\"token_ids\":null}]}\n\n";
const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");
/// Room for a word and what follows it, without growing.
const EVENT_REST: usize = 192;
