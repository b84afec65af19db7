//! Which sequences compute how many tokens in the next step: the rules of vLLM's V1 scheduler
//! (`vllm/v1/core/sched/scheduler.py`, 0.32.0) under its policy `fcfs`.

use std::collections::VecDeque;

use expediter_types::{BlockSize, Prompt, RequestId, Time, Tokens};

use crate::blocks::{BlockId, BlockPool};
use crate::step_time::Batch;

/// What a client asks of the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Unique among the requests in the engine.
    pub id: RequestId,
    /// What is to be computed before the first token.
    pub prompt: Prompt,
    /// Tokens to produce, at least 1.
    pub output: Tokens,
    /// Why the last of them is the last.
    pub ends_with: FinishReason,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FinishReason {
    /// The model said so.
    Stop,
    /// The cap on its tokens was reached.
    Length,
    /// The engine gave it up.
    Abort,
}

/// What a step brought for one request. Without `end` it is one token more than before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// The request.
    pub id: RequestId,
    /// Tokens produced so far.
    pub produced: Tokens,
    /// Set on the last token. `Abort` comes without a new token.
    pub end: Option<FinishReason>,
    /// Where the request's time went.
    pub life: Life,
}

/// The stations of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Entered the queue.
    pub arrived: Time,
    /// Entered the batch, for the first time.
    pub admitted: Time,
    /// Produced its first token.
    pub first_token: Time,
    /// Length of its prompt.
    pub prompt: Tokens,
    /// Prompt tokens found in the prefix cache at the first admission.
    pub cached: Tokens,
    /// Times it was put back into the queue.
    pub preemptions: u32,
}

/// The limits of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) block_size: BlockSize,
    pub(crate) sequences: usize,
    pub(crate) tokens: Tokens,
    pub(crate) prefix_caching: bool,
}

/// Counts since the engine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) preemptions: u64,
    pub(crate) prefix_queries: Tokens,
    pub(crate) prefix_hits: Tokens,
    pub(crate) prompt_tokens: Tokens,
    pub(crate) generation_tokens: Tokens,
}

/// The queue and the batch. The pool is passed in: it outlives both.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    /// In order of admission; a preempted sequence goes back to the head of `waiting`.
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    counts: Counts,
}

/// A request on its way. Its blocks cover `computed + scheduled` tokens.
#[derive(Debug)]
struct Sequence {
    request: Request,
    life: Life,
    blocks: Vec<BlockId>,
    /// Tokens whose KV is there.
    computed: Tokens,
    /// Tokens that the step under way computes.
    scheduled: Tokens,
    produced: Tokens,
}

impl Sequence {
    /// Tokens known so far: those of the prompt and those produced. All are computed, or to be computed.
    fn known(&self) -> Tokens {
        self.request.prompt.tokens() + self.produced
    }

    fn wanted(&self) -> Tokens {
        self.known().saturating_sub(self.computed)
    }
}

