//! Paged KV memory: which blocks are used, which are free, and which free ones still hold a known prefix.
//!
//! Rules of vLLM's `BlockPool` and `FreeKVCacheBlockQueue` (`vllm/v1/core/block_pool.py`, 0.32.0): one queue of
//! free blocks, the next to be given out first; a block keeps its hash while it waits there and loses it when it is
//! given out again; blocks with equal content are not merged; a block without a hash goes to the front of the queue
//! when it becomes free, one with a hash to its end.

use std::ops::Range;

use expediter_types::{BlockHash, BlockMap, Blocks, ModelId, RequestId};

use crate::events::KvEvent;

/// A block's place in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockId(u32);

impl BlockId {
    const fn index(self) -> usize {
        self.0 as usize
    }
}

/// All blocks of one replica.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    free: FreeQueue,
    cached: BlockMap<Twins>,
    /// Free blocks that hold a known prefix.
    cached_free: u64,
    /// What happened to the cache since they were last taken, where anybody wants to know.
    events: Option<Vec<KvEvent>>,
}

/// The blocks that hold the same content, linked by `Block::older` and `younger`. The oldest is the one that a
/// lookup finds.
#[derive(Clone, Copy, Debug)]
struct Twins {
    oldest: BlockId,
    youngest: BlockId,
}

#[derive(Clone, Debug, Default)]
struct Block {
    /// Sequences that hold it. It is in the free queue exactly while this is 0.
    references: u32,
    hash: Option<BlockHash>,
    older: Option<BlockId>,
    younger: Option<BlockId>,
    previous: Option<BlockId>,
    next: Option<BlockId>,
}

/// Whose blocks are stored, for whoever hears of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) request: RequestId,
    pub(crate) adapter: Option<ModelId>,
}

/// A doubly linked list through `Block::previous` and `next`: a hit leaves from the middle.
#[derive(Debug, Default)]
struct FreeQueue {
    first: Option<BlockId>,
    last: Option<BlockId>,
    len: u64,
}

impl BlockPool {
    /// A pool of `blocks`, all free and empty. vLLM keeps one of its blocks as a null block; leave it out.
    pub(crate) fn new(blocks: Blocks, kv_events: bool) -> Self {
        let count = u32::try_from(blocks.0).unwrap_or(u32::MAX);
        let mut pool = Self {
            blocks: vec![Block::default(); count as usize],
            free: FreeQueue::default(),
            cached: BlockMap::default(),
            cached_free: 0,
            events: kv_events.then(Vec::new),
        };
        (0..count).for_each(|index| pool.push_free(BlockId(index)));
        pool
    }

    /// Blocks in all.
    pub(crate) fn len(&self) -> Blocks {
        Blocks(self.blocks.len() as u64)
    }

    /// Blocks that no sequence holds, cached ones among them.
    pub(crate) fn free(&self) -> Blocks {
        Blocks(self.free.len)
    }

    /// Blocks that sequences hold; one that several share counts once.
    pub(crate) fn in_use(&self) -> Blocks {
        Blocks(self.blocks.len() as u64 - self.free.len)
    }

    /// Blocks with content that could serve a request: in use, or free and still known by hash.
    pub(crate) fn resident(&self) -> Blocks {
        Blocks(self.in_use().0 + self.cached_free)
    }

    /// The block that holds the prefix that `hash` stands for.
    pub(crate) fn find(&self, hash: BlockHash) -> Option<BlockId> {
        self.cached.get(&hash).map(|twins| twins.oldest)
    }

    /// Whether the block still holds the prefix that `hash` stands for.
    pub(crate) fn holds(&self, id: BlockId, hash: BlockHash) -> bool {
        self.blocks[id.index()].hash == Some(hash)
    }

    /// How many of these are free at present, so that taking them leaves fewer blocks to allocate.
    pub(crate) fn free_among(&self, blocks: &[BlockId]) -> Blocks {
        Blocks(blocks.iter().filter(|block| self.blocks[block.index()].references == 0).count() as u64)
    }

    /// One more sequence holds each of `blocks`, which were found since the last change.
    pub(crate) fn take(&mut self, blocks: &[BlockId]) {
        for &id in blocks {
            if self.blocks[id.index()].references == 0 {
                self.remove_free(id);
                self.cached_free -= 1;
            }
            self.blocks[id.index()].references += 1;
        }
    }

    /// Gives out the first free block. What it held is forgotten.
    pub(crate) fn allocate(&mut self) -> Option<BlockId> {
        let id = self.free.first?;
        self.remove_free(id);
        if let Some(hash) = self.blocks[id.index()].hash.take() {
            self.forget(id, hash);
            self.cached_free -= 1;
            if let Some(events) = &mut self.events {
                events.push(KvEvent::Removed { hash });
            }
        }
        self.blocks[id.index()].references = 1;
        Some(id)
    }

