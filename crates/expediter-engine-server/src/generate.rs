//! Generation: from the request's body to sequences in the engine, and from their tokens to an answer.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use expediter_engine_sim::{FinishReason, Request as Sequence};
use expediter_types::{BlockHash, Prng, Prompt, RequestId, Tokens};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Request, Response, StatusCode};
use tokio::sync::mpsc;

use crate::answer;
use crate::connection::Connection;
use crate::driver::{End, Input, Output, Sink};
use crate::error::ErrorAnswer;
use crate::events::{EventStream, Events};
use crate::fault::{CutBy, Fault};
use crate::replica::Shared;
use crate::reply::{self, Content, Cut};
use crate::request::{Endpoint, Generation, Model, PromptAsk, Sampling};
use crate::vocabulary::{self, Word};

/// Answers a request for generation. Dropping the future, or the answer's body, aborts it in the engine.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    endpoint: Endpoint,
    connection: Connection,
    request: Request<Incoming>,
) -> Result<Response<Content>, Cut> {
    let is_json = is_json(&request);
    let header_id = request.headers().get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let Ok(body) = request.into_body().collect().await else { return Err(Cut) };
    let cut = match shared.fault() {
        Fault::Status { status } => return Ok(reply::error(with_status(status))),
        Fault::Cut { after, by } => Some((after, by)),
        Fault::Ok
        | Fault::Refuse
        | Fault::Crash
        | Fault::Hang
        | Fault::Freeze
        | Fault::Slow { .. }
        | Fault::StaleMetrics
        | Fault::Unhealthy
        | Fault::Abort
        | Fault::Error => None,
    };
    if !is_json {
        return Ok(reply::error(ErrorAnswer::unsupported_media_type()));
    }
    let model = Model { name: &shared.settings.model, max_model_len: shared.settings.max_model_len };
    let generation = match Generation::parse(&body.to_bytes(), endpoint, model) {
        Ok(generation) => generation,
        Err(error) => return Ok(reply::error(error)),
    };
    let job = Job::begin(shared, generation, header_id);
    let cut = cut.map(|(after, by)| PlannedCut { after, by, connection });
    if job.answer.generation.stream {
        let Job { answer, outputs, guard } = job;
        let stream = EventStream::new(Events::new(answer), outputs, guard, cut);
        let events = Content::Events(Box::new(stream));
        Ok(reply::response(StatusCode::OK, Some("text/event-stream; charset=utf-8"), events))
    } else {
        whole(job, cut).await
    }
}

/// Waits for every token, then answers at once.
async fn whole(mut job: Job, cut: Option<PlannedCut>) -> Result<Response<Content>, Cut> {
    let mut tokens = 0;
    while job.guard.is_open() {
        if let Some(cut) = cut.as_ref().filter(|cut| tokens >= cut.after) {
            return Err(cut.now());
        }
        let Some(output) = job.outputs.recv().await else { return Err(Cut) };
        if output.end == Some(End::Lost) {
            return Ok(reply::error(ErrorAnswer::engine_lost()));
        }
        job.answer.note(output);
        if output.end.is_some() {
            job.guard.ended(output.index);
        }
        tokens += 1;
    }
    Ok(reply::json(StatusCode::OK, answer::render(&job.answer)))
}

/// A generation in the engine.
struct Job {
    answer: Answer,
    outputs: mpsc::UnboundedReceiver<Output>,
    guard: Guard,
}

/// What is known of the answer so far.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) generation: Generation,
    pub(crate) id: String,
    /// Unix seconds.
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) choices: Vec<Choice>,
    /// Tokens in a KV block.
    block_size: u64,
}

/// One of the answers to one of the prompts.
#[derive(Debug)]
pub(crate) struct Choice {
    /// Everything it will say.
    pub(crate) words: Vec<Word>,
    /// How many of the words are out.
    pub(crate) produced: usize,
    pub(crate) cached: u64,
    pub(crate) finish: Option<FinishReason>,
}

/// Token counts over all choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: u64,
    pub(crate) completion: u64,
    pub(crate) cached: u64,
    /// Prompt tokens whose blocks were not cached before.
    pub(crate) created: u64,
}

