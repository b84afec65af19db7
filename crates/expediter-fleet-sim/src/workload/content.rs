//! What prompts are made of: streams of tokens that are known by their blocks' hashes only.

use std::sync::Arc;

use expediter_types::{BlockHash, BlockSize, Prompt, Tokens};

/// An endless stream of tokens of which a request brings the first ones and the engine produces the next: a
/// prefix that other streams may share, then tokens of its own. A later turn of a conversation is the same stream,
/// cut further on, and so finds the blocks of earlier prompts and answers.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    shared: Arc<[BlockHash]>,
    /// Where the stream's own blocks hang.
    own: BlockHash,
}

impl Stream {
    /// A stream of its own from the first token on.
    pub(super) fn unique(number: u64) -> Self {
        Self { shared: Arc::default(), own: BlockHash::root(OWN).then_number(number) }
    }

    /// The full blocks of `prefix`, then a stream of its own.
    pub(super) fn after(prefix: &Prefix, number: u64) -> Self {
        let last = prefix.0.last().copied().unwrap_or(BlockHash::root(OWN));
        Self { shared: Arc::clone(&prefix.0), own: last.then_number(number) }
    }

    /// The request that brings the first `prompt` tokens and is answered with the next `output`.
    pub(super) fn prompt(&self, prompt: Tokens, output: Tokens) -> Prompt {
        let blocks = (prompt + output).to_full_blocks(BlockSize::DEFAULT).0;
        let shared = usize::try_from(blocks).unwrap_or(usize::MAX).min(self.shared.len());
        let own = self.own;
        // A stream's own blocks are numbered, not chained: what no other stream has needs no parent to be told
        // apart, and numbering is faster.
        let numbered = (0..blocks - shared as u64).map(move |number| own.then_number(number));
        let hashes: Arc<[BlockHash]> = self.shared[..shared].iter().copied().chain(numbered).collect();
        Prompt::from_hashes(prompt, BlockSize::DEFAULT, hashes)
    }
}

/// Full blocks that several streams begin with.
#[derive(Clone, Debug, Default)]
pub(super) struct Prefix(Arc<[BlockHash]>);

impl Prefix {
    /// The `number`th prefix, of `tokens`. A last block that it does not fill is shared by nobody. Prefixes under
    /// different `salt`s share nothing, as with adapters.
    pub(super) fn new(number: u64, tokens: Tokens, salt: u64) -> Self {
        let blocks = tokens.to_full_blocks(BlockSize::DEFAULT).0;
        let root = BlockHash::root(salt ^ SHARED).then_number(number);
        Self((0..blocks).map(|block| root.then_number(block)).collect())
    }
}

/// Salts that keep prefixes and unshared streams apart: the fractional parts of the square roots of 3 and 5.
const SHARED: u64 = 0xbb67_ae85_84ca_a73b;
const OWN: u64 = 0x3c6e_f372_fe94_f82b;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_turn_finds_earlier_prompts_and_answers() {
        let stream = Stream::after(&Prefix::new(1, Tokens(40), 0), 7);
        let (first, second) =
            (stream.prompt(Tokens(100), Tokens(50)), stream.prompt(Tokens(170), Tokens(20)));
        assert_eq!(first.hashes().len(), 9, "150 tokens fill 9 blocks");
        assert_eq!(first.prompt_hashes().len(), 6);
        assert_eq!(second.prompt_hashes()[..9], *first.hashes());
    }

    #[test]
    fn streams_share_their_prefix_and_nothing_else() {
        let shared = |a: &Stream, b: &Stream| {
            let (a, b) = (a.prompt(Tokens(100), Tokens(0)), b.prompt(Tokens(100), Tokens(0)));
            a.hashes().iter().zip(b.hashes()).take_while(|(a, b)| a == b).count()
        };
        let prefix = |number, salt| Prefix::new(number, Tokens(40), salt);
        let cases = [
            (Stream::after(&prefix(1, 0), 1), Stream::after(&prefix(1, 0), 2), 2),
            (Stream::after(&prefix(1, 0), 1), Stream::after(&prefix(1, 0), 1), 6),
            (Stream::after(&prefix(1, 0), 1), Stream::after(&prefix(2, 0), 1), 0),
            (Stream::after(&prefix(1, 0), 1), Stream::after(&prefix(1, 9), 1), 0),
            (Stream::unique(1), Stream::unique(2), 0),
            (Stream::unique(1), Stream::after(&prefix(1, 0), 1), 0),
        ];
        for (index, (a, b, expected)) in cases.iter().enumerate() {
            assert_eq!(shared(a, b), *expected, "case {index}");
        }
        let short = Stream::after(&prefix(1, 0), 1).prompt(Tokens(20), Tokens(0));
        assert_eq!(short.hashes().len(), 1, "a prompt shorter than the prefix");
    }
}
