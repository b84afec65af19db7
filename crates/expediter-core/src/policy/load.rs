//! The load of a replica, in the unit of each policy.

use std::time::Duration;

use expediter_types::{Time, Tokens};

use super::{Policy, PolicyParameters};
use crate::dispatcher::Request;
use crate::replica::Replica;

/// A request that needs a replica, and what one must know besides to choose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) policy: Policy,
    pub(crate) parameters: &'a PolicyParameters,
    pub(crate) request: &'a Request,
    /// The tokens that the request means.
    pub(crate) charge: Tokens,
    pub(crate) pool: PoolView,
    pub(crate) now: Time,
}

/// What the pool knows that a replica alone does not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolView {
    /// Tokens a request usually means: what one that went around this gateway is taken for.
    pub(crate) typical_charge: f64,
    /// Seconds to the first token, usually: what a replica that never answered is taken for.
    pub(crate) typical_ttft: f64,
    /// Age from which a report is not used.
    pub(crate) stale_after: Duration,
    /// Time to the full share.
    pub(crate) ramp: Duration,
}

impl Ask<'_> {
    /// Requests in flight at a replica, those that went around this gateway included as far as they are known.
    pub(crate) fn requests(&self, replica: &Replica) -> f64 {
        replica.ledger.requests() as f64 + replica.reported.foreign(self.pool.stale_after, self.now)
    }

    /// The share of a full replica's traffic that it is due.
    pub(crate) fn weight(&self, replica: &Replica) -> f64 {
        replica.weight(self.pool.ramp, self.now)
    }
}

/// The load of a replica towards a request of whose prompt it has `cached`, in the unit of the policy, enlarged
/// while the replica is on its ramp.
///
/// `least_tokens` adds the tokens at a replica and, since batch slots and step times follow the number of
/// requests, a typical request's tokens for each request there. Both are then as heavy in all: a replica with
/// twice its share of the tokens is passed over for one with less than twice its share of the requests. For a
/// request that is longer than typical the tokens weigh more, by the square of how much longer it is. In bursts of 300, half
/// of 5 kB and half of 500 kB in any order, three replicas get 100 ± 10 requests each.
///
/// `weighted` compares replicas with each other: its load is known to the chooser only.
pub(crate) fn load(ask: &Ask<'_>, replica: &Replica, cached: Tokens) -> f64 {
    let pool = &ask.pool;
    let requests = ask.requests(replica);
    let pending = replica.ledger.prefill();
    let uncached = ask.request.prompt.tokens().saturating_sub(cached);
    let load = match ask.policy {
        Policy::RoundRobin
        | Policy::Random
        | Policy::LeastRequests
        | Policy::PowerOfTwo
        | Policy::PrefixHashBounded
        | Policy::ApproximateTree => requests,
        Policy::PeakEwma => replica.ttft.peak(ask.now).unwrap_or(pool.typical_ttft) * (requests + 1.0),
        Policy::LeastTokens => {
            let foreign = replica.reported.foreign(pool.stale_after, ask.now);
            let tokens = replica.ledger.tokens().0 as f64 + foreign * pool.typical_charge;
            let weight = (ask.charge.0 as f64 / pool.typical_charge).powi(2).max(1.0);
            tokens * weight + requests * pool.typical_charge
        }
        Policy::LeastPendingTokens | Policy::PowerOfTwoTokens => pending.0 as f64,
        Policy::LMetric => (pending + uncached).0 as f64 * (requests + 1.0),
        Policy::Weighted => 0.0,
        Policy::StickyUntilSaturated => (replica.ledger.uncached() + uncached).0 as f64,
    };
    load / ask.weight(replica)
}
