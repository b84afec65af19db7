//! Tokens and KV blocks.

use std::iter::Sum;
use std::num::NonZeroU32;
use std::ops::{Add, AddAssign};

/// A number of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tokens(pub u64);

/// A number of KV blocks, the engine's unit of paged memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blocks(pub u64);

/// Tokens in one KV block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize(pub NonZeroU32);

impl BlockSize {
    /// What vLLM takes on a GPU where it is not told otherwise.
    pub const DEFAULT: Self = Self(NonZeroU32::new(16).unwrap());
}

impl Tokens {
    /// No tokens.
    pub const ZERO: Self = Self(0);

    /// Blocks that these tokens occupy; a block filled in part counts whole.
    pub const fn to_blocks(self, size: BlockSize) -> Blocks {
        Blocks(self.0.div_ceil(size.0.get() as u64))
    }

    /// Blocks that these tokens fill to the end: only those can be found in a prefix cache.
    pub const fn to_full_blocks(self, size: BlockSize) -> Blocks {
        Blocks(self.0 / size.0.get() as u64)
    }

    /// The difference, zero where `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Tokens {
    type Output = Self;

    /// Saturates: a client may claim absurd numbers.
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Tokens {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Tokens {
    fn sum<I: Iterator<Item = Self>>(tokens: I) -> Self {
        tokens.fold(Self::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_block_is_occupied_but_not_full() {
        let size = BlockSize(NonZeroU32::new(16).unwrap());
        // (tokens, blocks occupied, blocks full); 1,800 and 1,500 are the requirements' own examples.
        for (tokens, occupied, full) in [(0, 0, 0), (1, 1, 0), (16, 1, 1), (1_800, 113, 112), (1_500, 94, 93)]
        {
            assert_eq!(Tokens(tokens).to_blocks(size), Blocks(occupied), "{tokens} occupied");
            assert_eq!(Tokens(tokens).to_full_blocks(size), Blocks(full), "{tokens} full");
        }
    }
}
