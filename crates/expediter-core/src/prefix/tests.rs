//! The index against lists too simple to be wrong.

use std::collections::BTreeSet;

use expediter_types::{BlockHash, Prng};

use super::{PrefixIndex, Slot};

/// One list of blocks for each slot, the newest first.
#[derive(Default)]
struct Oracle(Vec<Vec<BlockHash>>);

impl Oracle {
    fn insert(&mut self, slot: usize, hashes: &[BlockHash], capacity: usize) {
        let list = &mut self.0[slot];
        list.retain(|hash| !hashes.contains(hash));
        list.splice(0..0, hashes.iter().copied());
        list.truncate(capacity);
    }

    fn longest_match(&self, slot: usize, hashes: &[BlockHash]) -> usize {
        hashes.iter().take_while(|hash| self.0[slot].contains(hash)).count()
    }

    /// Blocks that somebody holds, counted once for each 64 slots.
    fn blocks(&self, slots: &[Slot]) -> usize {
        let lists = self.0.iter().zip(slots);
        let held = lists.flat_map(|(list, slot)| list.iter().map(|hash| (slot.0 / 64, *hash)));
        held.collect::<BTreeSet<(usize, BlockHash)>>().len()
    }
}

/// A prompt of up to 12 blocks in which beginnings recur.
fn prompt(rng: &mut Prng) -> Vec<BlockHash> {
    let mut hash = BlockHash::root(rng.below(2) as u64);
    let length = rng.below(12);
    (0..length)
        .map(|_| {
            hash = hash.then_number(rng.below(4).saturating_sub(1) as u64);
            hash
        })
        .collect()
}

#[test]
fn the_index_agrees_with_lists() {
    for seed in 0..25 {
        let mut rng = Prng::new(seed);
        let (mut index, mut oracle, mut slots) = (PrefixIndex::default(), Oracle::default(), Vec::new());
        let replicas = [1, 5, 64, 65, 130][rng.below(5)];
        for _ in 0..replicas {
            slots.push(index.join());
            oracle.0.push(Vec::new());
        }
        for step in 0..400 {
            let at = rng.below(replicas);
            match rng.below(40) {
                0 => {
                    index.forget(slots[at]);
                    oracle.0[at].clear();
                }
                1 => {
                    index.leave(slots[at]);
                    slots[at] = index.join();
                    oracle.0[at].clear();
                }
                _ => {
                    let (hashes, capacity) = (prompt(&mut rng), 1 + rng.below(30));
                    index.insert(slots[at], &hashes, capacity);
                    oracle.insert(at, &hashes, capacity);
                }
            }
            let hashes = prompt(&mut rng);
            let matches = index.longest_match(&hashes);
            for (at, slot) in slots.iter().enumerate() {
                let expected = oracle.longest_match(at, &hashes);
                assert_eq!(matches.blocks(*slot), expected, "seed {seed}, step {step}, replica {at}");
            }
            if step % 20 == 0 {
                assert_eq!(index.blocks(), oracle.blocks(&slots), "seed {seed}, step {step}: blocks in all");
            }
        }
    }
}

fn chain(salt: u64, blocks: usize) -> Vec<BlockHash> {
    let mut hash = BlockHash::root(salt);
    (0..blocks as u64)
        .map(|number| {
            hash = hash.then_number(number);
            hash
        })
        .collect()
}

fn held(index: &PrefixIndex, slot: Slot, hashes: &[BlockHash]) -> usize {
    index.longest_match(hashes).blocks(slot)
}

#[test]
fn the_end_of_a_prompt_goes_before_its_beginning() {
    let mut index = PrefixIndex::default();
    let slot = index.join();
    let (old, new) = (chain(1, 8), chain(2, 6));
    index.insert(slot, &old, 10);
    index.insert(slot, &new, 10);
    assert_eq!((held(&index, slot, &old), held(&index, slot, &new)), (4, 6));
    index.insert(slot, &chain(3, 30), 10);
    assert_eq!(held(&index, slot, &chain(3, 30)), 10, "of a prompt that is too long the beginning is kept");
    assert_eq!(index.blocks(), 10);
}

#[test]
fn what_is_forgotten_leaves_nothing_behind() {
    let mut index = PrefixIndex::default();
    let (a, b) = (index.join(), index.join());
    let prompt = chain(1, 5);
    index.insert(a, &prompt, 100);
    index.insert(b, &prompt, 100);
    index.leave(a);
    assert_eq!((held(&index, a, &prompt), held(&index, b, &prompt)), (0, 5));
    let again = index.join();
    assert_eq!(held(&index, again, &prompt), 0, "a place that is given out again is empty");
    index.clear();
    assert_eq!((held(&index, b, &prompt), index.blocks()), (0, 0));
    index.insert(b, &prompt, 100);
    assert_eq!(held(&index, b, &prompt), 5);
}
