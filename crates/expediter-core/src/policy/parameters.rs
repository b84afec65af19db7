//! What the policies that others published can be told to do differently.

/// The parameters of the policies that have any. Each default is the published one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyParameters {
    /// Blocks of 16 tokens that each replica is taken to hold. Where it is `None`, as many as its report says;
    /// without a report 125,000, which is llm-d's default of 31,250 blocks of 64 tokens.
    /// Source: llm-d inference scheduler, approximate prefix producer, `lruCapacityPerServer`.
    pub prefix_index_blocks: Option<u64>,
    /// Of `prefix_hash_bounded`.
    pub bounded_hash: BoundedHashParameters,
    /// Of `approximate_tree`.
    pub tree: TreeParameters,
    /// Of `weighted`.
    pub weights: ScorerWeights,
    /// Of `sticky_until_saturated`.
    pub sticky: StickyParameters,
}

/// Consistent hashing with bounded loads. Source of the defaults: `KubeAI`, `PrefixHash` load balancing.
#[derive(Clone, Debug, PartialEq)]
pub struct BoundedHashParameters {
    /// Requests that a replica may have, as a multiple of the mean. `KubeAI`: `meanLoadPercentage` 125.
    pub load_factor: f64,
    /// Points of each replica on the ring. `KubeAI`: `replication` 256.
    pub points: u32,
    /// Leading blocks of the prompt that make its key. `KubeAI` takes 100 characters, some 25 tokens: two blocks
    /// of 16 are the least whole number of blocks that hold as many.
    pub prefix_blocks: u32,
}

impl Default for BoundedHashParameters {
    fn default() -> Self {
        Self { load_factor: 1.25, points: 256, prefix_blocks: 2 }
    }
}

/// The cache-aware rule of two modes. Source of the defaults: the command line of `sglang_router`.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeParameters {
    /// The share of the prompt, 0 to 1, above which a match decides: `--cache-threshold`.
    pub cache_threshold: f64,
    /// Requests in flight that most and fewest may differ by: `--balance-abs-threshold`.
    pub balance_abs: u64,
    /// The ratio of most to fewest requests in flight that is still balanced: `--balance-rel-threshold`.
    pub balance_rel: f64,
    /// Characters kept of each replica: `--max-tree-size`. Four of them count as a token. Where
    /// `prefix_index_blocks` is set, that counts instead.
    pub characters_max: u64,
}

impl Default for TreeParameters {
    fn default() -> Self {
        Self { cache_threshold: 0.3, balance_abs: 64, balance_rel: 1.5, characters_max: 1 << 26 }
    }
}

/// The weights of a sum of scores, each score 0 to 1. Source of the defaults: llm-d inference scheduler, the
/// profile that was its default until August 2026.
#[derive(Clone, Debug, PartialEq)]
pub struct ScorerWeights {
    /// Of few requests waiting.
    pub queue: f64,
    /// Of free KV memory.
    pub kv: f64,
    /// Of the share of the prompt that is held.
    pub prefix: f64,
}

impl Default for ScorerWeights {
    fn default() -> Self {
        Self { queue: 2.0, kv: 2.0, prefix: 3.0 }
    }
}

/// When a prompt stays where its prefix is. Source of the defaults: llm-d, "Sticky until saturated", 2026-08-17.
#[derive(Clone, Debug, PartialEq)]
pub struct StickyParameters {
    /// The share of the prompt, 0 to 1, that a replica must hold to be warm.
    pub affinity_min: f64,
    /// Uncached tokens in flight by which the least loaded warm replica may exceed the least loaded of all. The
    /// default is 35 chunks of 8,192 tokens: 18 s at the peak rate its authors measured, 15,928 tokens/s.
    pub saturation_tokens: u64,
}

impl Default for StickyParameters {
    fn default() -> Self {
        Self { affinity_min: 0.8, saturation_tokens: 35 * 8_192 }
    }
}

/// A parameter outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field} is {value}; it must be {range}")]
pub struct PolicyParameterError {
    /// Its path within [`PolicyParameters`].
    pub field: &'static str,
    /// As given.
    pub value: f64,
    /// What it may be.
    pub range: &'static str,
}

