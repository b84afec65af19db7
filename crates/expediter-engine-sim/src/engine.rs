//! One replica's engine: requests in, steps out.

use std::time::Duration;

use expediter_types::{Blocks, ModelId, Prng, RequestId, Time, Tokens};

use crate::adapters::Adapters;
use crate::blocks::BlockPool;
use crate::events::KvEvent;
use crate::request::{Progress, Request};
use crate::scheduler::Scheduler;
use crate::settings::Settings;
use crate::step_time::{Batch, with_noise};

/// Why a request cannot be taken in.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArriveError {
    /// It could never run, however long it waited.
    #[error("{} tokens exceed the KV cache of {} tokens", tokens.0, capacity.0)]
    TooLong {
        /// Its prompt and its output.
        tokens: Tokens,
        /// What the engine holds.
        capacity: Tokens,
    },
    /// It asks for no token, or has no prompt to produce one from.
    #[error("a request needs a prompt and at least one token to produce")]
    Empty,
    /// It names an adapter where only the base model is served.
    #[error("no adapters are served: set `lora`")]
    Adapter,
    /// The queue is as long as it may become. A real engine answers 503.
    #[error("the queue is full: {}", limit.name())]
    QueueFull {
        /// What it is full by.
        limit: QueueLimit,
    },
}

/// What an engine refuses by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueLimit {
    /// Requests, those that run among them.
    Requests,
    /// Prompt tokens of requests without a first token.
    Tokens,
}

impl QueueLimit {
    /// The setting's name, which is the reason in vLLM's metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "max_num_queued_reqs",
            Self::Tokens => "max_num_queued_tokens",
        }
    }
}

/// A forward pass under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// From `begin_step` to `end_step`.
    pub duration: Duration,
    /// The part of it in which the batch waits for adapters to be loaded.
    pub adapter_load: Duration,
    /// What it computes.
    pub batch: Batch,
}

/// The engine's state and counts, as its metrics show them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Requests in the batch.
    pub running: u64,
    /// Requests in the queue.
    pub waiting: u64,
    /// Those of them that were passed over for their adapter (reason `deferred` in vLLM's metrics); the others
    /// wait for room (`capacity`).
    pub deferred: u64,
    /// Different adapters of requests in the batch.
    pub running_adapters: u64,
    /// Different adapters of requests in the queue.
    pub waiting_adapters: u64,
    /// Prompt tokens of requests that have produced nothing yet.
    pub prefill_backlog: Tokens,
    /// Requests refused since there were too many.
    pub refused_by_requests: u64,
    /// Requests refused since too many prompt tokens waited.
    pub refused_by_tokens: u64,
    /// Usable blocks in all.
    pub blocks: Blocks,
    /// Blocks that requests hold; one that several share counts once.
    pub in_use: Blocks,
    /// Blocks with content: in use, or free and still in the prefix cache.
    pub resident: Blocks,
    /// Preemptions so far.
    pub preemptions: u64,
    /// Tokens looked up in the prefix cache.
    pub prefix_queries: Tokens,
    /// Tokens found there.
    pub prefix_hits: Tokens,
    /// Prompt tokens of requests that produced their first token.
    pub prompt_tokens: Tokens,
    /// Tokens produced.
    pub generation_tokens: Tokens,
    /// Steps ended.
    pub steps: u64,
}

impl Stats {
    /// Blocks in use ÷ all, 0 to 1: cached blocks that nobody holds count as free.
    pub fn kv_usage(&self) -> f64 {
        if self.blocks.0 == 0 { 0.0 } else { self.in_use.0 as f64 / self.blocks.0 as f64 }
    }
}

/// The engine. `begin_step` and `end_step` alternate; everything may arrive and be aborted in between.
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    pool: BlockPool,
    scheduler: Scheduler,
    adapters: Adapters,
    step: Option<Step>,
    /// Aborts that came during the step: it computes for them until it ends.
    aborting: Vec<RequestId>,
    sleep: Option<Sleep>,
    /// Changes of the prefix cache in steps that ended.
    events: Vec<KvEvent>,
    steps: u64,
    refused_by_requests: u64,
    refused_by_tokens: u64,
}

/// What an engine that sleeps gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    /// Nothing: it only begins no step.
    Paused,
    /// Its KV.
    Discarded,
}

