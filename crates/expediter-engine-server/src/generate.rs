//! Generation: from the request's body to sequences in the engine, and from their tokens to an answer.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use expediter_engine_sim::{FinishReason, Request as Sequence};
use expediter_types::{BlockHash, Prng, Prompt, RequestId, Tokens};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use tokio::sync::{mpsc, oneshot};

use crate::answer;
use crate::connection::Connection;
use crate::driver::{End, Input, Output, Sink};
use crate::error::ErrorAnswer;
use crate::events::{EventStream, Events};
use crate::fault::{CutBy, Fault, Termination};
use crate::kv_events::Content as EventContent;
use crate::replica::Shared;
use crate::reply::{self, Content, Cut};
use crate::request::{Endpoint, Generation, PromptAsk, Sampling, saturated};
use crate::vocabulary::{self, Word};

/// Answers a request for generation. Dropping the future, or the answer's body, aborts it in the engine.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    endpoint: Endpoint,
    connection: Connection,
    request: Request<Incoming>,
) -> Result<Response<Content>, Cut> {
    let headers = Headers::read(&request);
    let Ok(body) = request.into_body().collect().await else { return Err(Cut) };
    let body = body.to_bytes();
    let fault = shared.fault();
    if let Some(answer) = instead(fault, &body).await {
        return Ok(reply::error(answer));
    }
    let generation = match headers.check().and_then(|()| Generation::parse(&body, endpoint, shared.model())) {
        Ok(generation) => generation,
        Err(error) => return Ok(reply::error(error)),
    };
    if !admitted(shared, &generation).await {
        return Ok(reply::error(ErrorAnswer::queue_full()));
    }
    let load_format = headers.load_format;
    let job = Job::begin(shared, generation, headers);
    let cut =
        if let Fault::Cut { after, by } = fault { Some(PlannedCut { after, by, connection }) } else { None };
    if job.answer.generation.stream {
        let Job { answer, outputs, guard } = job;
        let stream = EventStream::new(Events::new(answer), outputs, guard, cut);
        let events = Content::Events(Box::new(stream));
        return Ok(reply::response(StatusCode::OK, Some("text/event-stream; charset=utf-8"), events));
    }
    let mut response = whole(job, cut).await?;
    if let Some(format) = load_format.filter(|_| response.status() == StatusCode::OK) {
        response.headers_mut().insert("endpoint-load-metrics", load(shared, format));
    }
    Ok(response)
}

/// What a fault has a request answered with, instead of what it asks for.
async fn instead(fault: Fault, body: &[u8]) -> Option<ErrorAnswer> {
    match fault {
        Fault::Status { status } => Some(with_status(status)),
        Fault::Terminate { how: Termination::Drain } if Generation::is_of_ids(body) => {
            std::future::pending().await
        }
        Fault::Terminate { how: Termination::Drain } => Some(ErrorAnswer::draining()),
        Fault::Ok
        | Fault::Refuse
        | Fault::Crash
        | Fault::Terminate { .. }
        | Fault::Hang
        | Fault::Freeze
        | Fault::Cut { .. }
        | Fault::Slow { .. }
        | Fault::StaleMetrics
        | Fault::Unhealthy
        | Fault::Abort
        | Fault::Error
        | Fault::EventGap { .. } => None,
    }
}

/// Whether the queue takes the request, where it has a limit.
async fn admitted(shared: &Shared, generation: &Generation) -> bool {
    let engine = &shared.settings.engine;
    let has_limit = engine.max_num_queued_reqs.is_some() || engine.max_num_queued_tokens.is_some();
    if !has_limit || shared.settings.late_refusals {
        return true;
    }
    let (answer, admitted) = oneshot::channel();
    let sequences = (generation.prompts.len() * generation.n) as u64;
    _ = shared.inputs.send(Input::Admit { sequences, answer });
    // An error means that the replica is being shut down; then this connection is, too.
    admitted.await.unwrap_or(true)
}

/// The headers that mean something.
struct Headers {
    is_json: bool,
    request_id: Option<String>,
    session: Option<String>,
    priority: Option<i32>,
    /// `Err` with what is no rank of an engine that has one.
    rank: Result<(), String>,
    load_format: Option<LoadFormat>,
}

/// How the load is told along with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadFormat {
    Json,
    Text,
}

impl Headers {
    fn read(request: &Request<Incoming>) -> Self {
        let text = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        let content_type = text(CONTENT_TYPE.as_str()).unwrap_or_default();
        let essence = content_type.split(';').next().unwrap_or_default();
        let rank = text("x-data-parallel-rank").filter(|rank| rank.parse().is_ok_and(|rank: i64| rank != 0));
        Self {
            is_json: essence.trim().eq_ignore_ascii_case("application/json"),
            request_id: text("x-request-id").map(str::to_owned),
            session: text("x-session-id").map(str::to_owned),
            priority: text("x-vllm-priority")
                .and_then(|priority| priority.trim().parse().ok())
                .map(saturated),
            rank: rank.map_or(Ok(()), |rank| Err(rank.to_owned())),
            load_format: match text("endpoint-load-metrics-format") {
                Some(format) if format.eq_ignore_ascii_case("json") => Some(LoadFormat::Json),
                Some(format) if format.eq_ignore_ascii_case("text") => Some(LoadFormat::Text),
                Some(_) | None => None,
            },
        }
    }

