//! Which sequences compute how many tokens in the next step: the rules of vLLM's V1 scheduler
//! (`vllm/v1/core/sched/scheduler.py`, 0.32.0).

use expediter_types::{BlockSize, ModelId, RequestId, Time, Tokens};

use crate::blocks::{BlockId, BlockPool};
use crate::queue::WaitQueue;
use crate::request::{FinishReason, Progress, Request};
use crate::sequence::Sequence;
use crate::settings::{Scheduling, Settings};
use crate::step_time::Batch;

/// The limits of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    block_size: BlockSize,
    sequences: usize,
    tokens: Tokens,
    long_prefill: Option<Tokens>,
    scheduling: Scheduling,
    reserve_full_sequence: bool,
    /// Adapters in a step; `None` where any number may be.
    adapters: Option<usize>,
    prefix_caching: bool,
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
    /// In order of admission.
    running: Vec<Sequence>,
    waiting: WaitQueue,
    /// Adapters in the batch of the step under way, in order of the batch.
    adapters: Vec<ModelId>,
    /// What the last lookup found, and for whom: whoever does not fit is looked up again in the next step.
    hits: Vec<BlockId>,
    hits_of: Option<RequestId>,
    /// Prompt tokens of sequences that have produced nothing yet.
    prefill_backlog: Tokens,
    counts: Counts,
}

/// What is left of a step while it is planned.
struct Plan {
    budget: Tokens,
    /// Tokens of one sequence at most.
    chunk: Tokens,
    preempted: bool,
}

/// How a step was planned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Planned {
    pub(crate) batch: Batch,
    /// Whether a sequence was put back.
    pub(crate) preempted: bool,
}

