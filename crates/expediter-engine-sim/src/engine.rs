//! One replica's engine: requests in, steps out.

use std::time::Duration;

use expediter_types::{BlockSize, Blocks, Prng, RequestId, Time, Tokens};

use crate::blocks::BlockPool;
use crate::profile::Profile;
use crate::scheduler::{Limits, Progress, Request, Scheduler};
use crate::step_time::{Batch, Coefficients, with_noise};

/// What an engine is and how fast it is. The defaults are those of vLLM for an A100.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Tokens in a KV block.
    pub block_size: BlockSize,
    /// KV blocks as the engine reports them; one of them, the null block, is never used.
    pub blocks: Blocks,
    /// Sequences in the batch at once, at most.
    pub max_num_seqs: u32,
    /// Tokens in a step at most.
    pub max_num_batched_tokens: Tokens,
    /// What a step costs on the device.
    pub coefficients: Coefficients,
    /// Work of the host that async scheduling does not hide, added to every step.
    pub host_overhead: Duration,
    /// Standard deviation of the logarithm of a step's noise.
    pub noise_sigma: f64,
    /// Whether blocks of earlier requests are found again.
    pub enable_prefix_caching: bool,
}

impl Settings {
    /// The defaults with the coefficients and the memory of a profile.
    pub fn of(profile: Profile) -> Self {
        Self {
            block_size: BlockSize::DEFAULT,
            blocks: profile.blocks(),
            max_num_seqs: 256,
            max_num_batched_tokens: Tokens(2_048),
            coefficients: profile.coefficients(),
            host_overhead: Duration::from_micros(500),
            noise_sigma: 0.03,
            enable_prefix_caching: true,
        }
    }

    /// The longest sequence that fits when it is alone.
    pub fn capacity(&self) -> Tokens {
        Tokens(self.blocks.0.saturating_sub(1).saturating_mul(u64::from(self.block_size.0.get())))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::of(Profile::default())
    }
}

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
}

/// A forward pass under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// From `begin_step` to `end_step`.
    pub duration: Duration,
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
    step: Option<Step>,
    /// Aborts that came during the step: it computes for them until it ends.
    aborting: Vec<RequestId>,
    steps: u64,
}

impl Engine {
    /// An engine with an empty cache.
    pub fn new(settings: Settings) -> Self {
        let limits = Limits {
            block_size: settings.block_size,
            sequences: settings.max_num_seqs as usize,
            tokens: settings.max_num_batched_tokens,
            prefix_caching: settings.enable_prefix_caching,
        };
        let pool = BlockPool::new(Blocks(settings.blocks.0.saturating_sub(1)));
        let scheduler = Scheduler::new(limits);
        Self { settings, pool, scheduler, step: None, aborting: Vec::new(), steps: 0 }
    }

    /// What the engine was made with.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes a request into the queue.
    pub fn arrive(&mut self, request: Request, now: Time) -> Result<(), ArriveError> {
        let (tokens, capacity) = (request.prompt.tokens() + request.output, self.settings.capacity());
        if request.output == Tokens::ZERO || request.prompt.tokens() == Tokens::ZERO {
            return Err(ArriveError::Empty);
        }
        if tokens > capacity {
            return Err(ArriveError::TooLong { tokens, capacity });
        }
        self.scheduler.arrive(request, now);
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

    /// Begins the next step; `None` where there is nothing to compute. Call `end_step` when its duration has
    /// passed. While a step is under way, that step is returned.
    pub fn begin_step(&mut self, now: Time, rng: &mut Prng) -> Option<Step> {
        if self.step.is_none() {
            let batch = self.scheduler.schedule(&mut self.pool, now);
            if batch.tokens() > Tokens::ZERO {
                let time = self.settings.coefficients.step_time(&batch) + self.settings.host_overhead;
                let duration = with_noise(time, self.settings.noise_sigma, rng);
                self.step = Some(Step { duration, batch });
            }
        }
        self.step
    }

    /// Ends the step under way and says what it brought, in order of the batch.
    pub fn end_step(&mut self, now: Time) -> Vec<Progress> {
        if self.step.take().is_none() {
            return Vec::new();
        }
        self.steps += 1;
        for id in std::mem::take(&mut self.aborting) {
            self.scheduler.abort(id, &mut self.pool);
        }
        self.scheduler.finish_step(&mut self.pool, now)
    }

    /// State and counts as of now.
    pub fn stats(&self) -> Stats {
        let counts = self.scheduler.counts();
        Stats {
            running: self.scheduler.running() as u64,
            waiting: self.scheduler.waiting() as u64,
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
