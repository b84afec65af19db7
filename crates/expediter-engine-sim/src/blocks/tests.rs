use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn hashes(range: std::ops::Range<u64>) -> Vec<BlockHash> {
    range.map(BlockHash).collect()
}

/// The longest known prefix.
fn lookup(pool: &BlockPool, hashes: &[BlockHash]) -> Vec<BlockId> {
    hashes.iter().map_while(|hash| pool.find(*hash)).collect()
}

/// A sequence that fills one block for each hash and ends.
fn fill(pool: &mut BlockPool, hashes: &[BlockHash]) -> Vec<BlockId> {
    let blocks: Vec<BlockId> = hashes.iter().map(|_| pool.allocate().expect("room")).collect();
    blocks.iter().zip(hashes).for_each(|(block, hash)| pool.remember(*block, *hash));
    blocks
}

#[test]
fn the_tail_of_a_prefix_is_evicted_before_its_head() {
    let mut pool = BlockPool::new(Blocks(4), false);
    let prefix = hashes(0..3);
    let blocks = fill(&mut pool, &prefix);
    pool.release(&blocks);
    assert_eq!((pool.in_use(), pool.resident()), (Blocks(0), Blocks(3)));
    let found: Vec<usize> = (0..4)
        .map(|_| {
            let taken = pool.allocate();
            assert!(taken.is_some());
            lookup(&pool, &prefix).len()
        })
        .collect();
    assert_eq!(found, [3, 2, 1, 0], "first the never used block, then the tail");
    assert_eq!(pool.allocate(), None);
}

#[test]
fn a_hit_saves_a_block_from_eviction() {
    let mut pool = BlockPool::new(Blocks(3), false);
    let blocks = fill(&mut pool, &hashes(0..3));
    pool.release(&blocks);
    let hit = lookup(&pool, &hashes(0..2));
    assert_eq!(pool.free_among(&hit), Blocks(2));
    pool.take(&hit);
    assert_eq!((pool.free(), pool.in_use(), pool.resident()), (Blocks(1), Blocks(2), Blocks(3)));
    assert!(pool.allocate().is_some());
    assert_eq!(pool.allocate(), None, "the blocks in use are not given out");
    assert_eq!(lookup(&pool, &hashes(0..3)).len(), 2);
}

#[test]
fn equal_blocks_are_not_merged_and_go_one_by_one() {
    let mut pool = BlockPool::new(Blocks(3), false);
    let one = fill(&mut pool, &hashes(7..8));
    let two = fill(&mut pool, &hashes(7..8));
    let three = fill(&mut pool, &hashes(7..8));
    assert_eq!(lookup(&pool, &hashes(7..8)), one, "the oldest is found");
    for released in [&two, &one, &three] {
        pool.release(released);
    }
    let mut left = Vec::new();
    while pool.allocate().is_some() {
        left.push(lookup(&pool, &hashes(7..8)));
    }
    assert_eq!(left, [one, three, vec![]], "two went first, then one, then three");
}

/// The pool as a list: every rule in its plainest form, and slow.
#[derive(Debug)]
struct Oracle {
    /// References and hash of each block.
    blocks: Vec<(u32, Option<BlockHash>)>,
    /// Least recently used first.
    free: VecDeque<usize>,
    /// Who holds which hash, in the order in which they came to it.
    known: Vec<(BlockHash, usize)>,
}

impl Oracle {
    fn new(blocks: usize) -> Self {
        Self { blocks: vec![(0, None); blocks], free: (0..blocks).collect(), known: Vec::new() }
    }

    fn lookup(&self, hashes: &[BlockHash]) -> Vec<usize> {
        let find =
            |hash: &BlockHash| self.known.iter().find(|(known, _)| known == hash).map(|(_, block)| *block);
        hashes.iter().map_while(find).collect()
    }

    fn take(&mut self, blocks: &[usize]) {
        for block in blocks {
            self.free.retain(|free| free != block);
            self.blocks[*block].0 += 1;
        }
    }

    fn allocate(&mut self) -> Option<usize> {
        let block = self.free.pop_front()?;
        self.known.retain(|(_, known)| *known != block);
        self.blocks[block] = (1, None);
        Some(block)
    }

