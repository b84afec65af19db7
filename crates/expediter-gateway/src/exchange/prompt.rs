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
    let salt = BlockHash::of_name(seed, &route.model).0;
    Prompt::from_hashes(tokens, BlockSize::DEFAULT, scan.block_hashes(body, salt))
}
