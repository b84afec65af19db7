//! Paged KV memory: which blocks are used, which are free, and which free ones still hold a known prefix.
//!
//! Rules of vLLM's `BlockPool` and `FreeKVCacheBlockQueue` (`vllm/v1/core/block_pool.py`, 0.32.0): one queue of
//! free blocks, least recently used first; a block keeps its hash while it waits there and loses it when it is
//! given out again; blocks with equal content are not merged.

use std::collections::BTreeMap;

use expediter_types::Blocks;

use crate::prompt::BlockHash;

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
    /// The oldest block of each known hash; younger ones with equal content follow by `Block::twin`.
    cached: BTreeMap<BlockHash, BlockId>,
    /// Free blocks that hold a known prefix.
    cached_free: u64,
}

#[derive(Clone, Debug, Default)]
struct Block {
    /// Sequences that hold it. It is in the free queue exactly while this is 0.
    references: u32,
    hash: Option<BlockHash>,
    twin: Option<BlockId>,
    previous: Option<BlockId>,
    next: Option<BlockId>,
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
    pub(crate) fn new(blocks: Blocks) -> Self {
        let count = u32::try_from(blocks.0).unwrap_or(u32::MAX);
        let mut pool = Self {
            blocks: vec![Block::default(); count as usize],
            free: FreeQueue::default(),
            cached: BTreeMap::new(),
            cached_free: 0,
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

    /// The longest known prefix of `hashes`, as its blocks in order.
    pub(crate) fn lookup(&self, hashes: &[BlockHash]) -> Vec<BlockId> {
        hashes.iter().map_while(|hash| self.cached.get(hash).copied()).collect()
    }

    /// How many of these are free at present, so that taking them leaves fewer blocks to allocate.
    pub(crate) fn free_among(&self, blocks: &[BlockId]) -> Blocks {
        Blocks(blocks.iter().filter(|block| self.blocks[block.index()].references == 0).count() as u64)
    }

    /// One more sequence holds each of `blocks`, which a `lookup` since the last change returned.
    pub(crate) fn take(&mut self, blocks: &[BlockId]) {
        for &id in blocks {
            if self.blocks[id.index()].references == 0 {
                self.remove_free(id);
                self.cached_free -= 1;
            }
            self.blocks[id.index()].references += 1;
        }
    }

    /// Gives out the least recently used free block. What it held is forgotten.
    pub(crate) fn allocate(&mut self) -> Option<BlockId> {
        let id = self.free.first?;
        self.remove_free(id);
        if self.blocks[id.index()].hash.is_some() {
            self.forget(id);
            self.cached_free -= 1;
        }
        self.blocks[id.index()].references = 1;
        Some(id)
    }

    /// The block holds the prefix that `hash` stands for: a lookup may find it from now on.
    pub(crate) fn remember(&mut self, id: BlockId, hash: BlockHash) {
        debug_assert!(self.blocks[id.index()].references > 0, "only a block in use is filled");
        if self.blocks[id.index()].hash.is_some() {
            return;
        }
        self.blocks[id.index()].hash = Some(hash);
        let Some(&oldest) = self.cached.get(&hash) else {
            self.cached.insert(hash, id);
            return;
        };
        let mut last = oldest;
        while let Some(twin) = self.blocks[last.index()].twin {
            last = twin;
        }
        self.blocks[last.index()].twin = Some(id);
    }

    /// A sequence lets go of its `blocks`, given in order. They are freed from the tail, so that the tail of a
    /// prefix is given out before its head.
    pub(crate) fn release(&mut self, blocks: &[BlockId]) {
        for &id in blocks.iter().rev() {
            let block = &mut self.blocks[id.index()];
            block.references -= 1;
            if block.references == 0 {
                self.cached_free += u64::from(block.hash.is_some());
                self.push_free(id);
            }
        }
    }

    /// Takes the block's hash away, and the block out of the chain of its twins.
    fn forget(&mut self, id: BlockId) {
        let Some(hash) = self.blocks[id.index()].hash.take() else { return };
        let twin = self.blocks[id.index()].twin.take();
        let oldest = self.cached[&hash];
        if oldest != id {
            let mut before = oldest;
            while let Some(next) = self.blocks[before.index()].twin.filter(|next| *next != id) {
                before = next;
            }
            self.blocks[before.index()].twin = twin;
        } else if let Some(twin) = twin {
            self.cached.insert(hash, twin);
        } else {
            self.cached.remove(&hash);
        }
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
mod tests {
    use super::*;

    fn hashes(range: std::ops::Range<u64>) -> Vec<BlockHash> {
        range.map(BlockHash).collect()
    }

    /// A sequence that fills one block for each hash and ends.
    fn fill(pool: &mut BlockPool, hashes: &[BlockHash]) -> Vec<BlockId> {
        let blocks: Vec<BlockId> = hashes.iter().map(|_| pool.allocate().expect("room")).collect();
        blocks.iter().zip(hashes).for_each(|(block, hash)| pool.remember(*block, *hash));
        blocks
    }

    #[test]
    fn the_tail_of_a_prefix_is_evicted_before_its_head() {
        let mut pool = BlockPool::new(Blocks(4));
        let prefix = hashes(0..3);
        let blocks = fill(&mut pool, &prefix);
        pool.release(&blocks);
        assert_eq!((pool.in_use(), pool.resident()), (Blocks(0), Blocks(3)));
        let found: Vec<usize> = (0..4)
            .map(|_| {
                let taken = pool.allocate();
                assert!(taken.is_some());
                pool.lookup(&prefix).len()
            })
            .collect();
        assert_eq!(found, [3, 2, 1, 0], "first the never used block, then the tail");
        assert_eq!(pool.allocate(), None);
    }

    #[test]
    fn a_hit_saves_a_block_from_eviction() {
        let mut pool = BlockPool::new(Blocks(3));
        let blocks = fill(&mut pool, &hashes(0..3));
        pool.release(&blocks);
        let hit = pool.lookup(&hashes(0..2));
        assert_eq!(pool.free_among(&hit), Blocks(2));
        pool.take(&hit);
        assert_eq!((pool.free(), pool.in_use(), pool.resident()), (Blocks(1), Blocks(2), Blocks(3)));
        assert!(pool.allocate().is_some());
        assert_eq!(pool.allocate(), None, "the blocks in use are not given out");
        assert_eq!(pool.lookup(&hashes(0..3)).len(), 2);
    }

    #[test]
    fn equal_blocks_are_not_merged_and_go_one_by_one() {
        let mut pool = BlockPool::new(Blocks(3));
        let one = fill(&mut pool, &hashes(7..8));
        let two = fill(&mut pool, &hashes(7..8));
        let three = fill(&mut pool, &hashes(7..8));
        assert_eq!(pool.lookup(&hashes(7..8)), one, "the oldest is found");
        for released in [&two, &one, &three] {
            pool.release(released);
        }
        let mut left = Vec::new();
        while pool.allocate().is_some() {
            left.push(pool.lookup(&hashes(7..8)));
        }
        assert_eq!(left, [one, three, vec![]], "two went first, then one, then three");
    }
}
