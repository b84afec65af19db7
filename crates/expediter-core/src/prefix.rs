//! Where prompts are likely to be cached, predicted from this gateway's own dispatches.
//!
//! A replica is taken to hold the blocks of the prompts it was sent, as many as its KV memory holds, the least
//! recently sent dropped first. That is what the engine does with its own blocks, but for those of the answers
//! and of requests that came another way.

use std::collections::hash_map::Entry;
use std::fmt;

use expediter_types::{BlockHash, BlockMap};

/// Blocks of prompts and the replicas that are likely to hold them.
///
/// A block is known by its hash alone, which is chained with all blocks before it. In each [`Slot`] blocks are
/// kept in order of their last use, the end of a prompt before its beginning: as in the engine, which frees a
/// request's blocks from the tail, the beginning outlives the end.
///
/// Memory: a block costs 40 to 60 bytes in each slot that holds it, and 20 to 40 once for every 64 slots of which
/// one does. 64 replicas of 27,000 blocks each that share nothing take 100 to 170 MB.
#[derive(Default)]
pub(crate) struct PrefixIndex {
    /// For every 64 slots, the blocks that one of them holds, with one bit for each that does.
    owners: Vec<BlockMap<u64>>,
    slots: Vec<Recent>,
    free: Vec<Slot>,
}

/// A replica's place in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(usize);

impl Slot {
    const fn group(self) -> usize {
        self.0 / 64
    }

    const fn bit(self) -> u64 {
        1 << (self.0 % 64)
    }
}

/// Leading blocks of a prompt that each slot holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Matches(Vec<usize>);

impl Matches {
    /// The leading blocks that `slot` holds.
    pub(crate) fn blocks(&self, slot: Slot) -> usize {
        self.0.get(slot.0).copied().unwrap_or(0)
    }
}

impl PrefixIndex {
    /// A place for one more replica, which holds nothing.
    pub(crate) fn join(&mut self) -> Slot {
        self.free.pop().unwrap_or_else(|| {
            let slot = Slot(self.slots.len());
            self.slots.push(Recent::default());
            if slot.group() == self.owners.len() {
                self.owners.push(BlockMap::default());
            }
            slot
        })
    }

    /// Gives the place of a replica back.
    pub(crate) fn leave(&mut self, slot: Slot) {
        self.forget(slot);
        self.free.push(slot);
    }

    /// The replica holds nothing any more. Costs as much as it held: about 0.1 µs a block.
    pub(crate) fn forget(&mut self, slot: Slot) {
        for hash in std::mem::take(&mut self.slots[slot.0]).into_hashes() {
            self.disown(slot, hash);
        }
    }

    /// Nobody holds anything any more. The places stay.
    pub(crate) fn clear(&mut self) {
        self.owners.fill_with(BlockMap::default);
        self.slots.fill_with(Recent::default);
    }

    /// How many leading blocks of a prompt each replica holds: one walk over the prompt for every 64 of them.
    pub(crate) fn longest_match(&self, hashes: &[BlockHash]) -> Matches {
        let mut matches = vec![0; self.owners.len() * 64];
        for (owners, matches) in self.owners.iter().zip(matches.chunks_exact_mut(64)) {
            let mut holders = u64::MAX;
            for (depth, hash) in hashes.iter().enumerate() {
                let owners = owners.get(hash).copied().unwrap_or(0);
                if holders & !owners != 0 {
                    settle(holders & !owners, depth, matches);
                    holders &= owners;
                    if holders == 0 {
                        break;
                    }
                }
            }
            settle(holders, hashes.len(), matches);
        }
        Matches(matches)
    }

    /// The replica was sent a prompt: it holds these blocks now, and no more than `capacity` in all.
    pub(crate) fn insert(&mut self, slot: Slot, hashes: &[BlockHash], capacity: usize) {
        let recent = &mut self.slots[slot.0];
        let owners = &mut self.owners[slot.group()];
        recent.touch(hashes, |hash| *owners.entry(hash).or_default() |= slot.bit());
        // Only now, so that a prompt never drives out its own beginning.
        while self.slots[slot.0].len() > capacity {
            if let Some(hash) = self.slots[slot.0].pop_oldest() {
                self.disown(slot, hash);
            }
        }
    }

