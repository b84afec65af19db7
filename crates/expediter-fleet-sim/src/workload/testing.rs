//! What several tests of workloads measure.

use std::collections::BTreeSet;

use expediter_types::{Arrival, BlockHash, BlockSize};

/// The share of prompt tokens in full blocks that earlier prompts had brought.
pub(crate) fn ideal_hit_ratio(arrivals: &[Arrival]) -> f64 {
    let mut seen: BTreeSet<BlockHash> = BTreeSet::new();
    let (mut tokens, mut hits) = (0, 0);
    for arrival in arrivals {
        let hashes = arrival.prompt.prompt_hashes();
        let found = hashes.iter().take_while(|hash| seen.contains(hash)).count() as u64;
        hits += found * u64::from(BlockSize::DEFAULT.0.get());
        tokens += arrival.prompt.tokens().0;
        seen.extend(hashes);
    }
    hits as f64 / tokens as f64
}
