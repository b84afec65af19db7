//! Policies and their parameters as they are written. The comments here are descriptions in the JSON Schema.

use expediter_core::{
    BoundedHashParameters, Policy, PolicyParameters, ScorerWeights, StickyParameters, TreeParameters,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounded::{Ratio, Real, Whole};

/// How a replica is chosen among those that are ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Policy")]
pub enum RawPolicy {
    /// Each in turn.
    RoundRobin,
    /// By lot.
    Random,
    /// The one with the fewest requests in flight.
    LeastRequests,
    /// Of two drawn by lot, the one with fewer requests in flight.
    PowerOfTwo,
    /// Of two drawn by lot, the one with fewer prompt tokens that are neither cached nor answered yet.
    PowerOfTwoTokens,
    /// The one with the lowest product of recent latency and requests in flight.
    PeakEwma,
    /// The one with the fewest tokens in flight.
    #[default]
    LeastTokens,
    /// The one with the fewest prompt tokens that are neither cached nor answered yet.
    LeastPendingTokens,
    /// The one that the beginning of the prompt leads to on a ring of hashes, unless it has more than its share of
    /// the requests in flight: then the next (consistent hashing with bounded loads, as in `KubeAI`).
    PrefixHashBounded,
    /// The one that was sent the longest part of the prompt before, unless that is little or requests in flight are
    /// out of balance: then the one with the fewest (the cache-aware rule of `SGLang`'s router).
    ApproximateTree,
    /// The one with the lowest product of prompt tokens to compute and requests in flight (`LMetric`).
    #[serde(rename = "lmetric")]
    LMetric,
    /// The one with the highest weighted sum of scores: few waiting, free KV memory, much of the prompt held (the
    /// scorers of llm-d).
    Weighted,
    /// The one that holds most of the prompt, until it has too much to compute: then the one with the least to
    /// compute (llm-d's token-aware routing).
    StickyUntilSaturated,
}

/// The core's policies stand here once more because the core knows no serialisation. A new one does not compile
/// into settings by itself, and a test finds it missing.
impl From<RawPolicy> for Policy {
    fn from(raw: RawPolicy) -> Self {
        match raw {
            RawPolicy::RoundRobin => Self::RoundRobin,
            RawPolicy::Random => Self::Random,
            RawPolicy::LeastRequests => Self::LeastRequests,
            RawPolicy::PowerOfTwo => Self::PowerOfTwo,
            RawPolicy::PowerOfTwoTokens => Self::PowerOfTwoTokens,
            RawPolicy::PeakEwma => Self::PeakEwma,
            RawPolicy::LeastTokens => Self::LeastTokens,
            RawPolicy::LeastPendingTokens => Self::LeastPendingTokens,
            RawPolicy::PrefixHashBounded => Self::PrefixHashBounded,
            RawPolicy::ApproximateTree => Self::ApproximateTree,
            RawPolicy::LMetric => Self::LMetric,
            RawPolicy::Weighted => Self::Weighted,
            RawPolicy::StickyUntilSaturated => Self::StickyUntilSaturated,
        }
    }
}

/// What the policies that have parameters are told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "PolicyParameters")]
pub struct RawPolicyParameters {
    /// Blocks of 16 tokens that each replica is taken to hold of the prompts it was sent; `null` is as many as its
    /// metrics say, or 125,000 where they do not.
    pub prefix_index_blocks: Option<Whole<1, 16_777_216>>,
    /// Of `prefix_hash_bounded`.
    pub bounded_hash: RawBoundedHash,
    /// Of `approximate_tree`.
    pub tree: RawTree,
    /// Of `weighted`.
    pub weights: RawWeights,
    /// Of `sticky_until_saturated`.
    pub sticky: RawSticky,
}

/// Parameters of `prefix_hash_bounded`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "BoundedHash")]
pub struct RawBoundedHash {
    /// Requests in flight that a replica may have, as a multiple of the mean.
    pub load_factor: Real<1, 100>,
    /// Points of each replica on the ring.
    pub points: Whole<1, 4_096>,
    /// Blocks of 16 tokens at the beginning of the prompt that decide.
    pub prefix_blocks: Whole<1, 8_192>,
}

/// Parameters of `approximate_tree`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Tree")]
pub struct RawTree {
    /// The share of the prompt above which a match decides.
    pub cache_threshold: Ratio,
    /// Requests in flight by which most and fewest may differ in balance.
    pub balance_abs: Whole<0, 1_000_000>,
    /// The ratio of most to fewest requests in flight that is still in balance.
    pub balance_rel: Real<1, 1_000>,
    /// Characters of prompts kept for each replica, where `prefix_index_blocks` does not say.
    pub characters_max: Whole<64, { 1 << 30 }>,
}

/// Parameters of `weighted`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Weights")]
pub struct RawWeights {
    /// Weight of few requests waiting.
    pub queue: Real<0, 1_000>,
    /// Weight of free KV memory.
    pub kv: Real<0, 1_000>,
    /// Weight of the share of the prompt that is held.
    pub prefix: Real<0, 1_000>,
}

/// Parameters of `sticky_until_saturated`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Sticky")]
pub struct RawSticky {
    /// The share of the prompt that a replica must hold to be preferred.
    pub affinity_min: Ratio,
    /// Prompt tokens still to compute by which a preferred replica may exceed the least loaded one.
    pub saturation_tokens: Whole<0, { 1 << 32 }>,
}

impl Default for RawBoundedHash {
    fn default() -> Self {
        let BoundedHashParameters { load_factor, points, prefix_blocks } = BoundedHashParameters::default();
        Self {
            load_factor: Real::new(load_factor),
            points: Whole::new(points.into()),
            prefix_blocks: Whole::new(prefix_blocks.into()),
        }
    }
}

impl Default for RawTree {
    fn default() -> Self {
        let TreeParameters { cache_threshold, balance_abs, balance_rel, characters_max } =
            TreeParameters::default();
        Self {
            cache_threshold: Ratio::new(cache_threshold),
            balance_abs: Whole::new(balance_abs),
            balance_rel: Real::new(balance_rel),
            characters_max: Whole::new(characters_max),
        }
    }
}

impl Default for RawWeights {
    fn default() -> Self {
        let ScorerWeights { queue, kv, prefix } = ScorerWeights::default();
        Self { queue: Real::new(queue), kv: Real::new(kv), prefix: Real::new(prefix) }
    }
}

impl Default for RawSticky {
    fn default() -> Self {
        let StickyParameters { affinity_min, saturation_tokens } = StickyParameters::default();
        Self { affinity_min: Ratio::new(affinity_min), saturation_tokens: Whole::new(saturation_tokens) }
    }
}

impl From<RawPolicyParameters> for PolicyParameters {
    fn from(raw: RawPolicyParameters) -> Self {
        let RawPolicyParameters { prefix_index_blocks, bounded_hash, tree, weights, sticky } = raw;
        Self {
            prefix_index_blocks: prefix_index_blocks.map(Whole::get),
            bounded_hash: BoundedHashParameters {
                load_factor: bounded_hash.load_factor.get(),
                points: bounded_hash.points.to_u32(),
                prefix_blocks: bounded_hash.prefix_blocks.to_u32(),
            },
            tree: TreeParameters {
                cache_threshold: tree.cache_threshold.get(),
                balance_abs: tree.balance_abs.get(),
                balance_rel: tree.balance_rel.get(),
                characters_max: tree.characters_max.get(),
            },
            weights: ScorerWeights {
                queue: weights.queue.get(),
                kv: weights.kv.get(),
                prefix: weights.prefix.get(),
            },
            sticky: StickyParameters {
                affinity_min: sticky.affinity_min.get(),
                saturation_tokens: sticky.saturation_tokens.get(),
            },
        }
    }
}
