//! Where prompts are likely to be cached, predicted from this gateway's own dispatches.
//!
//! A replica is taken to hold the blocks of the prompts it was sent, as many as its KV memory holds, the least
//! recently sent dropped first. That is what the engine does with its own blocks, but for those of the answers
//! and of requests that came another way.

use std::fmt;

use expediter_types::{BlockHash, BlockMap};

/// Blocks of prompts and the replicas that are likely to hold them.
///
/// A block is known by its hash alone, which is chained with all blocks before it. In each [`Slot`] blocks are
/// kept in order of their last use, the end of a prompt before its beginning: as in the engine, which frees a
/// request's blocks from the tail, the beginning outlives the end.
///
/// Memory: a block costs about 50 bytes in each slot that holds it, and once for all about 35 bytes and one more
/// for every 8 slots. 64 replicas of 27,000 blocks each that share nothing take 160 MB.
#[derive(Default)]
pub(crate) struct PrefixIndex {
    /// The owners of a block, as a row of `owners`.
    rows: BlockMap<u32>,
    /// One bit for each slot: `words` words in each row.
    owners: Vec<u64>,
    words: usize,
    free_rows: Vec<u32>,
    slots: Vec<Recent>,
    free_slots: Vec<Slot>,
}

/// A replica's place in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(usize);

impl Slot {
    const fn word(self) -> usize {
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
        if let Some(slot) = self.free_slots.pop() {
            return slot;
        }
        let slot = Slot(self.slots.len());
        self.slots.push(Recent::default());
        if slot.word() >= self.words {
            self.widen();
        }
        slot
    }

    /// Gives the place of a replica back.
    pub(crate) fn leave(&mut self, slot: Slot) {
        self.forget(slot);
        self.free_slots.push(slot);
    }

    /// The replica holds nothing any more.
    pub(crate) fn forget(&mut self, slot: Slot) {
        for hash in std::mem::take(&mut self.slots[slot.0]).into_hashes() {
            self.disown(slot, hash);
        }
    }

    /// Nobody holds anything any more. The places stay.
    pub(crate) fn clear(&mut self) {
        self.rows = BlockMap::default();
        self.owners = Vec::new();
        self.free_rows = Vec::new();
        self.slots.fill_with(Recent::default);
    }

    /// How many leading blocks of a prompt each replica holds, in one walk over the prompt.
    pub(crate) fn longest_match(&self, hashes: &[BlockHash]) -> Matches {
        let mut matches = vec![0; self.slots.len()];
        let mut holders = vec![u64::MAX; self.words];
        for (depth, hash) in hashes.iter().enumerate() {
            let Some(row) = self.rows.get(hash) else {
                Self::settle(&mut holders, |_| 0, depth, &mut matches);
                return Matches(matches);
            };
            let owners = &self.owners[*row as usize * self.words..][..self.words];
            if !Self::settle(&mut holders, |word| owners[word], depth, &mut matches) {
                return Matches(matches);
            }
        }
        Self::settle(&mut holders, |_| 0, hashes.len(), &mut matches);
        Matches(matches)
    }

    /// Takes those that are no owners of the block at `depth` out of `holders` and writes how far they came.
    /// Returns whether anybody is left.
    fn settle(
        holders: &mut [u64],
        owners: impl Fn(usize) -> u64,
        depth: usize,
        matches: &mut [usize],
    ) -> bool {
        let mut left = 0;
        for (word, holders) in holders.iter_mut().enumerate() {
            let mut lost = *holders & !owners(word);
            *holders ^= lost;
            left |= *holders;
            // At depth 0 all that is lost has matched nothing, which is what stands there already.
            while depth > 0 && lost != 0 {
                matches[word * 64 + lost.trailing_zeros() as usize] = depth;
                lost &= lost - 1;
            }
        }
        left != 0
    }

    /// The replica was sent a prompt: it holds these blocks now, and no more than `capacity` in all.
    pub(crate) fn insert(&mut self, slot: Slot, hashes: &[BlockHash], capacity: usize) {
        for hash in hashes.iter().rev() {
            if self.slots[slot.0].touch(*hash) {
                self.own(slot, *hash);
            }
        }
        // Only now, so that a prompt never drives out its own beginning.
        while self.slots[slot.0].len() > capacity {
            if let Some(hash) = self.slots[slot.0].pop_oldest() {
                self.disown(slot, hash);
            }
        }
    }

    fn own(&mut self, slot: Slot, hash: BlockHash) {
        let row = match self.rows.get(&hash) {
            Some(row) => *row as usize,
            None => self.add_row(hash),
        };
        self.owners[row * self.words + slot.word()] |= slot.bit();
    }

    fn add_row(&mut self, hash: BlockHash) -> usize {
        let row = self.free_rows.pop().unwrap_or_else(|| {
            let row = self.owners.len() / self.words;
            self.owners.resize(self.owners.len() + self.words, 0);
            u32::try_from(row).expect("fewer than 2³² blocks fit the memory of a machine")
        });
        self.rows.insert(hash, row);
        row as usize
    }

    fn disown(&mut self, slot: Slot, hash: BlockHash) {
        let Some(row) = self.rows.get(&hash).copied() else { return };
        let start = row as usize * self.words;
        self.owners[start + slot.word()] &= !slot.bit();
        if self.owners[start..start + self.words].iter().all(|word| *word == 0) {
            self.rows.remove(&hash);
            self.free_rows.push(row);
        }
    }

    /// Makes room for 64 more slots in every row.
    fn widen(&mut self) {
        let words = self.words + 1;
        if self.words > 0 {
            let widened = self.owners.chunks_exact(self.words);
            self.owners = widened.flat_map(|row| row.iter().copied().chain([0])).collect();
        }
        self.words = words;
    }

    /// Blocks that somebody holds.
    pub(crate) fn blocks(&self) -> usize {
        self.rows.len()
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

    /// Makes a block the newest; `true` where it was not there before.
    fn touch(&mut self, hash: BlockHash) -> bool {
        if let Some(place) = self.places.get(&hash).copied() {
            if place != self.newest {
                self.unlink(place);
                self.link(place);
            }
            return false;
        }
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
        true
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