impl Job {
    /// Hands every choice to the engine.
    fn begin(shared: &Arc<Shared>, generation: Generation, header_id: Option<String>) -> Self {
        let (sender, outputs) = mpsc::unbounded_channel();
        let count = generation.prompts.len() * generation.n;
        let first = shared.request_ids(count);
        let mut rng = Prng::new(shared.seed ^ first.0.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let prefix = match generation.endpoint {
            Endpoint::Chat => "chatcmpl-",
            Endpoint::Completions => "cmpl-",
        };
        let id = header_id
            .or_else(|| generation.request_id.clone())
            .unwrap_or_else(|| format!("{:016x}", rng.bits()));
        let salt = generation
            .cache_salt
            .as_deref()
            .map_or(0, |salt| BlockHash::root(0).then(&vocabulary::ids(salt).collect::<Vec<_>>()).0);
        let guard = Guard::new(shared, first, count);
        let (block_size, answer_tokens_mean) =
            (shared.settings.engine.block_size, shared.settings.answer_tokens_mean);
        let mut choices = Vec::with_capacity(count);
        for prompt in &generation.prompts {
            let hash = BlockHash::root(salt).then(&prompt.ids).0;
            for sibling in 0..generation.n as u64 {
                let mut draws = match generation.sampling {
                    Sampling::Free => Prng::new(rng.bits()),
                    Sampling::Greedy => Prng::new(hash),
                    Sampling::Seeded(seed) => Prng::new(hash ^ seed.rotate_left(32) ^ sibling),
                };
                let (words, ends_with) = draw(prompt, &generation, answer_tokens_mean, &mut draws);
                let output: Vec<u32> = words.iter().map(|word| word.id()).collect();
                let request = Sequence {
                    id: RequestId(first.0 + choices.len() as u64),
                    prompt: Prompt::with_continuation(&prompt.ids, &output, block_size, salt),
                    output: Tokens(words.len() as u64),
                    ends_with,
                    adapter: None,
                    priority: 0,
                };
                let sink = Sink { index: choices.len(), outputs: sender.clone() };
                // An error means that the replica is being shut down; then this connection is, too.
                _ = shared.inputs.send(Input::Arrive { request, sink });
                choices.push(Choice { words, produced: 0, cached: 0, finish: None });
            }
        }
        let answer = Answer {
            id: format!("{prefix}{id}"),
            created: shared.clock.unix().as_secs(),
            model: shared.settings.model.clone(),
            choices,
            block_size: u64::from(block_size.0.get()),
            generation,
        };
        Self { answer, outputs, guard }
    }
}

impl Answer {
    /// Takes in what the engine said of a choice, and returns the place of the new word, if there is one.
    pub(crate) fn note(&mut self, output: Output) -> Option<usize> {
        let choice = &mut self.choices[output.index];
        let produced = usize::try_from(output.produced).unwrap_or(choice.words.len());
        let fresh = (produced > choice.produced).then(|| produced - 1);
        choice.produced = produced;
        choice.cached = output.cached;
        if let Some(End::Finished(reason)) = output.end {
            choice.finish = Some(reason);
        }
        fresh
    }

    /// The prompt of a choice.
    pub(crate) fn prompt(&self, index: usize) -> &PromptAsk {
        &self.generation.prompts[index / self.generation.n]
    }

    pub(crate) fn usage(&self) -> Usage {
        let prompts = &self.generation.prompts;
        // Siblings find the blocks of the first: what was there before they came is what the first one found.
        let cached = || self.choices.iter().step_by(self.generation.n).map(|choice| choice.cached);
        let full = prompts.iter().map(|prompt| prompt.ids.len() as u64 / self.block_size * self.block_size);
        Usage {
            prompt: prompts.iter().map(|prompt| prompt.ids.len() as u64).sum(),
            completion: self.choices.iter().map(|choice| choice.produced as u64).sum(),
            cached: cached().sum(),
            created: full.zip(cached()).map(|(full, cached)| full.saturating_sub(cached)).sum(),
        }
    }
}

/// Aborts in the engine what has not ended when it is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    shared: Arc<Shared>,
    ids: Range<u64>,
    open: Vec<bool>,
    open_count: usize,
}

impl Guard {
    fn new(shared: &Arc<Shared>, first: RequestId, count: usize) -> Self {
        shared.in_flight.fetch_add(1, Ordering::Relaxed);
        let ids = first.0..first.0 + count as u64;
        Self { shared: Arc::clone(shared), ids, open: vec![true; count], open_count: count }
    }

    pub(crate) fn ended(&mut self, index: usize) {
        self.open_count -= usize::from(std::mem::take(&mut self.open[index]));
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open_count > 0
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        for (id, _) in self.ids.clone().zip(&self.open).filter(|(_, open)| **open) {
            _ = self.shared.inputs.send(Input::Abort(RequestId(id)));
        }
    }
}

/// Where an answer is to break off.
#[derive(Debug)]
pub(crate) struct PlannedCut {
    pub(crate) after: u32,
    by: CutBy,
    connection: Connection,
}

impl PlannedCut {
    /// The error that ends the connection.
    pub(crate) fn now(&self) -> Cut {
        if self.by == CutBy::Rst {
            self.connection.end_by_reset();
        }
        Cut
    }
}

/// Everything that an answer will say, and why no more.
fn draw(
    ask: &PromptAsk,
    generation: &Generation,
    mean: Option<u32>,
    rng: &mut Prng,
) -> (Vec<Word>, FinishReason) {
    let (length, ends_with) = length(ask, generation, mean, rng);
    ((0..length).map(|_| Word::draw(rng)).collect(), ends_with)
}

/// How many tokens an answer has, and why no more.
fn length(
    ask: &PromptAsk,
    generation: &Generation,
    mean: Option<u32>,
    rng: &mut Prng,
) -> (u64, FinishReason) {
    let Some(mean) = mean.filter(|_| !generation.ignore_eos) else {
        return (ask.output_max, FinishReason::Length);
    };
    // Geometric, by inversion: each token is the last with probability 1/mean.
    let going_on = 1.0 - 1.0 / f64::from(mean.max(2));
    let drawn = (1.0 - rng.unit()).ln() / going_on.ln();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, and is not negative"
    )]
    let drawn = (drawn as u64 + 1).max(generation.min_tokens);
    if drawn <= ask.output_max { (drawn, FinishReason::Stop) } else { (ask.output_max, FinishReason::Length) }
}

fn is_json(request: &Request<Incoming>) -> bool {
    let content_type =
        request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

fn with_status(status: u16) -> ErrorAnswer {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = status.canonical_reason().unwrap_or("Error");
    ErrorAnswer::new(status, kind, None, "This is what the fault of this replica says.")
}
