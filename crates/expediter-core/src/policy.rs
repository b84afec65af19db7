//! Which replica gets a request, among those that qualify.

mod chooser;
mod load;
mod parameters;
mod ring;

use std::fmt;
use std::str::FromStr;

pub(crate) use chooser::{Chooser, QUALIFIES};
pub(crate) use load::{Ask, PoolView, load};
pub use parameters::{
    BoundedHashParameters, PolicyParameterError, PolicyParameters, ScorerWeights, StickyParameters,
    TreeParameters,
};

/// How a replica is chosen among those that qualify: ready, listing the model, not pushing back, not tried yet.
///
/// The load that policies compare counts what was dispatched from the moment of dispatch. Traffic that goes
/// around this gateway is added to requests in flight where a fresh report shows it. A replica on its ramp shows
/// its load enlarged. Equal loads go to the replica whose last request lies furthest back, so that an idle one is
/// always found, unless the policy says otherwise.
///
/// The first six and `power_of_two_tokens` know nothing of prefixes, but for what the latter takes a prompt to need. The
/// others are what other routers do, with the parameters those
/// published: see [`PolicyParameters`]. All but `prefix_hash_bounded` ask a predicted index which leading blocks
/// of a prompt each replica holds; prompts without block hashes, and those shorter than a block, match nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// In order of id, round and round.
    RoundRobin,
    /// By a draw.
    Random,
    /// The fewest requests in flight.
    LeastRequests,
    /// Of two drawn with replacement, the one with fewer requests in flight.
    /// Source: Mitzenmacher, "The Power of Two Choices", IEEE TPDS 12(10), 2001.
    PowerOfTwo,
    /// Of two drawn with replacement, the one with fewer uncached prompt tokens dispatched and not yet answered by a
    /// first token; equal ones by requests in flight. Two choices as they stand where work is counted in tokens.
    PowerOfTwoTokens,
    /// The least product of recent worst time to first token and requests in flight, this one included.
    /// Source: finagle's `PeakEwma` load balancer.
    PeakEwma,
    /// The fewest tokens still to compute: prompts not answered yet and answers as long as they are expected.
    /// The longer the request itself, the more tokens weigh against requests: see `load`.
    LeastTokens,
    /// The fewest uncached prompt tokens dispatched and not yet answered by a first token; equal ones by requests
    /// in flight. The request's own match does not attract it: a reference without affinity.
    LeastPendingTokens,
    /// Consistent hashing with bounded loads: adapter and beginning of the prompt give a point on a ring of
    /// replicas; the first one clockwise takes the request that stays within 1.25 times the mean number of
    /// requests in flight with it, else the first that qualifies. Prompts without a block hash go to the fewest
    /// requests in flight.
    /// Sources: Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018; `KubeAI`,
    /// `internal/loadbalancer/balance_chwbl.go`. Unlike there, the beginning is two blocks of 16 tokens, not 100
    /// characters, and only replicas that are ready count towards the mean.
    PrefixHashBounded,
    /// Two modes. While requests in flight are out of balance (most − fewest > 64 and most > 1.5 × fewest) the
    /// fewest, equal ones by requests ever sent. Otherwise, where more than 0.3 of the prompt matches, the longest
    /// match, of several the one used last; else the fewest.
    /// Source: `SGLang` router and smg, `policies/cache_aware.rs`. Unlike there, matches are in blocks, not in
    /// characters, only replicas that qualify are looked at, and the one that left the pool or restarted is
    /// forgotten at once.
    ApproximateTree,
    /// The least product of prompt tokens to compute, those queued there included, and requests in flight, this
    /// one included; equal ones by requests in flight.
    /// Source: "`LMetric`: Simple is Better - Multiplication May Be All You Need for LLM Request Scheduling".
    LMetric,
    /// The highest weighted sum of scores, 0 to 1 each: few requests waiting at the engine (scaled from fewest to
    /// most among the candidates), free KV memory, share of the prompt that is held. Equal sums by a draw. Both
    /// of the engine's numbers are of its last report; where that is stale they count as the worst.
    /// Source: llm-d inference scheduler and Gateway API Inference Extension: `queue-scorer`,
    /// `kv-cache-utilization-scorer`, `prefix-cache-scorer`, `max-score-picker`.
    Weighted,
    /// The least sum of uncached prompt tokens in flight and the request's own uncached tokens, among the replicas
    /// that hold at least 0.8 of it, unless the least loaded of those has 286,720 more uncached tokens in flight
    /// than the least loaded of all: then among all.
    /// Source: llm-d, "Sticky until saturated" (token-aware routing), 2026-08-17.
    StickyUntilSaturated,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 13] = [
        Self::RoundRobin,
        Self::Random,
        Self::LeastRequests,
        Self::PowerOfTwo,
        Self::PowerOfTwoTokens,
        Self::PeakEwma,
        Self::LeastTokens,
        Self::LeastPendingTokens,
        Self::PrefixHashBounded,
        Self::ApproximateTree,
        Self::LMetric,
        Self::Weighted,
        Self::StickyUntilSaturated,
    ];

    /// The name in settings, metrics and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::LeastRequests => "least_requests",
            Self::PowerOfTwo => "power_of_two",
            Self::PowerOfTwoTokens => "power_of_two_tokens",
            Self::PeakEwma => "peak_ewma",
            Self::LeastTokens => "least_tokens",
            Self::LeastPendingTokens => "least_pending_tokens",
            Self::PrefixHashBounded => "prefix_hash_bounded",
            Self::ApproximateTree => "approximate_tree",
            Self::LMetric => "lmetric",
            Self::Weighted => "weighted",
            Self::StickyUntilSaturated => "sticky_until_saturated",
        }
    }

    /// Whether it reads the block hashes of prompts: for the others they need not be computed.
    pub const fn reads_hashes(self) -> bool {
        self.predicts_hits() || matches!(self, Self::PrefixHashBounded)
    }

    /// Whether it needs to know which replica holds which prefix.
    pub(crate) const fn predicts_hits(self) -> bool {
        match self {
            Self::RoundRobin
            | Self::Random
            | Self::LeastRequests
            | Self::PowerOfTwo
            | Self::PeakEwma
            | Self::LeastTokens
            | Self::PrefixHashBounded => false,
            Self::PowerOfTwoTokens
            | Self::LeastPendingTokens
            | Self::ApproximateTree
            | Self::LMetric
            | Self::Weighted
            | Self::StickyUntilSaturated => true,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no policy; choose one of {names}", names = names())]
pub struct UnknownPolicy(pub String);

fn names() -> String {
    Policy::ALL.map(Policy::as_str).join(", ")
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let known = Self::ALL.into_iter().find(|policy| policy.as_str() == name);
        known.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}
