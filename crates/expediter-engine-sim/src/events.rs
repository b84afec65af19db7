//! What happens to the prefix cache, told block by block.

use expediter_types::{BlockHash, ModelId, RequestId};

/// A change of the prefix cache, as vLLM publishes it (`vllm/distributed/kv_events.py`, 0.32.0). Within a step the
/// order is that in which the scheduler came to it: what a request evicted, then what it stored.
///
/// Blocks of equal content are not merged: a hash may be stored several times, and is cached until it has been
/// removed as often. A hit changes nothing and says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Full blocks in a row, of one request.
    Stored {
        /// The block before them; `None` where they begin the prompt.
        parent: Option<BlockHash>,
        /// One for each block. Those of tokens that the prompt's hashes do not cover are unlike any other.
        hashes: Vec<BlockHash>,
        /// Whose tokens they hold.
        request: RequestId,
        /// The place of the first of them among the request's blocks, from 0.
        first_block: usize,
        /// The adapter that computed them.
        adapter: Option<ModelId>,
    },
    /// A block was given out again, or one of several of equal content.
    Removed {
        /// What it held.
        hash: BlockHash,
    },
    /// All blocks are empty.
    Cleared,
}