impl Engine {
    /// An engine with an empty cache.
    pub fn new(settings: Settings) -> Self {
        let pool = BlockPool::new(Blocks(settings.blocks.0.saturating_sub(1)), settings.kv_events);
        let scheduler = Scheduler::new(&settings);
        Self {
            settings,
            pool,
            scheduler,
            adapters: Adapters::default(),
            step: None,
            aborting: Vec::new(),
            sleep: None,
            events: Vec::new(),
            steps: 0,
            refused_by_requests: 0,
            refused_by_tokens: 0,
        }
    }

    /// What the engine was made with.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes a request into the queue.
    ///
    /// # Errors
    /// It could never run, or the queue is full. The first is said before the second.
    pub fn arrive(&mut self, request: Request, now: Time) -> Result<(), ArriveError> {
        let (tokens, capacity) = (request.prompt.tokens() + request.output, self.settings.capacity());
        if request.output == Tokens::ZERO || request.prompt.tokens() == Tokens::ZERO {
            return Err(ArriveError::Empty);
        }
        if tokens > capacity {
            return Err(ArriveError::TooLong { tokens, capacity });
        }
        if request.adapter.is_some() && self.settings.lora.is_none() {
            return Err(ArriveError::Adapter);
        }
        self.check_queue(1).map_err(|limit| ArriveError::QueueFull { limit })?;
        self.scheduler.arrive(request, now);
        Ok(())
    }

    /// Whether the queue takes so many sequences of one request more; a refusal is counted. Rules of vLLM's
    /// `AsyncLLM.check_admission` (`vllm/v1/engine/async_llm.py`, 0.32.0): as long as the backlog is below its
    /// limit the next prompt may be of any length. `arrive` asks for each sequence by itself.
    ///
    /// # Errors
    /// The limit that would be exceeded.
    pub fn check_queue(&mut self, sequences: u64) -> Result<(), QueueLimit> {
        let here = self.scheduler.running() as u64 + self.scheduler.waiting().len() as u64;
        if self.settings.max_num_queued_reqs.is_some_and(|limit| here + sequences > u64::from(limit)) {
            self.refused_by_requests += 1;
            return Err(QueueLimit::Requests);
        }
        let backlog = self.scheduler.prefill_backlog();
        if self.settings.max_num_queued_tokens.is_some_and(|limit| backlog >= limit) {
            self.refused_by_tokens += 1;
            return Err(QueueLimit::Tokens);
        }
        Ok(())
    }

    /// Forgets a request and frees its blocks: at once between steps, else when the step under way ends. It
    /// makes no further progress. An unknown id is no mistake: the request may just have ended.
    pub fn abort(&mut self, id: RequestId) {
        if self.step.is_some() {
            self.aborting.push(id);
        } else {
            self.scheduler.abort(id, &mut self.pool);
        }
    }

    /// Gives up every request, as an engine that is told to stop. The step under way is lost.
    pub fn abort_all(&mut self) -> Vec<Progress> {
        self.step = None;
        self.aborting.clear();
        self.scheduler.abort_all(&mut self.pool)
    }

    /// Begins the next step; `None` where there is nothing to compute, or the engine sleeps. Call `end_step` when its
    /// duration has passed. While a step is under way, that step is returned.
    pub fn begin_step(&mut self, now: Time, rng: &mut Prng) -> Option<Step> {
        if self.step.is_none() && self.sleep.is_none() {
            let mut planned = self.scheduler.schedule(&mut self.pool, now);
            // Whoever needs room may be the one to be put back. Then the next plan, without it, is this step's.
            while planned.preempted && planned.batch.tokens() == Tokens::ZERO {
                planned = self.scheduler.schedule(&mut self.pool, now);
            }
            if planned.batch.tokens() > Tokens::ZERO {
                self.step = Some(self.time_of(planned.batch, rng));
            }
        }
        self.step
    }

    fn time_of(&mut self, batch: Batch, rng: &mut Prng) -> Step {
        let mut time = self.settings.coefficients.step_time(&batch);
        let mut adapter_load = Duration::ZERO;
        if let Some(lora) = self.settings.lora.as_ref().filter(|_| !self.scheduler.adapters().is_empty()) {
            time = time.mul_f64(lora.step_factor);
            adapter_load = self.adapters.activate(self.scheduler.adapters(), lora, rng);
        }
        let computing = with_noise(time + self.settings.host_overhead, self.settings.noise_sigma, rng);
        Step { duration: adapter_load + computing, adapter_load, batch }
    }

