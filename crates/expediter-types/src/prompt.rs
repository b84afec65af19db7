//! A prompt as engine and router see it: a length, and one chained hash for each block that may be shared.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use crate::{BlockSize, ModelId, Tokens};

/// Hash of one full block chained with all blocks before it: equal hash, equal prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u64);

impl BlockHash {
    /// The parent of every first block. `salt` keeps apart what must not share blocks: see [`BlockHash::salt`].
    pub const fn root(salt: u64) -> Self {
        Self(mix(salt ^ 0x6a09_e667_f3bc_c908))
    }

    /// The salt of a root under which an adapter's blocks are found, and under a client's cache salt only its own.
    /// The base model without one has salt 0.
    pub const fn salt(adapter: Option<ModelId>, cache_salt: u64) -> u64 {
        match adapter {
            None => cache_salt,
            Some(ModelId(id)) => mix(mix(cache_salt) ^ id as u64),
        }
    }

    /// What a name is known by where a number must stand for it: equal names and seeds, equal hashes.
    pub fn of_name(seed: u64, name: &str) -> Self {
        name.bytes().fold(Self::root(seed), |hash, byte| hash.then_number(byte.into()))
    }

    /// The hash of the block that holds `ids` and follows `self`.
    #[must_use]
    pub fn then(self, ids: &[u32]) -> Self {
        Self(ids.iter().fold(mix(self.0), |state, id| mix(state ^ u64::from(*id))))
    }

    /// The hash of a block that is known by a number, not by its tokens, and follows `self`.
    #[must_use]
    pub const fn then_number(self, number: u64) -> Self {
        Self(mix(mix(self.0) ^ number))
    }
}

/// A map by block hash. The hash is its own: it is well mixed already. Its order means nothing, but is the same
/// in every run; whoever walks over it must not care for the order.
#[expect(clippy::disallowed_types, reason = "with a fixed hasher it is the same in every run")]
pub type BlockMap<V> = std::collections::HashMap<BlockHash, V, BuildHasherDefault<BlockHasher>>;

/// A set of block hashes, with what is said of [`BlockMap`].
#[expect(clippy::disallowed_types, reason = "with a fixed hasher it is the same in every run")]
pub type BlockSet = std::collections::HashSet<BlockHash, BuildHasherDefault<BlockHasher>>;

/// Takes a [`BlockHash`] as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = mix(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The tokens that a request brings, without their values: what can be shared is known by its hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    tokens: Tokens,
    block_size: BlockSize,
    hashes: Arc<[BlockHash]>,
}

impl Prompt {
    /// A prompt of these token ids. Prompts share blocks only where `salt` is equal.
    pub fn from_token_ids(ids: &[u32], block_size: BlockSize, salt: u64) -> Self {
        Self::with_continuation(ids, &[], block_size, salt)
    }

    /// As `from_token_ids`, where the tokens that will be produced are known as well: a later prompt that
    /// repeats prompt and answer then finds the blocks of both.
    pub fn with_continuation(ids: &[u32], output: &[u32], block_size: BlockSize, salt: u64) -> Self {
        let size = block_size.0.get() as usize;
        let (mut hash, mut hashes) =
            (BlockHash::root(salt), Vec::with_capacity((ids.len() + output.len()) / size));
        let mut push = |block: &[u32]| {
            hash = hash.then(block);
            hashes.push(hash);
        };
        let mut blocks = ids.chunks_exact(size);
        blocks.by_ref().for_each(&mut push);
        // The block that the prompt leaves half full is filled by the first tokens of the output.
        let mut seam = blocks.remainder().to_vec();
        let (head, tail) = output.split_at(output.len().min(size - seam.len()));
        seam.extend_from_slice(head);
        if seam.len() == size {
            push(&seam);
        }
        tail.chunks_exact(size).for_each(push);
        Self { tokens: Tokens(ids.len() as u64), block_size, hashes: hashes.into() }
    }

    /// A prompt known by its block hashes only, as a trace gives them. Hashes beyond the prompt's full blocks
    /// belong to its output; where they are absent, those blocks are never shared.
    pub fn from_hashes(tokens: Tokens, block_size: BlockSize, hashes: impl Into<Arc<[BlockHash]>>) -> Self {
        Self { tokens, block_size, hashes: hashes.into() }
    }

    /// A prompt of which nothing but the length is known.
    pub fn opaque(tokens: Tokens) -> Self {
        Self::from_hashes(tokens, BlockSize::DEFAULT, [])
    }

