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
        for block in blocks.iter().rev() {
            self.blocks[*block].0 -= 1;
            if self.blocks[*block].0 == 0 {
                self.free.push_back(*block);
            }
        }
    }

    fn resident(&self) -> usize {
        self.blocks.iter().filter(|(references, hash)| *references > 0 || hash.is_some()).count()
    }
}

/// A sequence comes with a prefix of a text and as many blocks, or one that is there leaves.
#[derive(Clone, Debug)]
enum Act {
    Come { text: u64, blocks: u64, reuse: bool },
    Leave(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0..3_u64, 1..6_u64, any::<bool>()).prop_map(|(text, blocks, reuse)| Act::Come { text, blocks, reuse }),
        2 => any::<usize>().prop_map(Act::Leave),
    ]
}

proptest! {
    #[test]
    fn the_pool_does_what_a_plain_list_would(acts in prop::collection::vec(act(), 0..120), size in 1..20_usize) {
        let (mut pool, mut oracle) = (BlockPool::new(Blocks(size as u64), false), Oracle::new(size));
        let mut here: Vec<Vec<BlockId>> = Vec::new();
        let plain = |blocks: &[BlockId]| blocks.iter().map(|block| block.index()).collect::<Vec<usize>>();
        for act in acts {
            match act {
                Act::Come { text, blocks, reuse } => {
                    let wanted = hashes(text * 100..text * 100 + blocks);
                    let mut held = if reuse { lookup(&pool, &wanted) } else { Vec::new() };
                    if reuse {
                        prop_assert_eq!(plain(&held), oracle.lookup(&wanted));
                    }
                    pool.take(&held);
                    oracle.take(&plain(&held));
                    for hash in &wanted[held.len()..] {
                        let block = pool.allocate();
                        prop_assert_eq!(block.map(BlockId::index), oracle.allocate());
                        let Some(block) = block else { break };
                        pool.remember(block, *hash);
                        oracle.remember(block.index(), *hash);
                        held.push(block);
                    }
                    here.push(held);
                }
                Act::Leave(_) if here.is_empty() => {}
                Act::Leave(which) => {
                    let held = here.swap_remove(which % here.len());
                    pool.release(&held);
                    oracle.release(&plain(&held));
                }
            }
            prop_assert_eq!(pool.free().0, oracle.free.len() as u64);
            prop_assert_eq!(pool.in_use().0 + pool.free().0, pool.len().0);
            prop_assert_eq!(pool.resident().0, oracle.resident() as u64);
        }
    }
}