    fn remember(&mut self, block: usize, hash: BlockHash) {
        self.blocks[block].1 = Some(hash);
        self.known.push((hash, block));
    }

    fn release(&mut self, blocks: &[usize]) {
        for block in blocks {
            self.blocks[*block].0 -= 1;
        }
        let tail_first = blocks.iter().rev().copied().filter(|block| self.blocks[*block].0 == 0);
        let (empty, full): (Vec<usize>, Vec<usize>) =
            tail_first.partition(|block| self.blocks[*block].1.is_none());
        self.free = empty.into_iter().chain(self.free.drain(..)).chain(full).collect();
    }

    fn reset(&mut self) -> bool {
        let idle = self.free.len() == self.blocks.len();
        if idle {
            self.known.clear();
            self.blocks.fill((0, None));
        }
        idle
    }

    fn resident(&self) -> usize {
        self.blocks.iter().filter(|(references, hash)| *references > 0 || hash.is_some()).count()
    }
}

/// A sequence comes with a prefix of a text and as many blocks, of which the last may be filled in part; or one that
/// is there leaves; or the cache is reset.
#[derive(Clone, Debug)]
enum Act {
    Come { text: u64, blocks: u64, reuse: bool, partial: bool },
    Leave(usize),
    Reset,
}

fn act() -> impl Strategy<Value = Act> {
    let come = (0..3_u64, 1..6_u64, any::<bool>(), any::<bool>());
    prop_oneof![
        6 => come.prop_map(|(text, blocks, reuse, partial)| Act::Come { text, blocks, reuse, partial }),
        4 => any::<usize>().prop_map(Act::Leave),
        1 => Just(Act::Reset),
    ]
}

/// Pool and oracle, side by side.
struct Pair {
    pool: BlockPool,
    oracle: Oracle,
    here: Vec<Vec<BlockId>>,
}

fn plain(blocks: &[BlockId]) -> Vec<usize> {
    blocks.iter().map(|block| block.index()).collect()
}

impl Pair {
    fn act(&mut self, act: &Act) {
        match *act {
            Act::Come { text, blocks, reuse, partial } => self.come(text, blocks, reuse, partial),
            Act::Leave(_) if self.here.is_empty() => {}
            Act::Leave(which) => {
                let held = self.here.swap_remove(which % self.here.len());
                self.pool.release(&held);
                self.oracle.release(&plain(&held));
            }
            Act::Reset => assert_eq!(self.pool.reset(), self.oracle.reset()),
        }
    }

    fn come(&mut self, text: u64, blocks: u64, reuse: bool, partial: bool) {
        let wanted = hashes(text * 100..text * 100 + blocks);
        let mut held = if reuse { lookup(&self.pool, &wanted) } else { Vec::new() };
        if reuse {
            assert_eq!(plain(&held), self.oracle.lookup(&wanted));
        }
        self.pool.take(&held);
        self.oracle.take(&plain(&held));
        for (place, hash) in wanted.iter().enumerate().skip(held.len()) {
            let block = self.pool.allocate();
            assert_eq!(block.map(BlockId::index), self.oracle.allocate());
            let Some(block) = block else { break };
            held.push(block);
            if !partial || place + 1 < wanted.len() {
                self.pool.remember(block, *hash);
                self.oracle.remember(block.index(), *hash);
            }
        }
        self.here.push(held);
    }
}

proptest! {
    #[test]
    fn the_pool_does_what_a_plain_list_would(acts in prop::collection::vec(act(), 0..120), size in 1..20_usize) {
        let pool = BlockPool::new(Blocks(size as u64), false);
        let mut pair = Pair { pool, oracle: Oracle::new(size), here: Vec::new() };
        for act in acts {
            pair.act(&act);
            prop_assert_eq!(pair.pool.free().0, pair.oracle.free.len() as u64);
            prop_assert_eq!(pair.pool.in_use().0 + pair.pool.free().0, pair.pool.len().0);
            prop_assert_eq!(pair.pool.resident().0, pair.oracle.resident() as u64);
        }
    }
}
