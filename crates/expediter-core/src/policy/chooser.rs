//! The choice among candidates whose loads are known.

use std::cmp::Ordering;

use expediter_types::{BlockHash, Prng, ReplicaId};

use super::ring::Ring;
use super::{Ask, Policy};
use crate::decision::{Candidate, Verdict};
use crate::replica::{Replica, ReplicaState};

/// The state that a policy keeps between decisions.
#[derive(Debug, Default)]
pub(crate) struct Chooser {
    /// Where the rotation stands.
    last: Option<ReplicaId>,
    ring: Ring,
}

impl Chooser {
    /// Picks one of the candidates whose verdict is [`QUALIFIES`], and writes the verdicts of the others that
    /// were compared with it. `fleet` and `candidates` are the same replicas in order of id, so that one seed
    /// means one sequence of draws.
    ///
    /// Returns the index of the chosen one; `None` where no candidate qualifies.
    pub(crate) fn choose(
        &mut self,
        ask: &Ask<'_>,
        fleet: &[Replica],
        candidates: &mut [Candidate],
        rng: &mut Prng,
    ) -> Option<usize> {
        let chosen = match ask.policy {
            Policy::RoundRobin => {
                let is_next = |index: &usize| self.last < Some(candidates[*index].replica);
                qualifying(candidates).find(is_next).or_else(|| qualifying(candidates).next())
            }
            Policy::Random => draw(candidates, rng),
            Policy::PowerOfTwo | Policy::PowerOfTwoTokens => {
                let (a, b) = (draw(candidates, rng)?, draw(candidates, rng)?);
                let winner = lighter(ask, fleet, candidates, a, b);
                compare(candidates, winner, a + b - winner);
                Some(winner)
            }
            Policy::LeastRequests
            | Policy::PeakEwma
            | Policy::LeastTokens
            | Policy::LeastPendingTokens
            | Policy::LMetric => least(ask, fleet, candidates),
            Policy::PrefixHashBounded => self.first_within_bound(ask, fleet, candidates),
            Policy::ApproximateTree => longest_match_or_least(ask, fleet, candidates),
            Policy::Weighted => highest_score(ask, fleet, candidates, rng),
            Policy::StickyUntilSaturated => {
                keep_warm_until_saturated(ask, fleet, candidates);
                least(ask, fleet, candidates)
            }
        }?;
        candidates[chosen].verdict = Verdict::Chosen;
        self.last = Some(candidates[chosen].replica);
        Some(chosen)
    }

    /// `prefix_hash_bounded`: walks the ring from the key. A replica is within the bound if with this request it
    /// has no more than the factor times the mean of all that are ready; where nothing is in flight all are.
    fn first_within_bound(
        &mut self,
        ask: &Ask<'_>,
        fleet: &[Replica],
        candidates: &mut [Candidate],
    ) -> Option<usize> {
        let parameters = &ask.parameters.bounded_hash;
        let Some(key) = key(ask) else { return least(ask, fleet, candidates) };
        let members = fleet.iter().map(|replica| (replica.id, replica.identity));
        self.ring.renew(members, parameters.points);
        let ready = fleet.iter().zip(&*candidates).filter(|(other, _)| other.state == ReplicaState::Ready);
        let (count, total) =
            ready.fold((0_u32, 0.0), |(count, total), (_, other)| (count + 1, total + other.load));
        let bound = parameters.load_factor * (total + 1.0) / f64::from(count);
        let (mut first, mut left) = (None, qualifying(candidates).count());
        for replica in self.ring.walk(key) {
            let Ok(index) = candidates.binary_search_by_key(&replica, |other| other.replica) else {
                continue;
            };
            let candidate = &mut candidates[index];
            if candidate.verdict != QUALIFIES {
                continue;
            }
            if total == 0.0 || candidate.load + 1.0 <= bound {
                return Some(index);
            }
            first = first.or(Some(index));
            candidate.verdict = Verdict::OverBound;
            left -= 1;
            if left == 0 {
                break;
            }
        }
        first
    }
}

/// The point on the ring: the hash of the first blocks, or of as many as there are. Its root stands for the model
/// or adapter; their ids are not part of it, since every gateway has its own.
fn key(ask: &Ask<'_>) -> Option<BlockHash> {
    let hashes = ask.request.prompt.prompt_hashes();
    let last = hashes.len().min(ask.parameters.bounded_hash.prefix_blocks as usize).checked_sub(1)?;
    Some(hashes[last])
}

/// `approximate_tree`.
fn longest_match_or_least(ask: &Ask<'_>, fleet: &[Replica], candidates: &mut [Candidate]) -> Option<usize> {
    let parameters = &ask.parameters.tree;
    let loads = qualifying(candidates).map(|index| candidates[index].load);
    let (fewest, most) =
        loads.fold((f64::INFINITY, 0.0), |(fewest, most), load| (load.min(fewest), load.max(most)));
    let imbalanced = most - fewest > parameters.balance_abs as f64 && most > parameters.balance_rel * fewest;
    let by_match = |a: &usize, b: &usize| {
        let by_share = candidates[*a].prefix_share.total_cmp(&candidates[*b].prefix_share);
        by_share.then(fleet[*a].last_turn.cmp(&fleet[*b].last_turn))
    };
    let matched = qualifying(candidates).max_by(by_match)?;
    let share = candidates[matched].prefix_share;
    if imbalanced || share <= parameters.cache_threshold {
        return least(ask, fleet, candidates);
    }
    for candidate in candidates.iter_mut().filter(|candidate| candidate.verdict == QUALIFIES) {
        let less = candidate.prefix_share < share;
        candidate.verdict = if less { Verdict::LessPrefix } else { Verdict::Tied };
    }
    Some(matched)
}

