//! KV-cache events as engines publish them: what a replica has stored in its prefix cache, and what it dropped.
//!
//! A message has three frames (`frames`); the last is a batch in MessagePack. Versions differ in how they write it:
//! vLLM 0.32.0 writes an array with maps inside, 0.16.0 arrays throughout, others maps throughout; hashes are 64-bit
//! integers or byte strings. The reader takes each of these, however mixed, ignores members and trailing elements
//! that it does not know, and counts events of unknown kinds. Names: `vllm/distributed/kv_events.py`.
//!
//! A batch comes from the network: its size and depth are bounded, and nothing is allocated that the bytes at hand
//! could not fill.

mod decode;
mod encode;
mod frames;
mod pack;

pub use decode::{BATCH_BYTES_MAX, KvEventsError, decode};
pub use encode::{Encoding, encode};
pub use frames::{FramesError, Published, Replay, ReplayForm, ReplayReply};

/// What one step of an engine did to its prefix cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KvEventBatch {
    /// Unix seconds.
    pub timestamp: f64,
    /// In the order in which they happened.
    pub events: Vec<KvEvent>,
    /// Which engine of a data-parallel replica says so; 0 also where there is one only.
    pub data_parallel_rank: Option<u32>,
    /// Events of kinds that this reader does not know.
    pub unknown_events: u32,
}

/// A change of the prefix cache.
#[derive(Clone, Debug, PartialEq)]
pub enum KvEvent {
    /// Blocks can be found from now on. The same hash may be stored several times, and is then removed as often.
    BlockStored(BlockStored),
    /// Blocks are gone.
    BlockRemoved(BlockRemoved),
    /// The cache is empty.
    AllBlocksCleared,
}

/// Consecutive full blocks of one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockStored {
    /// One hash a block.
    pub block_hashes: Vec<Hash>,
    /// The block before the first; `None` where that begins the sequence.
    pub parent_block_hash: Option<Hash>,
    /// Tokens of all blocks, `block_size` each.
    pub token_ids: Vec<u32>,
    /// Tokens in a block.
    pub block_size: u32,
    /// The engine's own number of the adapter.
    pub lora_id: Option<i64>,
    /// Where the blocks lie: `GPU`.
    pub medium: Option<String>,
    /// The adapter's name.
    pub lora_name: Option<String>,
    /// What else went into each block's hash, where anything did. `None`: the engine does not say.
    pub extra_keys: Option<Vec<Option<Vec<ExtraKey>>>>,
    /// The group of layers.
    pub group_idx: Option<u32>,
    /// How these layers attend.
    pub kv_cache_spec_kind: Option<String>,
    /// The session that the request named.
    pub session_id: Option<String>,
}

/// Blocks that were given up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockRemoved {
    /// One hash a block.
    pub block_hashes: Vec<Hash>,
    /// Where they lay.
    pub medium: Option<String>,
    /// The group of layers.
    pub group_idx: Option<u32>,
}

/// A block's hash as the engine writes it, chained with all blocks before it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hash {
    /// The low 64 bits.
    Int(u64),
    /// All of it.
    Bytes(Box<[u8]>),
}

impl Hash {
    /// The low 64 bits, in which both forms of one hash agree: the last eight bytes, big-endian.
    pub fn low_bits(&self) -> u64 {
        match self {
            Self::Int(bits) => *bits,
            Self::Bytes(bytes) => {
                bytes.iter().rev().take(8).rev().fold(0, |bits, byte| (bits << 8) | u64::from(*byte))
            }
        }
    }
}

/// A part of a block's hash beside parent and tokens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExtraKey {
    /// The name of an adapter, or a cache salt.
    Text(String),
    /// Anything else, as its MessagePack bytes.
    Packed(Box<[u8]>),
}

#[cfg(test)]
mod tests;