    /// Ends the step under way and says what it brought, in order of the batch.
    pub fn end_step(&mut self, now: Time) -> Vec<Progress> {
        let mut progress = Vec::with_capacity(self.scheduler.running());
        self.end_step_into(now, &mut progress);
        progress
    }

    /// As `end_step`, into a buffer that is emptied first and can be used again.
    pub fn end_step_into(&mut self, now: Time, progress: &mut Vec<Progress>) {
        progress.clear();
        if self.step.take().is_none() {
            return;
        }
        self.steps += 1;
        for id in self.aborting.drain(..) {
            self.scheduler.abort(id, &mut self.pool);
        }
        self.scheduler.finish_step(&mut self.pool, now, progress);
        self.pool.take_events(&mut self.events);
        if self.sleep == Some(Sleep::Discarded) {
            self.discard_kv();
        }
    }

    /// Changes of the prefix cache since the last call, in order. Called after each `end_step` it is the batch that
    /// a real engine publishes for that step; nothing is published between steps. Empty where
    /// [`Settings::kv_events`] is not set.
    pub fn kv_events(&mut self) -> std::vec::Drain<'_, KvEvent> {
        self.events.drain(..)
    }

    /// Empties the prefix cache, and says whether it did: not while a request holds blocks. The next step's events
    /// begin with that.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.pool.reset()
    }

    /// Begins no step until `wake_up`; the one under way ends as it would. Level 0 keeps the KV; from level 1 on it is
    /// discarded, and whoever ran goes back to the queue, to be computed again. Requests may arrive and wait. vLLM
    /// gives up all requests first where it is not told otherwise: call `abort_all` for that.
    pub fn sleep(&mut self, level: u8) {
        self.sleep = Some(if level == 0 { Sleep::Paused } else { Sleep::Discarded });
        if level > 0 && self.step.is_none() {
            self.discard_kv();
        }
    }

    /// Begins steps again.
    pub fn wake_up(&mut self) {
        self.sleep = None;
    }

    /// Whether it sleeps.
    pub const fn is_sleeping(&self) -> bool {
        self.sleep.is_some()
    }

    fn discard_kv(&mut self) {
        self.scheduler.put_all_back(&mut self.pool);
        self.pool.reset();
    }

    /// Begins anew as after a crash: no requests, an empty cache, no adapter loaded, and all counts at zero.
    pub fn restart(&mut self) {
        *self = Self::new(self.settings.clone());
    }

    /// The adapters of requests in the batch, each once.
    pub fn running_adapters(&self) -> Vec<ModelId> {
        let mut adapters: Vec<ModelId> = self.scheduler.running_adapters().collect();
        adapters.sort_unstable();
        adapters.dedup();
        adapters
    }

    /// The adapters of requests in the queue, each once.
    pub fn waiting_adapters(&self) -> Vec<ModelId> {
        self.scheduler.waiting().adapters().collect()
    }

    /// State and counts as of now.
    pub fn stats(&self) -> Stats {
        let (counts, waiting) = (self.scheduler.counts(), self.scheduler.waiting());
        Stats {
            running: self.scheduler.running() as u64,
            waiting: waiting.len() as u64,
            deferred: waiting.deferred() as u64,
            running_adapters: self.running_adapters().len() as u64,
            waiting_adapters: waiting.adapters().count() as u64,
            prefill_backlog: self.scheduler.prefill_backlog(),
            refused_by_requests: self.refused_by_requests,
            refused_by_tokens: self.refused_by_tokens,
            blocks: self.pool.len(),
            in_use: self.pool.in_use(),
            resident: self.pool.resident(),
            preemptions: counts.preemptions,
            prefix_queries: counts.prefix_queries,
            prefix_hits: counts.prefix_hits,
            prompt_tokens: counts.prompt_tokens,
            generation_tokens: counts.generation_tokens,
            steps: self.steps,
        }
    }
}

#[cfg(test)]
mod tests;