    fn disown(&mut self, slot: Slot, hash: BlockHash) {
        if let Entry::Occupied(mut entry) = self.owners[slot.group()].entry(hash) {
            *entry.get_mut() &= !slot.bit();
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }

    /// Blocks that somebody holds, those that several groups of 64 hold counted in each.
    pub(crate) fn blocks(&self) -> usize {
        self.owners.iter().map(BlockMap::len).sum()
    }
}

/// Writes how far those came whose bits are set.
fn settle(mut lost: u64, depth: usize, matches: &mut [usize]) {
    // Nothing is what stands there already.
    while depth > 0 && lost != 0 {
        matches[lost.trailing_zeros() as usize] = depth;
        lost &= lost - 1;
    }
}

impl fmt::Debug for PrefixIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefixIndex({} blocks, {} slots)", self.blocks(), self.slots.len())
    }
}

/// The blocks of one replica in order of their last use: a map into a list that is linked both ways.
struct Recent {
    places: BlockMap<u32>,
    links: Vec<Link>,
    newest: u32,
    oldest: u32,
    free: u32,
}

#[derive(Clone, Copy)]
struct Link {
    hash: BlockHash,
    /// Towards the newest; in a free place, the next free one.
    newer: u32,
    older: u32,
}

/// Where a list ends.
const END: u32 = u32::MAX;

impl Default for Recent {
    fn default() -> Self {
        Self { places: BlockMap::default(), links: Vec::new(), newest: END, oldest: END, free: END }
    }
}

impl Recent {
    fn len(&self) -> usize {
        self.places.len()
    }

    /// Makes the blocks of a prompt the newest, the first one last, and calls `added` for those that were not
    /// there before.
    fn touch(&mut self, hashes: &[BlockHash], mut added: impl FnMut(BlockHash)) {
        // All are looked up before any is moved: lookups that do not wait for each other overlap in the memory.
        let places: Vec<u32> =
            hashes.iter().map(|hash| self.places.get(hash).copied().unwrap_or(END)).collect();
        for (hash, place) in hashes.iter().zip(places).rev() {
            if place == END {
                self.add(*hash);
                added(*hash);
            } else if place != self.newest {
                self.unlink(place);
                self.link(place);
            }
        }
    }

    fn add(&mut self, hash: BlockHash) {
        let link = Link { hash, newer: END, older: END };
        let place = if self.free == END {
            self.links.push(link);
            u32::try_from(self.links.len() - 1).expect("fewer than 2³² blocks fit the memory of a machine")
        } else {
            let place = self.free;
            self.free = self.links[place as usize].newer;
            self.links[place as usize] = link;
            place
        };
        self.places.insert(hash, place);
        self.link(place);
    }

    fn pop_oldest(&mut self) -> Option<BlockHash> {
        let place = self.oldest;
        let hash = self.links.get(place as usize)?.hash;
        self.unlink(place);
        self.links[place as usize].newer = self.free;
        self.free = place;
        self.places.remove(&hash);
        Some(hash)
    }

    fn link(&mut self, place: u32) {
        let newest = self.newest;
        self.links[place as usize].newer = END;
        self.links[place as usize].older = newest;
        match self.links.get_mut(newest as usize) {
            Some(link) => link.newer = place,
            None => self.oldest = place,
        }
        self.newest = place;
    }

    fn unlink(&mut self, place: u32) {
        let Link { newer, older, .. } = self.links[place as usize];
        match self.links.get_mut(newer as usize) {
            Some(link) => link.older = older,
            None => self.newest = older,
        }
        match self.links.get_mut(older as usize) {
            Some(link) => link.newer = newer,
            None => self.oldest = newer,
        }
    }

    /// The blocks, the newest first.
    fn into_hashes(self) -> impl Iterator<Item = BlockHash> {
        let mut place = self.newest;
        std::iter::from_fn(move || {
            let link = self.links.get(place as usize)?;
            place = link.older;
            Some(link.hash)
        })
    }
}

#[cfg(test)]
mod tests;
