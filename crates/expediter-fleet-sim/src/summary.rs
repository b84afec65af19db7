//! What a report amounts to: rates, shares within the objectives, quantiles, hit ratios.

mod distribution;
mod shares;
mod spread;

use std::collections::BTreeMap;
use std::time::Duration;

use expediter_types::{Time, Tokens};

pub use self::distribution::{Distribution, Quantiles};
pub use self::shares::Shares;
pub use self::spread::{Spread, spread};
use crate::report::{End, PoolReport, ReplicaSample, Report, RequestRecord};
use crate::scenario::Slo;

/// The numbers of one run, or of one pool in it. Everything but `preemptions` and `replica_shares` is about the
/// measured requests; those two count the warm-up too.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// How the requests ended.
    pub counts: Counts,
    /// Requests that arrived, per second.
    pub offered_per_second: f64,
    /// Requests answered in full, per second.
    pub answered_per_second: f64,
    /// Requests answered in full and within both objectives, per second.
    pub goodput_per_second: f64,
    /// Prompt tokens of the requests that were answered in full, per second.
    pub prompt_tokens_per_second: f64,
    /// Tokens that reached clients, those of answers that broke off included, per second.
    pub output_tokens_per_second: f64,
    /// Of the requests with prompts up to `Slo::prompt_max`, the share answered in full with their first token in
    /// time; 0 to 1, and 1 where there are none.
    pub within_ttft: f64,
    /// Of all requests, the share answered in full at the pace of the objective, 0 to 1. An answer of one token has
    /// no pace to miss.
    pub within_tpot: f64,
    /// Whether the rate is sustainable: both shares reach their objectives, and no more requests are left
    /// unanswered than the stricter of the two lets miss. A run without requests shows nothing and sustains
    /// nothing.
    pub sustains: bool,
    /// Time to first token of every request that got one; `None` here and below where there is no value.
    pub ttft: Option<Quantiles>,
    /// Time to first token of those with prompts up to `Slo::prompt_max`.
    pub ttft_within_prompt_max: Option<Quantiles>,
    /// Time per output token of the requests answered in full.
    pub tpot: Option<Quantiles>,
    /// From the client's sending to the end, of the requests answered in full.
    pub total: Option<Quantiles>,
    /// Cached ÷ prompt tokens, of the requests that got a first token; 0 to 1.
    pub hit_ratio: f64,
    /// As `hit_ratio`, had an infinite cache been shared by the whole pool.
    pub hit_ratio_ideal: f64,
    /// As `hit_ratio`, as the gateway expected it.
    pub hit_ratio_expected: f64,
    /// Sequences whose KV was dropped and computed again.
    pub preemptions: u64,
    /// How evenly attempts were spread over the replicas; `None` where there were no attempts.
    pub replica_shares: Option<Shares>,
    /// Share of KV blocks that live requests hold: mean over the replicas present and the measured time, 0 to 1.
    pub kv_in_use: f64,
    /// Share of KV blocks with content, cached ones included: the same mean.
    pub kv_resident: f64,
}

/// How requests ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All of them.
    pub arrived: u64,
    /// Answered in full.
    pub answered: u64,
    /// Refused, by the code of the refusal.
    pub refused: BTreeMap<&'static str, u64>,
    /// Waited for a replica as long as they may.
    pub expired: u64,
    /// Broken off after they had begun.
    pub cut: u64,
    /// Still open when the run ended.
    pub open: u64,
}

impl Counts {
    /// Refused with whatever code.
    pub fn refused(&self) -> u64 {
        self.refused.values().sum()
    }

    /// Arrived and not answered in full, for whatever reason.
    pub fn unanswered(&self) -> u64 {
        self.arrived - self.answered
    }

    fn of(requests: &[&RequestRecord]) -> Self {
        let mut counts = Self::default();
        for request in requests {
            counts.arrived += 1;
            match request.end {
                End::Answered => counts.answered += 1,
                End::Refused(code) => *counts.refused.entry(code).or_default() += 1,
                End::Expired => counts.expired += 1,
                End::Cut => counts.cut += 1,
                End::Open => counts.open += 1,
            }
        }
        counts
    }
}

impl Summary {
    /// The whole run, all pools together.
    pub fn of(report: &Report, slo: &Slo) -> Self {
        let requests: Vec<&RequestRecord> = report.requests.iter().collect();
        Self::over(report, &requests, 0..report.pools.len(), slo)
    }

    /// One pool, by its place in the scenario.
    pub fn of_pool(report: &Report, pool: u16, slo: &Slo) -> Self {
        let requests: Vec<&RequestRecord> =
            report.requests.iter().filter(|request| request.pool == pool).collect();
        let place = usize::from(pool);
        Self::over(report, &requests, place..place + 1, slo)
    }