impl Scheduler {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, running: Vec::new(), waiting: VecDeque::new(), counts: Counts::default() }
    }

    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// The batch in order, each with its tokens in the step under way, and the queue.
    #[cfg(test)]
    pub(crate) fn plan(&self) -> (Vec<(RequestId, Tokens)>, Vec<RequestId>) {
        let running = self.running.iter().map(|sequence| (sequence.request.id, sequence.scheduled));
        (running.collect(), self.waiting.iter().map(|sequence| sequence.request.id).collect())
    }

    /// Puts a request at the end of the queue.
    pub(crate) fn arrive(&mut self, request: Request, now: Time) {
        let life = Life { arrived: now, prompt: request.prompt.tokens(), ..Life::default() };
        self.waiting.push_back(Sequence {
            request,
            life,
            blocks: Vec::new(),
            computed: Tokens::ZERO,
            scheduled: Tokens::ZERO,
            produced: Tokens::ZERO,
        });
    }

    /// Forgets a request and frees its blocks. Call between steps; an unknown id is no mistake.
    pub(crate) fn abort(&mut self, id: RequestId, pool: &mut BlockPool) {
        if let Some(index) = self.running.iter().position(|sequence| sequence.request.id == id) {
            pool.release(&self.running.remove(index).blocks);
        } else if let Some(index) = self.waiting.iter().position(|sequence| sequence.request.id == id) {
            self.waiting.remove(index);
        }
    }

    /// Forgets every request, and says so for each.
    pub(crate) fn abort_all(&mut self, pool: &mut BlockPool) -> Vec<Progress> {
        let aborted = self.running.drain(..).chain(self.waiting.drain(..));
        let give_up = |sequence: Sequence| {
            pool.release(&sequence.blocks);
            let (id, produced, life) = (sequence.request.id, sequence.produced, sequence.life);
            Progress { id, produced, end: Some(FinishReason::Abort), life }
        };
        aborted.map(give_up).collect()
    }

    /// Gives each sequence its tokens for the next step, and the step its blocks. Running sequences come first,
    /// so a decode takes its token before any new prompt; in a step that preempted nothing is admitted.
    pub(crate) fn schedule(&mut self, pool: &mut BlockPool, now: Time) -> Batch {
        let (mut batch, mut budget) = (Batch::default(), self.limits.tokens);
        let preempted = self.schedule_running(pool, &mut batch, &mut budget);
        if !preempted {
            self.admit(pool, &mut batch, &mut budget, now);
        }
        batch
    }

    /// Returns whether a sequence was preempted.
    fn schedule_running(&mut self, pool: &mut BlockPool, batch: &mut Batch, budget: &mut Tokens) -> bool {
        let (mut index, mut preempted) = (0, false);
        while index < self.running.len() && *budget > Tokens::ZERO {
            let sequence = &self.running[index];
            let tokens = sequence.wanted().min(*budget);
            let need = missing_blocks(sequence, tokens, self.limits.block_size);
            if need > pool.free().0 {
                // The last to come goes first, and may be the one that needs the room.
                preempted = true;
                self.preempt_last(pool);
                continue;
            }
            grow(&mut self.running[index], tokens, need, pool, self.limits);
            add_to_batch(&self.running[index], batch);
            *budget = budget.saturating_sub(tokens);
            index += 1;
        }
        preempted
    }

    /// Puts the last sequence of the batch back to the head of the queue. Its KV is dropped, to be computed
    /// again, but its full blocks may still be found in the prefix cache.
    fn preempt_last(&mut self, pool: &mut BlockPool) {
        let Some(mut victim) = self.running.pop() else { return };
        debug_assert_eq!(victim.scheduled, Tokens::ZERO, "whoever has tokens in this step comes earlier");
        pool.release(&victim.blocks);
        victim.blocks.clear();
        victim.computed = Tokens::ZERO;
        victim.life.preemptions += 1;
        self.counts.preemptions += 1;
        self.waiting.push_front(victim);
    }

    /// Moves sequences from the head of the queue into the batch while tokens, places and blocks last. One that
    /// does not fit stops all behind it.
    fn admit(&mut self, pool: &mut BlockPool, batch: &mut Batch, budget: &mut Tokens, now: Time) {
        while *budget > Tokens::ZERO && self.running.len() < self.limits.sequences {
            let Some(head) = self.waiting.front() else { return };
            let hits = self.find_prefix(head, pool);
            let cached = Tokens(hits.len() as u64 * u64::from(self.limits.block_size.0.get()));
            let tokens = head.known().saturating_sub(cached).min(*budget);
            let need = (cached + tokens).to_blocks(self.limits.block_size).0 - hits.len() as u64;
            if need + pool.free_among(&hits).0 > pool.free().0 {
                return;
            }
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            pool.take(&hits);
            sequence.blocks = hits;
            sequence.computed = cached;
            if sequence.life.preemptions == 0 {
                sequence.life.admitted = now;
                sequence.life.cached = cached;
                self.counts.prefix_queries += sequence.known();
                self.counts.prefix_hits += cached;
            }
            grow(&mut sequence, tokens, need, pool, self.limits);
            add_to_batch(&sequence, batch);
            *budget = budget.saturating_sub(tokens);
            self.running.push(sequence);
        }
    }

    /// The leading blocks that need not be computed: never all, since the last token must be, for its output.
    fn find_prefix(&self, sequence: &Sequence, pool: &BlockPool) -> Vec<BlockId> {
        if !self.limits.prefix_caching {
            return Vec::new();
        }
        let reusable = sequence.known().saturating_sub(Tokens(1)).to_full_blocks(self.limits.block_size);
        let hashes = sequence.request.prompt.hashes();
        pool.lookup(&hashes[..hashes.len().min(usize::try_from(reusable.0).unwrap_or(usize::MAX))])
    }

    /// Books what the step computed. A sequence with nothing left to compute produces a token.
    pub(crate) fn finish_step(&mut self, pool: &mut BlockPool, now: Time) -> Vec<Progress> {
        let mut progress = Vec::with_capacity(self.running.len());
        let counts = &mut self.counts;
        self.running.retain_mut(|sequence| {
            let scheduled = std::mem::take(&mut sequence.scheduled);
            sequence.computed += scheduled;
            if scheduled == Tokens::ZERO || sequence.wanted() > Tokens::ZERO {
                return true;
            }
            if sequence.produced == Tokens::ZERO {
                sequence.life.first_token = now;
                counts.prompt_tokens += sequence.life.prompt;
            }
            sequence.produced += Tokens(1);
            counts.generation_tokens += Tokens(1);
            let ended = sequence.produced >= sequence.request.output;
            let end = ended.then_some(sequence.request.ends_with);
            let (id, produced, life) = (sequence.request.id, sequence.produced, sequence.life);
            progress.push(Progress { id, produced, end, life });
            if ended {
                pool.release(&sequence.blocks);
            }
            !ended
        });
        progress
    }
}

/// Blocks that the sequence lacks for `tokens` more.
fn missing_blocks(sequence: &Sequence, tokens: Tokens, size: BlockSize) -> u64 {
    (sequence.computed + tokens).to_blocks(size).0.saturating_sub(sequence.blocks.len() as u64)
}

/// Gives the sequence `need` blocks and the step's `tokens`. Blocks that these tokens fill can be found by others
/// at once, even within this step.
fn grow(sequence: &mut Sequence, tokens: Tokens, need: u64, pool: &mut BlockPool, limits: Limits) {
    for _ in 0..need {
        sequence.blocks.push(pool.allocate().expect("the caller made sure that `need` blocks are free"));
    }
    let full =
        |tokens: Tokens| usize::try_from(tokens.to_full_blocks(limits.block_size).0).unwrap_or(usize::MAX);
    let filled = full(sequence.computed)..full(sequence.computed + tokens);
    sequence.scheduled = tokens;
    if limits.prefix_caching {
        let known = sequence.request.prompt.hashes();
        let filled = filled.start.min(known.len())..filled.end.min(known.len());
        for (block, hash) in sequence.blocks[filled.clone()].iter().zip(&known[filled]) {
            pool.remember(*block, *hash);
        }
    }
}

fn add_to_batch(sequence: &Sequence, batch: &mut Batch) {
    if sequence.produced > Tokens::ZERO && sequence.scheduled == Tokens(1) {
        batch.add_decode(sequence.known());
    } else {
        batch.add_prefill(sequence.scheduled, sequence.computed);
    }
}
