//! Paged KV memory: which blocks are used, which are free, and which free ones still hold a known prefix.
//!
//! Rules of vLLM's `BlockPool` and `FreeKVCacheBlockQueue` (`vllm/v1/core/block_pool.py`, 0.32.0): one queue of
//! free blocks, least recently used first; a block keeps its hash while it waits there and loses it when it is
//! given out again; blocks with equal content are not merged.

use expediter_types::{BlockHash, BlockMap, Blocks};

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
    cached: BlockMap<BlockId>,
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
            cached: BlockMap::default(),
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
mod tests;