    /// The length of the prompt.
    pub const fn tokens(&self) -> Tokens {
        self.tokens
    }

    /// Tokens in each of the blocks that the hashes stand for.
    pub const fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// One hash for each full block of the prompt itself, as far as they are known.
    pub fn prompt_hashes(&self) -> &[BlockHash] {
        let full = usize::try_from(self.tokens.to_full_blocks(self.block_size).0).unwrap_or(usize::MAX);
        &self.hashes[..full.min(self.hashes.len())]
    }

    /// The same prompt in larger blocks: each takes the hash of the last of those that it consists of, which stands
    /// for all before it. `None` where `size` is no multiple of the present one.
    pub fn in_blocks_of(&self, size: BlockSize) -> Option<Self> {
        let (own, wanted) = (self.block_size.0.get(), size.0.get());
        if own == wanted {
            return Some(self.clone());
        }
        let factor = usize::try_from(wanted / own).unwrap_or(usize::MAX);
        let last = |blocks: &[BlockHash]| blocks[factor - 1];
        let hashes = || self.hashes.chunks_exact(factor).map(last).collect::<Vec<_>>();
        wanted.is_multiple_of(own).then(|| Self::from_hashes(self.tokens, size, hashes()))
    }

    /// One hash for each leading full block of prompt and, where known, output.
    pub fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }
}

/// The finaliser of `SplitMix64`: every input bit reaches every output bit.
/// Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    const SIZE: BlockSize = BlockSize(NonZeroU32::new(4).unwrap());

    #[test]
    fn a_hash_stands_for_the_whole_prefix() {
        let hashes = |ids: &[u32], salt| Prompt::from_token_ids(ids, SIZE, salt).hashes().to_vec();
        let a = hashes(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 0);
        assert_eq!(a.len(), 2, "only full blocks have a hash");
        assert_eq!(a[0], hashes(&[1, 2, 3, 4], 0)[0]);
        assert_ne!(a[1], hashes(&[0, 2, 3, 4, 5, 6, 7, 8], 0)[1], "a later block knows its parents");
        assert_ne!(a[0], hashes(&[1, 2, 3, 4], 1)[0], "a salt keeps apart");
    }

    #[test]
    fn adapters_and_salts_share_nothing() {
        let salts = [None, Some(ModelId(0)), Some(ModelId(1))]
            .into_iter()
            .flat_map(|adapter| [0, 1].map(|cache_salt| BlockHash::salt(adapter, cache_salt)));
        let mut roots: Vec<BlockHash> = salts.map(BlockHash::root).collect();
        roots.sort();
        roots.dedup();
        assert_eq!(roots.len(), 6);
        assert_eq!(BlockHash::salt(None, 0), 0);
    }

    #[test]
    fn larger_blocks_share_what_their_parts_share() {
        let in_blocks = |ids: &[u32], size: u32| {
            let size = BlockSize(NonZeroU32::new(size).unwrap());
            Prompt::from_token_ids(ids, SIZE, 0).in_blocks_of(size)
        };
        let ids: Vec<u32> = (0..21).collect();
        assert_eq!(in_blocks(&ids, 4), Some(Prompt::from_token_ids(&ids, SIZE, 0)));
        assert_eq!(in_blocks(&ids, 6), None);
        let eights = in_blocks(&ids, 8).unwrap();
        assert_eq!((eights.hashes().len(), eights.prompt_hashes().len()), (2, 2));
        let mut other = ids.clone();
        other[9] = 99;
        let other = in_blocks(&other, 8).unwrap();
        assert_eq!(eights.hashes()[0], other.hashes()[0]);
        assert_ne!(eights.hashes()[1], other.hashes()[1]);
    }

    #[test]
    fn the_next_turn_finds_prompt_and_answer() {
        let ids: Vec<u32> = (0..13).collect();
        for cut in 0..=ids.len() {
            let (prompt, output) = ids.split_at(cut);
            let turn = Prompt::with_continuation(prompt, output, SIZE, 0);
            assert_eq!(turn.hashes(), Prompt::from_token_ids(&ids, SIZE, 0).hashes(), "cut at {cut}");
            assert_eq!(turn.tokens(), Tokens(cut as u64));
            assert_eq!(
                turn.prompt_hashes(),
                Prompt::from_token_ids(prompt, SIZE, 0).hashes(),
                "cut at {cut}"
            );
        }
    }
}