/// `weighted`: writes the loads, what each candidate's sum lacks to the highest there is, and draws one of the
/// least.
fn highest_score(
    ask: &Ask<'_>,
    fleet: &[Replica],
    candidates: &mut [Candidate],
    rng: &mut Prng,
) -> Option<usize> {
    let weights = &ask.parameters.weights;
    let report = |index: usize| fleet[index].reported.if_fresh(ask.pool.stale_after, ask.now);
    let waiting = |index| report(index).and_then(|report| report.waiting).map(|waiting| waiting as f64);
    let known = qualifying(candidates).filter_map(waiting);
    let (fewest, most) =
        known.fold((f64::INFINITY, 0.0), |(fewest, most), waiting| (waiting.min(fewest), waiting.max(most)));
    for index in qualifying(candidates).collect::<Vec<_>>() {
        let queue = match waiting(index) {
            Some(_) if most <= fewest => 0.0,
            Some(waiting) => (waiting - fewest) / (most - fewest),
            None => 1.0,
        };
        let usage = report(index).and_then(|report| report.kv_usage).unwrap_or(1.0).clamp(0.0, 1.0);
        let lacking = weights.queue * queue
            + weights.kv * usage
            + weights.prefix * (1.0 - candidates[index].prefix_share);
        candidates[index].load = lacking / ask.weight(&fleet[index]);
    }
    let least = qualifying(candidates).map(|index| candidates[index].load).min_by(f64::total_cmp)?;
    for candidate in candidates.iter_mut().filter(|candidate| candidate.verdict == QUALIFIES) {
        if candidate.load > least {
            candidate.verdict = Verdict::HigherLoad;
        }
    }
    let chosen = draw(candidates, rng)?;
    for candidate in candidates.iter_mut().filter(|candidate| candidate.verdict == QUALIFIES) {
        candidate.verdict = Verdict::Tied;
    }
    Some(chosen)
}

/// `sticky_until_saturated`: takes the replicas out that hold too little of the prompt, while one that holds
/// enough is not saturated.
fn keep_warm_until_saturated(ask: &Ask<'_>, fleet: &[Replica], candidates: &mut [Candidate]) {
    let parameters = &ask.parameters.sticky;
    let is_warm = |candidate: &Candidate| candidate.prefix_share >= parameters.affinity_min;
    let pending = |index: usize| fleet[index].ledger.uncached();
    let coldest = qualifying(candidates).map(pending).min();
    let warmest = qualifying(candidates).filter(|index| is_warm(&candidates[*index])).map(pending).min();
    let (Some(coldest), Some(warmest)) = (coldest, warmest) else { return };
    if warmest.saturating_sub(coldest).0 > parameters.saturation_tokens {
        return;
    }
    for candidate in candidates.iter_mut().filter(|candidate| candidate.verdict == QUALIFIES) {
        if !is_warm(candidate) {
            candidate.verdict = Verdict::LessPrefix;
        }
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

/// The one with the least load of all that qualify, compared with each.
fn least(ask: &Ask<'_>, fleet: &[Replica], candidates: &mut [Candidate]) -> Option<usize> {
    let winner = qualifying(candidates).reduce(|a, b| lighter(ask, fleet, candidates, a, b))?;
    for index in 0..candidates.len() {
        if candidates[index].verdict == QUALIFIES {
            compare(candidates, winner, index);
        }
    }
    Some(winner)
}

/// The one with less load; with as much, the one that the policy prefers; then the one whose last request lies
/// further back; then the lower id.
fn lighter(ask: &Ask<'_>, fleet: &[Replica], candidates: &[Candidate], a: usize, b: usize) -> usize {
    let by_load = candidates[a].load.total_cmp(&candidates[b].load);
    let tie = || match ask.policy {
        Policy::LeastPendingTokens | Policy::PowerOfTwoTokens | Policy::LMetric => {
            ask.requests(&fleet[a]).total_cmp(&ask.requests(&fleet[b]))
        }
        Policy::ApproximateTree => fleet[a].dispatched.cmp(&fleet[b].dispatched),
        Policy::RoundRobin
        | Policy::Random
        | Policy::LeastRequests
        | Policy::PowerOfTwo
        | Policy::PeakEwma
        | Policy::LeastTokens
        | Policy::PrefixHashBounded
        | Policy::Weighted
        | Policy::StickyUntilSaturated => Ordering::Equal,
    };
    let by_turn = || fleet[a].last_turn.cmp(&fleet[b].last_turn).then(a.cmp(&b));
    if by_load.then_with(tie).then_with(by_turn).is_le() { a } else { b }
}

/// Writes why `loser` lost against `winner`.
fn compare(candidates: &mut [Candidate], winner: usize, loser: usize) {
    let is_higher = candidates[loser].load > candidates[winner].load;
    candidates[loser].verdict = if is_higher { Verdict::HigherLoad } else { Verdict::Tied };
}