impl PolicyParameters {
    /// Checks every parameter.
    ///
    /// # Errors
    /// The first that is outside its range.
    pub fn check(&self) -> Result<(), PolicyParameterError> {
        let check = |field, value: f64, range, fits| {
            if fits { Ok(()) } else { Err(PolicyParameterError { field, value, range }) }
        };
        let share = |field, value: f64| check(field, value, "0 to 1", (0.0..=1.0).contains(&value));
        let weight = |field, value: f64| check(field, value, "0 to 1000", (0.0..=1e3).contains(&value));
        if let Some(blocks) = self.prefix_index_blocks {
            let fits = (1..=INDEX_BLOCKS_MAX).contains(&blocks);
            check("prefix_index_blocks", blocks as f64, "1 to 16777216", fits)?;
        }
        let BoundedHashParameters { load_factor, points, prefix_blocks } = self.bounded_hash;
        check("bounded_hash.load_factor", load_factor, "1 to 100", (1.0..=100.0).contains(&load_factor))?;
        check("bounded_hash.points", points.into(), "1 to 4096", (1..=4_096).contains(&points))?;
        let fits = (1..=8_192).contains(&prefix_blocks);
        check("bounded_hash.prefix_blocks", prefix_blocks.into(), "1 to 8192", fits)?;
        let TreeParameters { cache_threshold, balance_abs, balance_rel, characters_max } = self.tree;
        share("tree.cache_threshold", cache_threshold)?;
        let fits = balance_abs <= 1_000_000;
        check("tree.balance_abs", balance_abs as f64, "0 to 1000000", fits)?;
        check("tree.balance_rel", balance_rel, "1 to 1000", (1.0..=1e3).contains(&balance_rel))?;
        let fits = (64..=INDEX_BLOCKS_MAX * 64).contains(&characters_max);
        check("tree.characters_max", characters_max as f64, "64 to 1073741824", fits)?;
        let ScorerWeights { queue, kv, prefix } = self.weights;
        weight("weights.queue", queue)?;
        weight("weights.kv", kv)?;
        weight("weights.prefix", prefix)?;
        let StickyParameters { affinity_min, saturation_tokens } = self.sticky;
        share("sticky.affinity_min", affinity_min)?;
        let fits = saturation_tokens <= 1 << 32;
        check("sticky.saturation_tokens", saturation_tokens as f64, "0 to 4294967296", fits)
    }
}

/// 2²⁴ blocks of 16 tokens are 268 M tokens: more than any replica holds. A bound on what a slip may allocate.
const INDEX_BLOCKS_MAX: u64 = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_has_a_range() {
        type Change = fn(&mut PolicyParameters);
        let cases: [(&str, Change); 12] = [
            ("prefix_index_blocks", |all| all.prefix_index_blocks = Some(0)),
            ("bounded_hash.load_factor", |all| all.bounded_hash.load_factor = 0.99),
            ("bounded_hash.points", |all| all.bounded_hash.points = 0),
            ("bounded_hash.prefix_blocks", |all| all.bounded_hash.prefix_blocks = 0),
            ("tree.cache_threshold", |all| all.tree.cache_threshold = 1.1),
            ("tree.balance_abs", |all| all.tree.balance_abs = u64::MAX),
            ("tree.balance_rel", |all| all.tree.balance_rel = f64::NAN),
            ("tree.characters_max", |all| all.tree.characters_max = 63),
            ("weights.queue", |all| all.weights.queue = -1.0),
            ("weights.kv", |all| all.weights.kv = f64::INFINITY),
            ("sticky.affinity_min", |all| all.sticky.affinity_min = -0.1),
            ("sticky.saturation_tokens", |all| all.sticky.saturation_tokens = u64::MAX),
        ];
        assert_eq!(PolicyParameters::default().check(), Ok(()));
        for (field, change) in cases {
            let mut parameters = PolicyParameters::default();
            change(&mut parameters);
            let error = parameters.check().expect_err(field);
            assert_eq!(error.field, field);
        }
    }
}
