//! Hashes of a prompt's blocks without a tokenizer.

use std::ops::Range;

use expediter_types::BlockHash;

use super::{Endpoint, RequestScan};

/// Where the prompt stands in the body, and what keeps its cache apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptSpans {
    /// The value of `messages` or of `prompt`; empty where there is none.
    pub prompt: Range<usize>,
    /// The value of `tools`, which only chat has.
    pub tools: Range<usize>,
    /// The value of `cache_salt`, which only engines of the same salt share blocks for.
    pub cache_salt: Range<usize>,
}

impl RequestScan {
    /// One hash for every 64 bytes of the prompt's text, which stand for a block of 16 tokens as bytes stand for
    /// tokens in [`PromptShape::tokens`](super::PromptShape::tokens), each chained with all before it.
    ///
    /// For chat the text is the JSON of `tools` and then of `messages`: most templates put the tools first, and a
    /// conversation that goes on keeps its beginning. For completions it is what stands between the quotes, or
    /// the ids of a token list, 16 of them to a block, or the JSON of a batch. Two spellings of one text
    /// (`é`, `\u00e9`) have different hashes: that is a hit which is not foreseen, never a false one.
    ///
    /// `salt` stands for the model or adapter that serves; the body's `cache_salt` is added to it. A part of it that
    /// clients do not know keeps them from writing two prompts of one hash. At most [`BLOCKS_MAX`] blocks are hashed.
    ///
    /// `body` is what was scanned.
    pub fn block_hashes(&self, body: &[u8], salt: u64) -> Vec<BlockHash> {
        let spans = &self.spans;
        let text = &body[spans.prompt.clone()];
        let mut root = Chain::new(BlockHash::root(salt));
        root.push(&body[spans.cache_salt.clone()]);
        let mut chain = Chain::new(root.finish());
        match self.endpoint {
            Endpoint::Chat => {
                chain.push(&body[spans.tools.clone()]);
                chain.push(text);
            }
            Endpoint::Completions if self.prompt.token_ids > 0 => chain.push_ids(text),
            Endpoint::Completions => {
                let inner = text.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
                chain.push(inner.unwrap_or(text));
            }
        }
        chain.hashes
    }
}

/// 131,072 tokens: what comes after them is not told apart. Source: llm-d's approximate prefix producer.
pub const BLOCKS_MAX: usize = 131_072 / 16;

/// Bytes of a block.
const BLOCK_BYTES: usize = 64;

/// A text on its way into blocks.
struct Chain {
    keys: [u64; 8],
    last: BlockHash,
    hashes: Vec<BlockHash>,
    /// The begun block.
    rest: [u8; BLOCK_BYTES],
    filled: usize,
}

impl Chain {
    fn new(root: BlockHash) -> Self {
        let keys = std::array::from_fn(|number| root.then_number(number as u64).0);
        Self { keys, last: root, hashes: Vec::new(), rest: [0; BLOCK_BYTES], filled: 0 }
    }

    fn push(&mut self, mut text: &[u8]) {
        if self.filled > 0 {
            let taken = text.len().min(BLOCK_BYTES - self.filled);
            self.rest[self.filled..self.filled + taken].copy_from_slice(&text[..taken]);
            self.filled += taken;
            text = &text[taken..];
            if self.filled < BLOCK_BYTES {
                return;
            }
            let block = self.rest;
            self.end_block(&block);
        }
        let room = BLOCKS_MAX - self.hashes.len();
        let (blocks, rest) = text.as_chunks::<BLOCK_BYTES>();
        self.hashes.reserve(blocks.len().min(room));
        blocks.iter().take(room).for_each(|block| self.end_block(block));
        self.rest[..rest.len()].copy_from_slice(rest);
        self.filled = rest.len();
    }

    /// Takes the numbers out of `list`, four bytes each.
    fn push_ids(&mut self, list: &[u8]) {
        let mut id: Option<u32> = None;
        for byte in list {
            if byte.is_ascii_digit() {
                id = Some(id.unwrap_or(0).wrapping_mul(10).wrapping_add(u32::from(byte - b'0')));
            } else if let Some(id) = id.take() {
                // Four divides the size of a block: an id never stands in two.
                self.rest[self.filled..self.filled + 4].copy_from_slice(&id.to_le_bytes());
                self.filled += 4;
                if self.filled == BLOCK_BYTES {
                    let block = self.rest;
                    self.end_block(&block);
                }
                if self.hashes.len() == BLOCKS_MAX {
                    return;
                }
            }
        }
    }

    fn end_block(&mut self, block: &[u8; BLOCK_BYTES]) {
        if self.hashes.len() < BLOCKS_MAX {
            self.last = self.last.then_number(digest(block, &self.keys));
            self.hashes.push(self.last);
        }
        self.filled = 0;
    }

    /// The hash of all there was, a begun block and its length included.
    fn finish(mut self) -> BlockHash {
        let filled = self.filled;
        self.rest[filled..].fill(0);
        let block = self.rest;
        self.end_block(&block);
        self.last.then_number(filled as u64)
    }
}