    fn over(report: &Report, requests: &[&RequestRecord], pools: std::ops::Range<usize>, slo: &Slo) -> Self {
        let counts = Counts::of(requests);
        let per_second = |count: u64| per_second(count, report.measured);
        let number = |condition: &dyn Fn(&RequestRecord) -> bool| {
            requests.iter().filter(|request| condition(request)).count() as u64
        };
        let in_scope = number(&|request| has_ttft_objective(request, slo));
        let in_time = number(&|request| has_ttft_objective(request, slo) && meets_ttft(request, slo));
        let (within_ttft, within_tpot) =
            (share(in_time, in_scope), share(number(&|request| meets_tpot(request, slo)), counts.arrived));
        let (kv_in_use, kv_resident) = mean_kv(report, &pools);
        let [hit_ratio, hit_ratio_ideal, hit_ratio_expected] = hit_ratios(requests);
        let answered = || requests.iter().copied().filter(|request| request.end == End::Answered);
        let replicas = || report.pools[pools.clone()].iter().flat_map(|pool| &pool.replicas);
        Self {
            offered_per_second: per_second(counts.arrived),
            answered_per_second: per_second(counts.answered),
            goodput_per_second: per_second(number(&|request| meets_slo(request, slo))),
            prompt_tokens_per_second: per_second(answered().map(|request| request.prompt).sum::<Tokens>().0),
            output_tokens_per_second: per_second(requests.iter().map(|one| one.output).sum::<Tokens>().0),
            within_ttft,
            within_tpot,
            sustains: sustains(&counts, within_ttft, within_tpot, slo),
            ttft: ttfts(requests, Tokens(u64::MAX)).quantiles(),
            ttft_within_prompt_max: ttfts(requests, slo.prompt_max).quantiles(),
            tpot: answered().filter_map(RequestRecord::tpot).collect::<Distribution>().quantiles(),
            total: answered().map(|request| request.total).collect::<Distribution>().quantiles(),
            hit_ratio,
            hit_ratio_ideal,
            hit_ratio_expected,
            preemptions: replicas().map(|replica| replica.preemptions).sum(),
            replica_shares: Shares::of(replicas().map(|replica| replica.dispatched)),
            kv_in_use,
            kv_resident,
            counts,
        }
    }
}

/// Whether a request was answered in full and within every objective that it has.
pub fn meets_slo(request: &RequestRecord, slo: &Slo) -> bool {
    meets_tpot(request, slo) && (!has_ttft_objective(request, slo) || meets_ttft(request, slo))
}

fn has_ttft_objective(request: &RequestRecord, slo: &Slo) -> bool {
    request.prompt <= slo.prompt_max
}

fn meets_ttft(request: &RequestRecord, slo: &Slo) -> bool {
    request.end == End::Answered && request.ttft.is_some_and(|ttft| ttft <= slo.ttft)
}

fn meets_tpot(request: &RequestRecord, slo: &Slo) -> bool {
    request.end == End::Answered && request.tpot().is_none_or(|tpot| tpot <= slo.tpot)
}

fn sustains(counts: &Counts, within_ttft: f64, within_tpot: f64, slo: &Slo) -> bool {
    counts.arrived > 0
        && within_ttft >= slo.ttft_share
        && within_tpot >= slo.tpot_share
        && share(counts.answered, counts.arrived) >= slo.ttft_share.max(slo.tpot_share)
}

/// Times to first token of those that got one, with prompts up to `prompt_max`.
fn ttfts(requests: &[&RequestRecord], prompt_max: Tokens) -> Distribution {
    requests
        .iter()
        .filter(|request| request.prompt <= prompt_max)
        .filter_map(|request| request.ttft)
        .collect()
}

/// The real ratio, the ideal one, and the expected one.
fn hit_ratios(requests: &[&RequestRecord]) -> [f64; 3] {
    let started = || requests.iter().filter(|request| request.ttft.is_some());
    let prompt: Tokens = started().map(|request| request.prompt).sum();
    let ratio = |tokens: Tokens| if prompt == Tokens::ZERO { 0.0 } else { tokens.0 as f64 / prompt.0 as f64 };
    [
        ratio(started().map(|request| request.cached).sum()),
        ratio(started().map(|request| request.ideal).sum()),
        ratio(started().map(|request| request.expected).sum()),
    ]
}

/// Means of `in_use` and `resident` over the samples taken while measured requests arrived, of the replicas that
/// were present.
fn mean_kv(report: &Report, pools: &std::ops::Range<usize>) -> (f64, f64) {
    let mut sums = (0.0, 0.0, 0_u64);
    for sample in report.measured_samples() {
        for replica in of_pools(&sample.replicas, &report.pools, pools).iter().filter(|one| one.present) {
            sums.0 += f64::from(replica.in_use);
            sums.1 += f64::from(replica.resident);
            sums.2 += 1;
        }
    }
    let mean = |sum: f64| if sums.2 == 0 { 0.0 } else { sum / sums.2 as f64 };
    (mean(sums.0), mean(sums.1))
}

/// The part of a sample that belongs to these pools. A sample has a place for every replica that was ever there.
fn of_pools<'a>(
    replicas: &'a [ReplicaSample],
    pools: &[PoolReport],
    wanted: &std::ops::Range<usize>,
) -> &'a [ReplicaSample] {
    let count = |pools: &[PoolReport]| pools.iter().map(|pool| pool.replicas.len()).sum::<usize>();
    let start = count(&pools[..wanted.start]).min(replicas.len());
    let end = (start + count(&pools[wanted.clone()])).min(replicas.len());
    &replicas[start..end]
}

impl Report {
    /// The samples taken between the first and the last measured arrival.
    pub fn measured_samples(&self) -> impl Iterator<Item = &crate::report::Sample> {
        let ends = self.requests.first().zip(self.requests.last());
        let (first, last) =
            ends.map_or((Time::ZERO, Time::ZERO), |(first, last)| (first.arrived, last.arrived));
        self.samples.iter().filter(move |sample| first <= sample.at && sample.at <= last)
    }
}

/// Zero where no time was measured.
fn per_second(count: u64, measured: Duration) -> f64 {
    if measured.is_zero() { 0.0 } else { count as f64 / measured.as_secs_f64() }
}

/// All, where there is nothing to miss.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests;