    fn check(&self) -> Result<(), ErrorAnswer> {
        if !self.is_json {
            return Err(ErrorAnswer::unsupported_media_type());
        }
        self.rank.as_ref().map_err(|rank| {
            ErrorAnswer::bad_request(None, &format!("data_parallel_rank {rank} is out of range [0, 1)."))
        })?;
        Ok(())
    }
}

/// The load as a header.
fn load(shared: &Shared, format: LoadFormat) -> HeaderValue {
    let stats = shared.telemetry().stats;
    let (waiting, usage) = (stats.waiting as f64, stats.kv_usage());
    let text = match format {
        LoadFormat::Json => format!(
            r#"JSON {{"named_metrics": {{"num_requests_waiting": {waiting:?}, "kv_cache_usage_perc": {usage:?}}}}}"#
        ),
        LoadFormat::Text => format!(
            "TEXT named_metrics.num_requests_waiting={waiting:?}, named_metrics.kv_cache_usage_perc={usage:?}"
        ),
    };
    HeaderValue::try_from(text).expect("numbers and names are valid in headers")
}

/// Waits for every token, then answers at once.
async fn whole(mut job: Job, cut: Option<PlannedCut>) -> Result<Response<Content>, Cut> {
    let mut tokens = 0;
    while job.guard.is_open() {
        if let Some(cut) = cut.as_ref().filter(|cut| tokens >= cut.after) {
            return Err(cut.now());
        }
        let Some(output) = job.outputs.recv().await else { return Err(Cut) };
        match output.end {
            Some(End::Lost) => return Ok(reply::error(ErrorAnswer::engine_lost())),
            Some(End::Refused) => return Ok(reply::error(ErrorAnswer::queue_full())),
            Some(End::Finished(_)) | None => {}
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
    fn begin(shared: &Arc<Shared>, generation: Generation, headers: Headers) -> Self {
        let (sender, outputs) = mpsc::unbounded_channel();
        let count = generation.prompts.len() * generation.n;
        let first = shared.request_ids(count);
        let mut rng = Prng::new(shared.seed ^ first.0.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let prefix = match generation.endpoint {
            Endpoint::Chat => "chatcmpl-",
            Endpoint::Completions => "cmpl-",
        };
        let Headers { request_id, session, priority, .. } = headers;
        let id = request_id
            .or_else(|| generation.request_id.clone())
            .unwrap_or_else(|| format!("{:016x}", rng.bits()));
        let adapter = generation.adapter.as_deref();
        let answer = Answer {
            id: format!("{prefix}{id}"),
            created: shared.clock.unix().as_secs(),
            model: adapter
                .map_or_else(|| shared.settings.model.clone(), |served| served.adapter.name.clone()),
            choices: Vec::with_capacity(count),
            block_size: u64::from(shared.settings.engine.block_size.0.get()),
            generation,
        };
        let mut job = Self { answer, outputs, guard: Guard::new(shared, first, count) };
        let given = Given { session: session.or_else(|| job.answer.generation.session.clone()), priority };
        for index in 0..count {
            job.start_choice(shared, RequestId(first.0 + index as u64), &given, &mut rng, &sender);
        }
        job
    }

    /// Hands the next choice to the engine.
    fn start_choice(
        &mut self,
        shared: &Shared,
        id: RequestId,
        given: &Given,
        rng: &mut Prng,
        outputs: &mpsc::UnboundedSender<Output>,
    ) {
        let (generation, index) = (&self.answer.generation, self.answer.choices.len());
        let prompt = self.answer.prompt(index);
        let adapter = generation.adapter.as_ref();
        let cache_salt = generation
            .cache_salt
            .as_deref()
            .map_or(0, |salt| BlockHash::root(0).then(&vocabulary::ids(salt).collect::<Vec<_>>()).0);
        let salt = BlockHash::salt(adapter.map(|served| served.id), cache_salt);
        let hash = BlockHash::root(salt).then(&prompt.ids).0;
        let sibling = (index % generation.n) as u64;
        let mut draws = match generation.sampling {
            Sampling::Free => Prng::new(rng.bits()),
            Sampling::Greedy => Prng::new(hash),
            Sampling::Seeded(seed) => Prng::new(hash ^ seed.rotate_left(32) ^ sibling),
        };
        let (words, ends_with) = draw(prompt, generation, shared.settings.answer_tokens_mean, &mut draws);
        let output: Vec<u32> = words.iter().map(|word| word.id()).collect();
        let block_size = shared.settings.engine.block_size;
        let request = Sequence {
            id,
            prompt: Prompt::with_continuation(&prompt.ids, &output, block_size, salt),
            output: Tokens(words.len() as u64),
            ends_with,
            adapter: adapter.map(|served| served.id),
            priority: generation.priority.or(given.priority).unwrap_or(0),
        };
        let content = || EventContent {
            ids: [&prompt.ids[..], &output].concat(),
            adapter: adapter.cloned(),
            cache_salt: generation.cache_salt.clone(),
            session: given.session.clone(),
        };
        let content = shared.events.is_some().then(|| Arc::new(content()));
        let sink = Sink { index, outputs: outputs.clone() };
        // An error means that the replica is being shut down; then this connection is, too.
        _ = shared.inputs.send(Input::Arrive { request, content, sink });
        self.answer.choices.push(Choice { words, produced: 0, cached: 0, finish: None });
    }
}

/// What the headers said of every choice.
struct Given {
    session: Option<String>,
    priority: Option<i32>,
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

fn with_status(status: u16) -> ErrorAnswer {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = status.canonical_reason().unwrap_or("Error");
    ErrorAnswer::new(status, kind, None, "This is what the fault of this replica says.")
}
