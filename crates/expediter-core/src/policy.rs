//! Which replica gets a request, among those that qualify.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use expediter_types::{Prng, ReplicaId, Time, Tokens};

use crate::decision::{Candidate, Verdict};
use crate::replica::Replica;

/// How a replica is chosen among those that qualify: ready, listing the model, not pushing back, not tried yet.
///
/// The load that policies compare counts what was dispatched from the moment of dispatch. Traffic that goes
/// around this gateway is added where a fresh report shows it. A replica on its ramp shows its load enlarged.
/// Equal loads go to the replica whose last request lies furthest back, so that an idle one is always found.
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
    /// The least product of recent worst time to first token and requests in flight, this one included.
    /// Source: finagle's `PeakEwma` load balancer.
    PeakEwma,
    /// The fewest tokens still to compute: prompts not answered yet and answers as long as they are expected.
    /// The longer the request itself, the more tokens weigh against requests: see `load`.
    LeastTokens,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 6] = [
        Self::RoundRobin,
        Self::Random,
        Self::LeastRequests,
        Self::PowerOfTwo,
        Self::PeakEwma,
        Self::LeastTokens,
    ];

    /// The name in settings, metrics and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::LeastRequests => "least_requests",
            Self::PowerOfTwo => "power_of_two",
            Self::PeakEwma => "peak_ewma",
            Self::LeastTokens => "least_tokens",
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
#[error(
    "`{0}` is no policy; choose round_robin, random, least_requests, power_of_two, peak_ewma or least_tokens"
)]
pub struct UnknownPolicy(pub String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let known = Self::ALL.into_iter().find(|policy| policy.as_str() == name);
        known.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
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

/// The load of a replica towards a request of `charge` tokens, in the unit of the policy, enlarged while the
/// replica is on its ramp.
///
/// `least_tokens` adds the tokens at a replica and, since batch slots and step times follow the number of
/// requests, a typical request's tokens for each request there. Both are then as heavy in all: a replica with
/// twice its share of the tokens is passed over for one with less than twice its share of the requests. For a
/// request that is longer than typical the tokens weigh more, by the square of how much longer it is. In bursts of 300, half
/// of 5 kB and half of 500 kB in any order, three replicas get 100 ± 10 requests each.
pub(crate) fn load(policy: Policy, replica: &Replica, charge: Tokens, pool: &PoolView, now: Time) -> f64 {
    let own = replica.ledger.requests() as f64;
    let foreign = replica.reported.foreign(pool.stale_after, now);
    let load = match policy {
        Policy::RoundRobin | Policy::Random | Policy::LeastRequests | Policy::PowerOfTwo => own + foreign,
        Policy::PeakEwma => replica.ttft.peak(now).unwrap_or(pool.typical_ttft) * (own + foreign + 1.0),
        Policy::LeastTokens => {
            let tokens = replica.ledger.tokens().0 as f64 + foreign * pool.typical_charge;
            let weight = (charge.0 as f64 / pool.typical_charge).powi(2).max(1.0);
            tokens * weight + (own + foreign) * pool.typical_charge
        }
    };
    load / replica.weight(pool.ramp, now)
}

/// The state that a policy keeps between decisions.
#[derive(Debug, Default)]
pub(crate) struct Chooser {
    /// Where the rotation stands.
    last: Option<ReplicaId>,
}

impl Chooser {
    /// Picks one of the candidates whose verdict is [`QUALIFIES`], and writes the verdicts of the others that
    /// were compared with it. `fleet` and `candidates` are the same replicas in order of id, so that one seed
    /// means one sequence of draws.
    ///
    /// Returns the index of the chosen one; `None` where no candidate qualifies.
    pub(crate) fn choose(
        &mut self,
        policy: Policy,
        fleet: &[Replica],
        candidates: &mut [Candidate],
        rng: &mut Prng,
    ) -> Option<usize> {
        let chosen = match policy {
            Policy::RoundRobin => {
                let is_next = |index: &usize| self.last < Some(candidates[*index].replica);
                qualifying(candidates).find(is_next).or_else(|| qualifying(candidates).next())
            }
            Policy::Random => draw(candidates, rng),
            Policy::PowerOfTwo => {
                let (a, b) = (draw(candidates, rng)?, draw(candidates, rng)?);
                let winner = lighter(fleet, candidates, a, b);
                compare(candidates, winner, a + b - winner);
                Some(winner)
            }
            Policy::LeastRequests | Policy::PeakEwma | Policy::LeastTokens => {
                let winner = qualifying(candidates).reduce(|a, b| lighter(fleet, candidates, a, b))?;
                for index in 0..candidates.len() {
                    if candidates[index].verdict == QUALIFIES {
                        compare(candidates, winner, index);
                    }
                }
                Some(winner)
            }
        }?;
        candidates[chosen].verdict = Verdict::Chosen;
        self.last = Some(candidates[chosen].replica);
        Some(chosen)
    }
}

/// The verdict of a candidate that qualifies, until it is compared: one that the policy never looks at keeps it.
pub(crate) const QUALIFIES: Verdict = Verdict::NotDrawn;

fn qualifying(candidates: &[Candidate]) -> impl Iterator<Item = usize> {
    let candidates = candidates.iter().enumerate();
    candidates.filter(|(_, candidate)| candidate.verdict == QUALIFIES).map(|(index, _)| index)
}

/// One of those that qualify, each as likely as the others.
fn draw(candidates: &[Candidate], rng: &mut Prng) -> Option<usize> {
    let count = qualifying(candidates).count();
    if count == 0 { None } else { qualifying(candidates).nth(rng.below(count)) }
}

/// The one with less load; with as much, the one whose last request lies further back; then the lower id.
fn lighter(fleet: &[Replica], candidates: &[Candidate], a: usize, b: usize) -> usize {
    let by_load = candidates[a].load.total_cmp(&candidates[b].load);
    let order = by_load.then(fleet[a].last_turn.cmp(&fleet[b].last_turn)).then(a.cmp(&b));
    if order.is_le() { a } else { b }
}

/// Writes why `loser` lost against `winner`.
fn compare(candidates: &mut [Candidate], winner: usize, loser: usize) {
    let is_higher = candidates[loser].load > candidates[winner].load;
    candidates[loser].verdict = if is_higher { Verdict::HigherLoad } else { Verdict::Tied };
}
