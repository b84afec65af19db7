//! What several tests of workloads measure.

use std::collections::BTreeSet;

use expediter_types::{Arrival, BlockHash, BlockSize, Time, Tokens};

use crate::Workload;

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

/// Up to `count` requests of a closed loop whose answers end in the order of their requests, a millisecond apart.
pub(crate) fn answer_in_turn(workload: &mut impl Workload, count: usize) -> Vec<Arrival> {
    let mut requests: Vec<Arrival> = std::iter::from_fn(|| workload.next()).collect();
    for nth in 0.. {
        if requests.len() >= count || nth >= requests.len() {
            return requests;
        }
        requests.extend(workload.follow_up(nth as u64, Time::from_millis(nth as u64)));
    }
    requests
}

/// The mean of some token counts.
pub(crate) fn mean(tokens: impl Iterator<Item = Tokens>) -> f64 {
    let (sum, count) = tokens.fold((0, 0), |(sum, count), tokens| (sum + tokens.0, count + 1));
    sum as f64 / f64::from(count)
}