/// Four keyed multiplications that do not wait for each other, folded to one word.
/// Source: the round of wyhash, <https://github.com/wangyi-fudan/wyhash>.
fn digest(block: &[u8; BLOCK_BYTES], keys: &[u64; 8]) -> u64 {
    let (words, _) = block.as_chunks::<8>();
    let word = |number: usize| u64::from_le_bytes(words[number]) ^ keys[number];
    let halves = [0, 2, 4, 6].map(|number| fold(word(number), word(number + 1)));
    fold(halves[0] ^ keys[1], halves[1] ^ keys[2]) ^ fold(halves[2] ^ keys[5], halves[3] ^ keys[6])
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of a 128-bit product are taken apart")]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::request::scan;

    fn hashes(endpoint: Endpoint, body: &str, salt: u64) -> Vec<BlockHash> {
        let scanned = scan(body.as_bytes(), endpoint).unwrap_or_else(|error| panic!("{body}: {error}"));
        let hashes = scanned.block_hashes(body.as_bytes(), salt);
        let full = usize::try_from(scanned.prompt.tokens().0 / 16).unwrap();
        assert!(hashes.len() >= full.min(BLOCKS_MAX), "{body}: {} blocks of {full}", hashes.len());
        hashes
    }

    fn chat(members: &str) -> Vec<BlockHash> {
        hashes(Endpoint::Chat, &format!(r#"{{"model":"m",{members}}}"#), 1)
    }

    fn completion(members: &str) -> Vec<BlockHash> {
        hashes(Endpoint::Completions, &format!("{{{members}}}"), 1)
    }

    fn shared(a: &[BlockHash], b: &[BlockHash]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn a_conversation_that_goes_on_keeps_its_beginning() {
        let turn = format!(r#"{{"role":"user","content":"{}"}}"#, "a".repeat(600));
        let one = format!(r#""messages":[{turn}]"#);
        let two = format!(r#""messages":[{turn},{{"role":"assistant","content":"{}"}}]"#, "b".repeat(300));
        let (a, b) = (chat(&one), chat(&two));
        assert_eq!((a.len(), shared(&a, &b)), ((one.len() - 11) / 64, (one.len() - 11 - 1) / 64));
        assert_eq!(
            chat(&format!(r#"{one},"temperature":0.5,"seed":7"#)),
            a,
            "what is no prompt does not count"
        );
        assert_eq!(chat(&format!(r#""seed":7,{one}"#)), a, "wherever it stands");
    }

    #[test]
    fn what_keeps_caches_apart_keeps_hashes_apart() {
        let messages = format!(r#""messages":["{}"]"#, "a".repeat(200));
        let plain = chat(&messages);
        let tools = |name: &str| chat(&format!(r#"{messages},"tools":[{{"name":"{name}"}}]"#));
        let others = [
            hashes(Endpoint::Chat, &format!("{{{messages}}}"), 2),
            chat(&format!(r#"{messages},"cache_salt":"x""#)),
            chat(&format!(r#"{messages},"cache_salt":"y""#)),
            tools("f"),
            tools("g"),
        ];
        for (number, other) in others.iter().enumerate() {
            assert_eq!(shared(&plain, other), 0, "{number}");
        }
        assert_eq!(shared(&others[1], &others[2]), 0, "one salt and another");
        assert_eq!(shared(&others[3], &others[4]), 0, "one tool and another");
    }

    #[test]
    fn completions_are_text_or_ids() {
        let text = completion(&format!(r#""prompt":"{}""#, "a".repeat(128)));
        assert_eq!(text.len(), 2, "without the quotes");
        let ids = |count: u32, gap: &str| {
            let ids: Vec<String> = (0..count).map(|id| (id * 37).to_string()).collect();
            completion(&format!(r#""prompt":[{}]"#, ids.join(gap)))
        };
        assert_eq!(ids(40, ",").len(), 2, "16 ids a block");
        assert_eq!(ids(40, ","), ids(40, " , "), "space does not count");
        assert_eq!(shared(&ids(16, ","), &ids(48, ",")), 1);
        assert!(completion("").is_empty());
        assert!(!completion(&format!(r#""prompt":["{0}","{0}"]"#, "a".repeat(128))).is_empty());
    }

    #[test]
    fn every_byte_counts_and_blocks_are_bounded() {
        let text = |at: usize| {
            let mut text = vec![b'a'; 256];
            text[at] = b'b';
            String::from_utf8(text).unwrap()
        };
        let all: BTreeSet<BlockHash> =
            (0..256).map(|at| *completion(&format!(r#""prompt":"{}""#, text(at))).last().unwrap()).collect();
        assert_eq!(all.len(), 256);
        let long = completion(&format!(r#""prompt":"{}""#, "a".repeat(600_000)));
        assert_eq!(long.len(), BLOCKS_MAX);
        assert_eq!(long.iter().collect::<BTreeSet<_>>().len(), BLOCKS_MAX, "a place is part of its hash");
    }
}