impl Scheduler {
    pub(crate) fn new(settings: &Settings) -> Self {
        let limits = Limits {
            block_size: settings.block_size,
            sequences: settings.max_num_seqs as usize,
            tokens: settings.max_num_batched_tokens,
            long_prefill: settings.long_prefill_token_threshold,
            scheduling: settings.scheduling,
            reserve_full_sequence: settings.reserve_full_sequence,
            adapters: settings.lora.as_ref().map(|lora| lora.max_loras as usize),
            prefix_caching: settings.enable_prefix_caching,
        };
        Self {
            limits,
            running: Vec::new(),
            waiting: WaitQueue::new(settings.scheduling),
            adapters: Vec::new(),
            hits: Vec::new(),
            hits_of: None,
            prefill_backlog: Tokens::ZERO,
            counts: Counts::default(),
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn waiting(&self) -> &WaitQueue {
        &self.waiting
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn prefill_backlog(&self) -> Tokens {
        self.prefill_backlog
    }

    /// Adapters in the batch of the step under way, in order of the batch.
    pub(crate) fn adapters(&self) -> &[ModelId] {
        &self.adapters
    }

    /// Adapters of sequences that run.
    pub(crate) fn running_adapters(&self) -> impl Iterator<Item = ModelId> {
        self.running.iter().filter_map(|sequence| sequence.request.adapter)
    }

    /// The sequences that run, in order.
    #[cfg(test)]
    pub(crate) fn sequences(&self) -> &[Sequence] {
        &self.running
    }

    /// Puts a request into the queue.
    pub(crate) fn arrive(&mut self, request: Request, now: Time) {
        self.prefill_backlog += request.prompt.tokens();
        self.waiting.arrive(request, now);
    }

    /// Forgets a request and frees its blocks. Call between steps; an unknown id is no mistake.
    pub(crate) fn abort(&mut self, id: RequestId, pool: &mut BlockPool) {
        let sequence = self.waiting.remove(id).or_else(|| {
            let index = self.running.iter().position(|sequence| sequence.request.id == id)?;
            Some(self.running.remove(index))
        });
        if let Some(sequence) = sequence {
            pool.release(&sequence.blocks);
            if sequence.produced == Tokens::ZERO {
                self.prefill_backlog = self.prefill_backlog.saturating_sub(sequence.life.prompt);
            }
        }
    }

    /// Forgets every request, and says so for each.
    pub(crate) fn abort_all(&mut self, pool: &mut BlockPool) -> Vec<Progress> {
        self.prefill_backlog = Tokens::ZERO;
        let aborted = self.running.drain(..).chain(self.waiting.drain());
        let give_up = |sequence: Sequence| {
            pool.release(&sequence.blocks);
            sequence.progress(Some(FinishReason::Abort))
        };
        aborted.map(give_up).collect()
    }

    /// Puts every sequence of the batch back into the queue, in its order.
    pub(crate) fn put_all_back(&mut self, pool: &mut BlockPool) {
        while let Some(sequence) = self.running.pop() {
            self.put_back(sequence, pool);
        }
    }

    /// Gives each sequence its tokens for the next step, and the step its blocks. Running sequences come first,
    /// so a decode takes its token before any new prompt; in a step that preempted nothing is admitted.
    pub(crate) fn schedule(&mut self, pool: &mut BlockPool, now: Time) -> Planned {
        let alone = self.running.len() + self.waiting.len() <= 1;
        let chunk = self.limits.long_prefill.filter(|_| !alone).unwrap_or(Tokens(u64::MAX));
        let mut plan = Plan { budget: self.limits.tokens, chunk, preempted: false };
        self.schedule_running(pool, &mut plan);
        self.note_adapters();
        if !plan.preempted {
            self.admit(pool, &mut plan, now);
        }
        Planned { batch: self.batch(), preempted: plan.preempted }
    }

    fn schedule_running(&mut self, pool: &mut BlockPool, plan: &mut Plan) {
        let mut index = 0;
        while index < self.running.len() && plan.budget > Tokens::ZERO {
            let sequence = &self.running[index];
            let tokens = sequence.wanted().min(plan.chunk).min(plan.budget);
            let need = sequence.missing_blocks(tokens, self.limits.block_size);
            while need > pool.free().0 {
                let victim = self.victim();
                self.preempt(victim, pool, plan);
                if victim == index {
                    return;
                }
                index -= usize::from(victim < index);
            }
            let Limits { block_size, prefix_caching, .. } = self.limits;
            self.running[index].grow(tokens, need, pool, block_size, prefix_caching);
            plan.budget = plan.budget.saturating_sub(tokens);
            index += 1;
        }
    }

    /// Who is put back when blocks run out: the last to be admitted, or the least urgent, of equals the last to
    /// arrive. It may be the one that needs the room.
    fn victim(&self) -> usize {
        let last = self.running.len() - 1;
        match self.limits.scheduling {
            Scheduling::Fcfs => last,
            Scheduling::Priority => (0..=last).max_by_key(|index| self.running[*index].rank).unwrap_or(last),
        }
    }

    /// Puts a sequence of the batch back into the queue. Its KV is dropped, to be computed again, but its full
    /// blocks may still be found in the prefix cache.
    fn preempt(&mut self, index: usize, pool: &mut BlockPool, plan: &mut Plan) {
        let victim = self.running.remove(index);
        // It may have had its tokens in this step already: they go to others.
        plan.budget += victim.scheduled;
        plan.preempted = true;
        self.put_back(victim, pool);
    }

    fn put_back(&mut self, mut sequence: Sequence, pool: &mut BlockPool) {
        sequence.drop_kv(pool);
        sequence.life.preemptions += 1;
        self.counts.preemptions += 1;
        self.waiting.put_back(sequence);
    }

    fn note_adapters(&mut self) {
        self.adapters.clear();
        if self.limits.adapters.is_none() {
            return;
        }
        for sequence in self.running.iter().filter(|sequence| sequence.scheduled > Tokens::ZERO) {
            if let Some(adapter) = sequence.request.adapter.filter(|adapter| !self.adapters.contains(adapter))
            {
                self.adapters.push(adapter);
            }
        }
    }

    /// Moves sequences from the head of the queue into the batch while tokens, places and blocks last. One that
    /// does not fit stops all behind it; one whose adapter would be one too many is passed over.
    fn admit(&mut self, pool: &mut BlockPool, plan: &mut Plan, now: Time) {
        let mut looked_at = None;
        loop {
            if plan.budget == Tokens::ZERO || self.running.len() >= self.limits.sequences {
                break;
            }
            let admissible = |adapter| is_admissible(adapter, &self.adapters, self.limits.adapters);
            let Some(head) = self.waiting.head(admissible) else {
                self.waiting.pass_over(admissible, None);
                return;
            };
            looked_at = Some(head.rank);
            find_prefix(head, pool, self.limits, &mut self.hits, &mut self.hits_of);
            let (id, cached) = (head.request.id, self.cached());
            let tokens = head.known().saturating_sub(cached).min(plan.chunk).min(plan.budget);
            let must_fit = if self.limits.reserve_full_sequence { head.known() } else { cached + tokens };
            // A hit that nobody holds is taken from the free blocks like a new one.
            let shared = self.hits.len() as u64 - pool.free_among(&self.hits).0;
            if must_fit.to_blocks(self.limits.block_size).0 - shared > pool.free().0 {
                break;
            }
            let Some(sequence) = self.waiting.remove(id) else { break };
            self.start(sequence, cached, tokens, pool, now);
            plan.budget = plan.budget.saturating_sub(tokens);
        }
        if looked_at.is_some() {
            let admissible = |adapter| is_admissible(adapter, &self.adapters, self.limits.adapters);
            self.waiting.pass_over(admissible, looked_at);
        }
    }

    /// Tokens of the blocks that the last lookup found.
    fn cached(&self) -> Tokens {
        Tokens(self.hits.len() as u64 * u64::from(self.limits.block_size.0.get()))
    }

    /// Puts a sequence at the end of the batch, with the blocks that the last lookup found.
    fn start(
        &mut self,
        mut sequence: Sequence,
        cached: Tokens,
        tokens: Tokens,
        pool: &mut BlockPool,
        now: Time,
    ) {
        pool.take(&self.hits);
        sequence.blocks.extend_from_slice(&self.hits);
        (sequence.computed, sequence.stored) = (cached, self.hits.len());
        if sequence.life.preemptions == 0 {
            sequence.life.admitted = now;
            sequence.life.cached = cached;
            self.counts.prefix_queries += sequence.known();
            self.counts.prefix_hits += cached;
        }
        let Limits { block_size, prefix_caching, adapters, .. } = self.limits;
        let need = sequence.missing_blocks(tokens, block_size);
        sequence.grow(tokens, need, pool, block_size, prefix_caching);
        if let Some(adapter) = sequence.request.adapter.filter(|adapter| !self.adapters.contains(adapter))
            && adapters.is_some()
        {
            self.adapters.push(adapter);
        }
        self.running.push(sequence);
    }

    /// What the step computes.
    fn batch(&self) -> Batch {
        let mut batch = Batch::default();
        for sequence in self.running.iter().filter(|sequence| sequence.scheduled > Tokens::ZERO) {
            if sequence.decodes() {
                batch.add_decode(sequence.known());
            } else {
                batch.add_prefill(sequence.scheduled, sequence.computed);
            }
        }
        batch
    }

    /// Books what the step computed. A sequence with nothing left to compute produces a token.
    pub(crate) fn finish_step(&mut self, pool: &mut BlockPool, now: Time, progress: &mut Vec<Progress>) {
        let (counts, backlog) = (&mut self.counts, &mut self.prefill_backlog);
        self.running.retain_mut(|sequence| {
            let scheduled = std::mem::take(&mut sequence.scheduled);
            sequence.computed += scheduled;
            if scheduled == Tokens::ZERO || sequence.wanted() > Tokens::ZERO {
                return true;
            }
            if sequence.produced == Tokens::ZERO {
                sequence.life.first_token = now;
                counts.prompt_tokens += sequence.life.prompt;
                *backlog = backlog.saturating_sub(sequence.life.prompt);
            }
            sequence.produced += Tokens(1);
            counts.generation_tokens += Tokens(1);
            let ended = sequence.produced >= sequence.request.output;
            progress.push(sequence.progress(ended.then_some(sequence.request.ends_with)));
            if ended {
                pool.release(&sequence.blocks);
            }
            !ended
        });
    }
}

/// Whether a sequence with this adapter may join a batch with `adapters`.
fn is_admissible(adapter: Option<ModelId>, adapters: &[ModelId], limit: Option<usize>) -> bool {
    adapter
        .is_none_or(|adapter| limit.is_none_or(|limit| adapters.len() < limit) || adapters.contains(&adapter))
}

/// The leading blocks that need not be computed: never all, since the last token must be, for its output. Blocks
/// that were found for the same request before, and hold the same still, are not looked up again.
fn find_prefix(
    sequence: &Sequence,
    pool: &BlockPool,
    limits: Limits,
    hits: &mut Vec<BlockId>,
    hits_of: &mut Option<RequestId>,
) {
    if hits_of.replace(sequence.request.id) != Some(sequence.request.id) || !limits.prefix_caching {
        hits.clear();
    }
    if limits.prefix_caching {
        let reusable = sequence.known().saturating_sub(Tokens(1)).to_full_blocks(limits.block_size);
        let reusable = usize::try_from(reusable.0).unwrap_or(usize::MAX);
        let lost = |(place, block): (usize, &BlockId)| !pool.holds(*block, sequence.hash_at(place));
        let good = hits.iter().enumerate().position(lost).unwrap_or(hits.len());
        hits.truncate(good.min(reusable));
        hits.extend((hits.len()..reusable).map_while(|place| pool.find(sequence.hash_at(place))));
    }
}
