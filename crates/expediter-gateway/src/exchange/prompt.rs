//! What the dispatcher is told of a prompt.

use expediter_core::Policy;
use expediter_types::{BlockHash, BlockSize, Prompt};
use expediter_wire::request::RequestScan;

use crate::fleet::{Fleet, Route};

/// The prompt's length and, where the pool's policy reads them, the hashes of its blocks.
pub(super) fn prompt(fleet: &Fleet, route: &Route, scan: &RequestScan, body: &[u8]) -> Prompt {
    let tokens = scan.prompt.tokens();
    let policy = fleet.policy(&route.pool.name);
    if !policy.reads_hashes() {
        return Prompt::opaque(tokens);
    }
    // On the ring a prompt must lead to the same replica from every gateway.
    let seed = if policy == Policy::PrefixHashBounded { 0 } else { fleet.prompt_seed() };
    let salt = name_hash(seed, &route.model);
    Prompt::from_hashes(tokens, BlockSize::DEFAULT, scan.block_hashes(body, salt))
}

fn name_hash(seed: u64, name: &str) -> u64 {
    name.bytes().fold(BlockHash::root(seed), |hash, byte| hash.then_number(byte.into())).0
}
