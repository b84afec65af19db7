//! A request on its way through the engine.

use expediter_types::{BlockHash, BlockSize, Time, Tokens};

use crate::blocks::{BlockId, BlockPool, Owner};
use crate::queue::Rank;
use crate::request::{FinishReason, Life, Progress, Request};

/// A request with what is computed of it. Its blocks cover `computed + scheduled` tokens.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) request: Request,
    pub(crate) life: Life,
    pub(crate) blocks: Vec<BlockId>,
    /// Tokens whose KV is there.
    pub(crate) computed: Tokens,
    /// Tokens that the step under way computes.
    pub(crate) scheduled: Tokens,
    pub(crate) produced: Tokens,
    /// Leading blocks that others can find.
    pub(crate) stored: usize,
    /// Its place in the queue, also while it runs.
    pub(crate) rank: Rank,
}

impl Sequence {
    pub(crate) fn new(request: Request, rank: Rank, now: Time) -> Self {
        let life = Life { arrived: now, prompt: request.prompt.tokens(), ..Life::default() };
        Self {
            request,
            life,
            blocks: Vec::new(),
            computed: Tokens::ZERO,
            scheduled: Tokens::ZERO,
            produced: Tokens::ZERO,
            stored: 0,
            rank,
        }
    }

    /// Tokens known so far: those of the prompt and those produced. All are computed, or to be computed.
    pub(crate) fn known(&self) -> Tokens {
        self.life.prompt + self.produced
    }

    pub(crate) fn wanted(&self) -> Tokens {
        self.known().saturating_sub(self.computed)
    }

    /// Whether the step under way decodes one token, after those that were produced.
    pub(crate) fn decodes(&self) -> bool {
        self.produced > Tokens::ZERO && self.scheduled == Tokens(1)
    }

    /// What the prefix that ends with the block at `place` is known by. A block whose content the prompt's hashes do
    /// not say is like no other's: only this request finds it, after a preemption.
    pub(crate) fn hash_at(&self, place: usize) -> BlockHash {
        hash_at(&self.request, place)
    }

    /// Blocks that the sequence lacks for `tokens` more.
    pub(crate) fn missing_blocks(&self, tokens: Tokens, size: BlockSize) -> u64 {
        let (after, held) = (self.computed + tokens, self.blocks.len() as u64);
        // Most decodes stay within their last block.
        if after.0 <= held * u64::from(size.0.get()) { 0 } else { after.to_blocks(size).0 - held }
    }

    /// Gives the sequence `need` blocks and the step's `tokens`. Blocks that these tokens fill can be found by others
    /// at once, even within this step.
    pub(crate) fn grow(
        &mut self,
        tokens: Tokens,
        need: u64,
        pool: &mut BlockPool,
        size: BlockSize,
        cache: bool,
    ) {
        for _ in 0..need {
            self.blocks.push(pool.allocate().expect("the caller made sure that `need` blocks are free"));
        }
        self.scheduled = tokens;
        let after = self.computed + tokens;
        if cache && after.0 >= (self.stored as u64 + 1) * u64::from(size.0.get()) {
            let full = usize::try_from(after.to_full_blocks(size).0).unwrap_or(usize::MAX);
            let owner = Owner { request: self.request.id, adapter: self.request.adapter };
            pool.store(&self.blocks, self.stored..full, owner, |place| hash_at(&self.request, place));
            self.stored = full;
        }
    }

    /// Drops all KV, to be computed again.
    pub(crate) fn drop_kv(&mut self, pool: &mut BlockPool) {
        pool.release(&self.blocks);
        self.blocks.clear();
        self.stored = 0;
        (self.computed, self.scheduled) = (Tokens::ZERO, Tokens::ZERO);
    }

    pub(crate) fn progress(&self, end: Option<FinishReason>) -> Progress {
        Progress { id: self.request.id, produced: self.produced, end, life: self.life }
    }
}

fn hash_at(request: &Request, place: usize) -> BlockHash {
    let own = || BlockHash::root(OWN ^ request.id.0).then_number(place as u64);
    request.prompt.hashes().get(place).copied().unwrap_or_else(own)
}

/// Keeps a request's own hashes apart from the roots of prompts.
const OWN: u64 = 0x6f77_6e20_626c_6f63;