    /// The blocks at `places` of a sequence are full: they may be found by their hashes from now on. `hash_at` says
    /// which prefix a place of the sequence stands for.
    pub(crate) fn store(
        &mut self,
        blocks: &[BlockId],
        places: Range<usize>,
        owner: Owner,
        hash_at: impl Fn(usize) -> BlockHash,
    ) {
        for place in places.clone() {
            self.remember(blocks[place], hash_at(place));
        }
        if let Some(events) = &mut self.events {
            events.push(KvEvent::Stored {
                parent: places.start.checked_sub(1).map(&hash_at),
                first_block: places.start,
                hashes: places.map(hash_at).collect(),
                request: owner.request,
                adapter: owner.adapter,
            });
        }
    }

    fn remember(&mut self, id: BlockId, hash: BlockHash) {
        debug_assert!(self.blocks[id.index()].references > 0, "only a block in use is filled");
        debug_assert!(self.blocks[id.index()].hash.is_none(), "a block is filled once");
        self.blocks[id.index()].hash = Some(hash);
        let Some(twins) = self.cached.get_mut(&hash) else {
            self.cached.insert(hash, Twins { oldest: id, youngest: id });
            return;
        };
        let older = std::mem::replace(&mut twins.youngest, id);
        self.blocks[id.index()].older = Some(older);
        self.blocks[older.index()].younger = Some(id);
    }

    /// A sequence lets go of its `blocks`, given in order. Those that can be found again are freed from the tail, so
    /// that the tail of a prefix is given out before its head; the others are given out before all, tail first.
    pub(crate) fn release(&mut self, blocks: &[BlockId]) {
        for &id in blocks {
            let block = &mut self.blocks[id.index()];
            block.references -= 1;
            if block.references == 0 && block.hash.is_none() {
                self.push_free_first(id);
            }
        }
        for &id in blocks.iter().rev() {
            let block = &self.blocks[id.index()];
            if block.references == 0 && block.hash.is_some() {
                self.cached_free += 1;
                self.push_free(id);
            }
        }
    }

    /// Forgets what all blocks hold, and says whether it did: not while a sequence holds one.
    pub(crate) fn reset(&mut self) -> bool {
        if self.in_use() > Blocks(0) {
            return false;
        }
        self.cached.clear();
        self.cached_free = 0;
        for block in &mut self.blocks {
            (block.hash, block.older, block.younger) = (None, None, None);
        }
        if let Some(events) = &mut self.events {
            events.push(KvEvent::Cleared);
        }
        true
    }

    /// How many blocks hold each known prefix.
    #[cfg(test)]
    pub(crate) fn cached_hashes(&self) -> std::collections::BTreeMap<BlockHash, u64> {
        let mut hashes = std::collections::BTreeMap::new();
        for hash in self.blocks.iter().filter_map(|block| block.hash) {
            *hashes.entry(hash).or_default() += 1;
        }
        hashes
    }

    /// Moves what happened to the cache to the end of `events`.
    pub(crate) fn take_events(&mut self, events: &mut Vec<KvEvent>) {
        if let Some(own) = &mut self.events {
            events.append(own);
        }
    }

    /// Takes the block out of the chain of its twins, who hold the same `hash`.
    fn forget(&mut self, id: BlockId, hash: BlockHash) {
        let block = &mut self.blocks[id.index()];
        let (older, younger) = (block.older.take(), block.younger.take());
        if let Some(older) = older {
            self.blocks[older.index()].younger = younger;
        }
        if let Some(younger) = younger {
            self.blocks[younger.index()].older = older;
        }
        match (older, younger) {
            (None, None) => _ = self.cached.remove(&hash),
            (None, Some(oldest)) => self.twins(hash).oldest = oldest,
            (Some(youngest), None) => self.twins(hash).youngest = youngest,
            (Some(_), Some(_)) => {}
        }
    }

    fn twins(&mut self, hash: BlockHash) -> &mut Twins {
        self.cached.get_mut(&hash).expect("a block with a hash is known by it")
    }

    fn push_free(&mut self, id: BlockId) {
        let last = self.free.last.replace(id);
        self.blocks[id.index()].previous = last;
        self.blocks[id.index()].next = None;
        match last {
            Some(last) => self.blocks[last.index()].next = Some(id),
            None => self.free.first = Some(id),
        }
        self.free.len += 1;
    }

    fn push_free_first(&mut self, id: BlockId) {
        let first = self.free.first.replace(id);
        self.blocks[id.index()].previous = None;
        self.blocks[id.index()].next = first;
        match first {
            Some(first) => self.blocks[first.index()].previous = Some(id),
            None => self.free.last = Some(id),
        }
        self.free.len += 1;
    }

    fn remove_free(&mut self, id: BlockId) {
        let (previous, next) = (self.blocks[id.index()].previous.take(), self.blocks[id.index()].next.take());
        match previous {
            Some(previous) => self.blocks[previous.index()].next = next,
            None => self.free.first = next,
        }
        match next {
            Some(next) => self.blocks[next.index()].previous = previous,
            None => self.free.last = previous,
        }
        self.free.len -= 1;
    }
}

#[cfg(test)]
mod tests;
